"""The connection of a partition to one MQTT broker."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import DeniedError, TerminalError
from bridge.mqtt.client import Link
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER, Connected, Disconnected, LinkHandler, Message
from bridge.poller import Poller
from bridge.push.inbound import Inbound
from bridge.push.resume_answers import ANSWERS_AT_ONCE
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.push.connection import Connection

__all__ = ["BrokerLink"]

log = structlog.get_logger("push")

_TAKEOVERS_A_MINUTE: Final = 3


@dataclass(eq=False)
class BrokerLink(LinkHandler):
    """One of the connections of a session. All methods are called on the partition's thread."""

    name: str  # that of the broker, "" for a single one
    _settings: Settings  # with this broker as ``mqtt``
    _session: Connection
    _poller: Poller
    up: bool = False  # whether commands may be sent
    tried: bool = False  # whether an attempt to connect has ended
    denied: bool = False  # whether the broker has refused us, so that a person has to change something
    why: str = "not connected so far"  # why it is not up
    _warned: bool = False  # of the present interruption
    _takeovers: deque[float] = field(default_factory=lambda: deque(maxlen=_TAKEOVERS_A_MINUTE))

    def __post_init__(self) -> None:
        push, partition = self._settings.push, self._session.log.partition
        client_id = f"{push.client_id}-{partition}"
        if self.name != self._session.first:
            client_id = f"{client_id}-{self.name}"  # other addresses may lead to the same broker
        self.link = Link(
            self._settings.mqtt,
            self,
            client_id=client_id,
            persistent=False,
            window=push.limits.window + ANSWERS_AT_ONCE,
            poller=self._poller,
        )
        session = self._session
        self.inbound = Inbound(self._settings, session.log, self.link, session.metrics.all, self.up_if_ready, self.name)

    @property
    def proven(self) -> bool:
        """Whether the ownership is proven on this connection."""
        return self.link.connected and self._session.ownership.proven_epoch(self.name) == self.link.epoch

    def up_if_ready(self) -> None:
        """Have commands sent if nothing is missing for that."""
        if self.proven and self.inbound.ready and self._session.owner is not None:
            self.up = True
            self._session.owner.link_up(self.name)
            self._session.show_link(self)

    @property
    def at(self) -> str:
        """Text that names the broker among several."""
        return f" at {self.name}" if self.name else ""

    @property
    def _where(self) -> dict[str, object]:
        return {"partition": self._session.log.partition} | ({"link": self.name} if self.name else {})

    # --- the link's hooks ---

    def on_connected(self, event: Connected) -> None:
        """Triggered by CONNACK: prove the ownership before anything is sent on this connection."""
        if self._warned:
            self._warned = False
            log.info("MQTT is back", **self._where)
        self.denied = False
        if event.maximum_qos < 1:
            remedy = "use one that takes QoS 1: its PUBACK is what push waits for"
            self._refuse(DeniedError(f"the MQTT broker{self.at} takes QoS 0 alone (Maximum QoS)", remedy=remedy))
            return
        self._session.metrics.connections.inc()
        self.inbound.connected()
        self._session.ownership.connected(event.epoch, self.name)

    def on_subscribed(self, codes: list[int]) -> None:
        """Triggered by SUBACK. Raises DeniedError when answers or presence may not be read."""
        try:
            self.inbound.subscribed(codes)
        except DeniedError as e:
            self._refuse(e)

    def _refuse(self, error: DeniedError) -> None:
        """Raise an error that makes a broker useless, unless there are others: then its devices wait until it is fixed."""
        self.denied = True
        if self._session.denied:
            raise error
        self.why = error.what
        self._session.show_link(self)
        log.warning(
            "push cannot use one of the MQTT brokers, and its devices get no commands. Action: " + (error.remedy or ""),
            **self._where,
            why=error.what,
        )

    def on_message(self, message: Message) -> None:
        """Triggered by a PUBLISH to our subscription."""
        self.inbound.received(message)

    def on_disconnected(self, event: Disconnected) -> None:
        """Triggered by the end of a connection. Raises TerminalError if another process has our client id, or DeniedError."""
        session = self._session
        session.ownership.disconnected(self.name)
        self.link.abandon()  # the core decides what is sent again, and marks it
        self.up, self.tried = False, True
        if session.owner is not None:
            session.owner.link_down(self.name, event)
        self.why = event.why
        session.show_link(self)
        if event.reason == DISCONNECT_TAKEN_OVER:
            self._count_takeover(time.monotonic())
        self.denied = event.remedy is not None
        if event.remedy is not None and session.owner is None and session.denied:
            raise DeniedError(event.why, remedy=event.remedy)
        if not self._warned:
            self._warned = True
            mqtt = self._settings.mqtt
            log.warning(
                "MQTT is away. Action: " + (event.remedy or "see that the broker is up"),
                **self._where,
                broker=f"{mqtt.host}:{mqtt.port}",
                why=event.why,
            )

    def _count_takeover(self, now: float) -> None:
        self._takeovers.append(now)
        if len(self._takeovers) == _TAKEOVERS_A_MINUTE and now - self._takeovers[0] < 60:
            raise TerminalError(
                f"another process connects to {self._settings.mqtt.host} as {self.link.client_id!r}, and Pulsar says "
                "that this one is the owner",
                remedy="give each installation its own push.client_id",
            )

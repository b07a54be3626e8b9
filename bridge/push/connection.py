"""The MQTT connection of a partition, its ownership proof, and the events for the partition's thread."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.errors import DeniedError, FencedError, TerminalError, TransientError
from bridge.health import Part
from bridge.mqtt.client import Link
from bridge.mqtt.types import DISCONNECT_TAKEN_OVER, Connected, Disconnected, LinkHandler, Message
from bridge.pulsar.batch_writer import BatchAnswered
from bridge.pulsar.client import MessageId
from bridge.pulsar.sending import Failed, Stored
from bridge.push.cursor_log import CursorLog
from bridge.push.inbound import Inbound
from bridge.push.metrics import PartitionMetrics
from bridge.push.partition_log import PartitionLog
from bridge.push.resume_answers import ANSWERS_AT_ONCE
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge.push.owner import Owner

__all__ = ["Connection", "Ownership", "Proof"]

_EVERY_S: Final = 5.0
"""After a lost connection the owner reads no more than this time of records in vain."""


@dataclass(eq=False, slots=True)
class Proof:
    """Token of an owner record; ``epoch`` is the MQTT connection that it is for, 0 for none."""

    record: OwnerRecord
    epoch: int
    stored: bool = False


class Ownership:
    """The owner records of one session, and what they prove.

    Pulsar's client does not report that a producer was replaced before the next write. So at each MQTT connection the
    owner writes a record of its own, and reads the cursors partition from the last record that was certainly its own up to
    the new one.

    A successor connects to the MQTT broker before it writes, which ends our connection. But a connection that looks
    open may have ended long ago. So the owner pings the broker: whatever the broker answers on this connection it
    answers before any successor has come, and what Pulsar had stored at the time of the ping is certainly our own.
    """

    def __init__(self, cursors: CursorLog) -> None:
        self._cursors = cursors
        self.name = uuid.uuid4().hex
        """A name that no other session has."""
        self._token = f"{socket.gethostname()}/{os.getpid()}/{self.name}"
        self._serial = 0
        self._idle = True
        self.first = OwnerRecord(self._token, 1)
        """The first record of this session."""
        self.own: MessageId | None = None
        """The last record that no successor's record can precede."""
        self._asked: tuple[int, MessageId] | None = None  # a ping without answer, and what was stored before it
        self._asked_for: MessageId | None = None  # the last record for which the broker was pinged on this connection
        self._next_ping = 0.0
        self._connected = False
        self.proven_epoch = 0
        """The connection for which Pulsar has confirmed the ownership."""
        self.lost = False
        """The connection was lost: no further connect before Pulsar confirms the ownership."""

    def write(self, epoch: int, *, clean: bool = False) -> Proof:
        """Write an owner record; its ``Proof`` is the token of the ``Stored`` that follows."""
        self._serial += 1
        proof = Proof(OwnerRecord(self._token, self._serial, clean, self._idle), epoch)
        self._cursors.write_record(OWNER_KEY, proof.record.encode(), proof)
        return proof

    def begin(self, epoch: int) -> None:
        """Have commands sent on the connection ``epoch`` once the record that this writes is stored."""
        self._idle = False
        self.proven_epoch = 0
        self.write(epoch)

    def connected(self, epoch: int) -> None:
        """An MQTT connection was accepted: prove the ownership on it."""
        self._connected = True
        self.write(epoch)

    def disconnected(self) -> None:
        """The MQTT connection ended, without further answers, or an attempt failed."""
        self.lost = self.lost or self._connected
        self._connected = False
        self._asked = self._asked_for = None

    def accept(self, proof: Proof) -> None:
        """Pulsar has stored an owner record. Raises FencedError if another process has owned the partition since."""
        if self.own is not None and self._cursors.replaced_since(self.own, proof.record):
            raise FencedError("another process owned it in between")
        proof.stored = True
        if proof.epoch and proof.record.idle is self._idle:
            self.proven_epoch = proof.epoch

    def ping(self, link: Link, now: float) -> None:
        """Ask the broker, now and then, whether the connection is alive, to prove the last stored record."""
        if self._asked is not None and link.keepalive.answered >= self._asked[0]:
            self.own, self._asked = self._asked[1], None
        stored = self._cursors.last_stored
        if stored is None or stored is self._asked_for or self._asked is not None or now < self._next_ping:
            return
        self._asked = link.ping(), stored
        self._asked_for = stored
        self._next_ping = now + _EVERY_S


log = structlog.get_logger("push")

_TAKEOVERS_A_MINUTE: Final = 3
_PROOF_S: Final = 5.0
_GATHER_S: Final = 0.005
"""The answers of Pulsar are handled together: unlike commands, cursors and receipts are not urgent."""


class Connection(LinkHandler):
    """The connection of one session. All methods but ``post`` and ``wake`` are called on the partition's thread."""

    def __init__(
        self, settings: Settings, partition: int, metrics: PartitionMetrics, part: Part, stopping: threading.Event
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._part = part
        self._stopping = stopping
        self._inbox: deque[object] = deque()
        self._news = threading.Event()  # something was posted
        self.owner: Owner | None = None
        """Gets what happens, once the partition is ours; a standby has none."""
        self._takeovers: deque[float] = deque(maxlen=_TAKEOVERS_A_MINUTE)
        self._warned = False  # of the present interruption
        self.log = PartitionLog(settings.pulsar, partition, self.post)
        push = settings.push
        self.link = Link(
            settings.mqtt,
            self,
            client_id=f"{push.client_id}-{partition}",
            persistent=False,
            window=push.limits.window + ANSWERS_AT_ONCE,
        )
        self.inbound = Inbound(settings, self.log, self.link, metrics.all, self._up_if_ready)
        self.ownership = Ownership(self.log.cursors)

    # --- from any thread ---

    def post(self, event: object) -> None:
        """Hand an event to the partition's thread."""
        self._inbox.append(event)
        proof = isinstance(event, Stored) and isinstance(event.token, Proof)
        if proof or not isinstance(event, (Stored, BatchAnswered)):
            self.wake()

    def wake(self) -> None:
        """End the present wait."""
        self._news.set()
        self.link.wake()

    # --- turns ---

    @property
    def connected(self) -> bool:
        """Whether the link is up and its ownership is not in doubt."""
        return self.link.connected and not self.ownership.lost

    def turn(self, most_s: float) -> None:
        """Handle what comes, for ``most_s`` seconds at most. Raises FencedError or TransientError."""
        if self.ownership.lost:
            self._prove()
            return
        self.link.turn(self._rest(most_s))
        if self.link.connected:
            self.ownership.ping(self.link, time.monotonic())

    def drain_turn(self) -> None:
        """Handle what comes at the end of a session, without proofs."""
        self.link.turn(self._rest(0.2))

    def turns_until(self, done: Callable[[], bool]) -> bool:
        """Handle what comes until ``done`` returns True. Returns False when the process stops."""
        while not done():
            if self._stopping.is_set():
                return False
            self.turn(0.2)
        return True

    def _rest(self, most_s: float) -> float:
        busy = self.log.writing or (self.owner is not None and self.owner.busy)
        return min(most_s, _GATHER_S) if busy else most_s

    def _prove(self) -> None:
        """Have Pulsar confirm the ownership, without touching MQTT.

        Raises FencedError when another process was the owner in between, TransientError when no answer comes.
        """
        proof = self.ownership.write(0)
        end = time.monotonic() + _PROOF_S
        while not proof.stored and not self._stopping.is_set():
            left = end - time.monotonic()
            if left <= 0:
                partition = self.log.partition
                raise TransientError(f"Pulsar has not confirmed for {_PROOF_S:g} s that partition {partition} is ours")
            self._news.wait(left)
            self._news.clear()
            self.on_turn(time.monotonic())
        self.ownership.lost = False

    def _up_if_ready(self) -> None:
        proven = self.link.connected and self.ownership.proven_epoch == self.link.epoch
        if proven and self.inbound.ready and self.owner is not None:
            self.owner.link_up()
            self._part.ready()

    def close(self) -> None:
        """Close the link and everything of Pulsar."""
        self.link.disconnect()
        self.link.close()
        self.log.close()

    # --- the link's hooks ---

    def on_connected(self, event: Connected) -> None:
        """Triggered by CONNACK: prove the ownership before anything is sent on this connection."""
        if self._warned:
            self._warned = False
            log.info("MQTT is back", partition=self.log.partition)
        if event.maximum_qos < 1:
            remedy = "use one that takes QoS 1: its PUBACK is what push waits for"
            raise DeniedError("the MQTT broker takes QoS 0 alone (Maximum QoS)", remedy=remedy)
        self._metrics.connections.inc()
        self.inbound.connected()
        self.ownership.connected(event.epoch)

    def on_subscribed(self, codes: list[int]) -> None:
        """Triggered by SUBACK. Raises DeniedError when answers or presence may not be read."""
        self.inbound.subscribed(codes)

    def on_message(self, message: Message) -> None:
        """Triggered by a PUBLISH to our subscription."""
        self.inbound.received(message)

    def on_disconnected(self, event: Disconnected) -> None:
        """Triggered by the end of a connection. Raises TerminalError when another process uses the same client id,
        DeniedError when the broker refuses us; the supervisor decides whether that ends the process.
        """
        self.ownership.disconnected()
        self.link.abandon()  # the core decides what is sent again, and marks it
        if self.owner is not None:
            self.owner.link_down(event)
        self._part.waits(f"MQTT is away: {event.why}")
        if event.reason == DISCONNECT_TAKEN_OVER:
            self._count_takeover(time.monotonic())
        if event.remedy is not None and self.owner is None:
            raise DeniedError(event.why, remedy=event.remedy)
        if not self._warned:
            self._warned = True
            mqtt = self._settings.mqtt
            log.warning(
                "MQTT is away. Action: " + (event.remedy or "see that the broker is up"),
                partition=self.log.partition,
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

    def on_turn(self, now: float) -> None:
        """Triggered at the end of each turn: handle what was posted."""
        self._part.turned(now)
        while self._inbox:
            self._handle(self._inbox.popleft())
        self.inbound.acknowledge()
        if self.owner is not None:
            self.owner.turn(now)

    def _handle(self, event: object) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Stored):
            self.log.writes.unanswered -= 1
            if isinstance(event.token, Proof):
                self.ownership.accept(event.token)
                self._up_if_ready()
                return
        if self.owner is not None:
            self.owner.receive(event)

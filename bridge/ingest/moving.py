"""Moves filters between MQTT sessions before ingest reads, without loss and in order (H7).

``bridge.routing.sharding.plan_move`` decides what must move. The worker of the family's first session moves it; the
others wait until nothing is left to move. Each step may be repeated after a crash:

1. The sessions that gain filters subscribe to them. From here on the broker queues for the new owner too, so a message
   may arrive twice.
2. The sessions that lose filters are drained: read, stored in Pulsar, acknowledged, up to messages published after 1.
3. Sessions without a worker are deleted at the broker; the others unsubscribe when their worker starts.

A marker on a separate topic shows when a session is drained. Brokers with one queue for each session deliver the marker
after all messages queued before. Others (Artemis) have a queue for each subscription. For these, acknowledgements are
withheld for a while. The session is drained when the broker still has credit, but delivers only a second marker.
If Artemis delivers less than ``_CREDIT`` messages in ``_WITHHOLD_S``, a backlog looks like live messages. Its rest is
then lost with the subscription.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum, auto
from typing import Final

import structlog

from bridge.backoff import backoff_s
from bridge.contract import MOVES_TOPIC
from bridge.errors import DeniedError, TransientError
from bridge.ingest.session_filters import NOT_GRANTED, SessionFilters, wanted_subscriptions
from bridge.ingest.sessions import SessionSlot, forget_session, store_session, stored_sessions
from bridge.ingest.worker import check_loss, packet_limit
from bridge.intake.flow import Reading
from bridge.mqtt.client import Link, run
from bridge.mqtt.refusals import subscriber, subscription_remedy
from bridge.mqtt.types import Connected, Disconnected, LinkHandler, Message, Subscription
from bridge.protocols.handler import Service
from bridge.pulsar.acks import AckQueue
from bridge.routing.sharding import Move, Remembered, plan_move
from bridge.settings import Settings

__all__ = ["SessionMover", "end_former_connection"]

log = structlog.get_logger("ingest")

_CREDIT: Final = 4000
"""Messages that the broker may deliver unacknowledged while acknowledgements are withheld."""
_WITHHOLD_S: Final = 2.0
"""How long they are withheld, in seconds. A session with more live messages a second than their quotient waits."""
_WARN_S: Final = 60.0
_QUIET_S: Final = 10.0
"""How long a marker may take if no message comes before it, in seconds."""
_WAIT_S: Final = 1.0
_REQUEUED_S: Final = 0.5
_AT_ONCE: Final = 8
"""Sessions that are drained at once."""


class SessionMover:
    """Settles the sessions of one family before the worker of ``slot`` reads. ``settings.mqtt`` is its broker."""

    def __init__(self, slot: SessionSlot, settings: Settings, service: Service) -> None:
        self._slot = slot
        self._settings = settings
        self._service = service

    def settle(self) -> tuple[bool, dict[str, int] | None]:
        """Move filters, or wait until none must move. Returns success and the filters of the own session.

        False means that the service stops. The filters are None if unknown. Raises TerminalError if another process
        uses one of the sessions, DeniedError if the broker does not allow a step.
        """
        slot, stopping = self._slot, self._service.stopping
        attempt = 0
        warned = False
        while not stopping.is_set():
            try:
                known = stored_sessions(self._service.admin)
                move = plan_move(slot.family, known, slot.sessions, former=slot.former)
                if move is None:
                    mine = known.get(slot.name)
                    return True, None if mine is None else dict(mine.granted)
                if slot.name == next(iter(slot.sessions)):
                    self._move(move, known)
                    continue
                if not warned:
                    log.warning(
                        "sessions of other filters or shards must be drained first, by the first worker (shard 0). "
                        "Action: start it with these settings, and stop the workers of the former ones",
                        waiting=slot.name,
                        to_drain=sorted(move.drain),
                    )
                    warned = True
                stopping.wait(_WAIT_S)
            except TransientError as e:
                if attempt == 0:
                    log.warning(
                        "the sessions' filters cannot be read or stored, ingest retries. Action: check Pulsar's admin",
                        why=str(e),
                    )
                stopping.wait(backoff_s(attempt, 0.5, 10.0, 0.5))
                attempt += 1
        return False, None

    def _move(self, move: Move, known: Mapping[str, Remembered]) -> None:
        slot, admin = self._slot, self._service.admin
        log.info(
            "moving filters between MQTT sessions before reading",
            gain={slot.client_id(n): list(f) for n, f in move.gain.items()},
            drain=[slot.client_id(n) for n in move.drain],
            delete=[slot.client_id(n) for n in sorted(move.delete)],
        )
        for name in move.gain:
            had = known[name].granted if name in known else {}
            subscribing = _Subscribe(self._mqtt(name), self._settings, slot.sessions[name], had)
            if not subscribing.run(self._service):
                return
            released = known[name].released if name in known else ()
            store_session(admin, name, slot.remembered(name, subscribing.granted, released))
        drains = {name: _Drain(self._mqtt(name), self._service, lost) for name, lost in move.drain.items()}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ingest-drain") as pool:
            ran = list(pool.map(lambda drain: drain.run(self._service), drains.values()))
        if not all(ran):
            return
        for name, drain in drains.items():
            log.info("session drained", client_id=drain.link.client_id, messages=drain.count)
            if not self._release(name, drain, move):
                return

    def _release(self, name: str, drain: _Drain, move: Move) -> bool:
        """Delete a drained session, or store what its worker must unsubscribe. Returns False if stopped first."""
        admin = self._service.admin
        if name in move.delete:
            if not _Connection(self._mqtt(name), persistent=False).run(self._service):
                return False
            forget_session(admin, name)
        elif drain.lost:
            forget_session(admin, name)  # then its worker subscribes to everything
        else:
            session = stored_sessions(admin)[name]
            granted = {**session.granted, drain.marker: 1}
            granted = dict.fromkeys(granted, NOT_GRANTED) if drain.doubt else granted
            released = (*session.released, *move.drain[name], drain.marker)
            store_session(admin, name, replace(session, granted=granted, released=released))
        return True

    def _mqtt(self, name: str) -> Settings:
        mqtt = self._settings.mqtt.model_copy(update={"client_id": self._slot.client_id(name)})
        return self._settings.model_copy(update={"mqtt": mqtt})


class _Connection(LinkHandler):
    """A connection to a session for one purpose; ``done`` closes it. This one only connects.

    Without ``persistent`` the broker then deletes the session: a clean start and no expiry.
    """

    def __init__(self, settings: Settings, *, persistent: bool = True, window: int = 100) -> None:
        self.settings = settings
        self.link = Link(
            settings.mqtt,
            self,
            persistent=persistent,
            receive_maximum=window,
            max_packet_bytes=packet_limit(settings),
        )
        self.done = False
        self.doubt = False
        """Whether the session may be a new one, without filters."""
        self._losses = 0

    def run(self, service: Service) -> bool:
        """Run until ``done``. Returns False if the service stops first."""
        run(self.link, lambda: self.done or service.stopping.is_set(), 0.2)
        return self.done

    def on_connected(self, event: Connected) -> None:
        self.doubt |= not event.session_present
        self.done = True

    def on_disconnected(self, event: Disconnected) -> None:
        self._losses += 1
        self.doubt |= event.unanswered
        remedy = "stop the workers that run with the former filters or shards, then restart"
        check_loss(self.link, event, self._losses, remedy)


def end_former_connection(settings: Settings, service: Service) -> tuple[bool, bool]:
    """Have the broker end the connection of a former reader of a session, and wait until what it had is queued again.

    Artemis 2.40 sends the next new message first to a client that takes over a live connection. Returns success,
    False if the service stops first, and whether the session may be a new one, without filters. Raises TerminalError if
    another process takes the session over.
    """
    connection = _Connection(settings)
    return connection.run(service) and not service.stopping.wait(_REQUEUED_S), connection.doubt


class _Subscribe(_Connection):
    """Subscribes a session to its missing filters. It acknowledges no message, so the broker resends them."""

    def __init__(
        self, session_settings: Settings, settings: Settings, wanted: Sequence[str], granted: Mapping[str, int]
    ) -> None:
        super().__init__(session_settings)
        self.granted = dict(granted)
        subscriptions = wanted_subscriptions(wanted, settings.ingest)
        self._filters = SessionFilters(subscriptions, self.granted, optional=None, remember=self.granted.update)

    def on_connected(self, event: Connected) -> None:
        if not event.session_present:
            self.granted.clear()
        elif self.doubt:
            self._filters.doubt()
        missing, _ = self._filters.connected(session_present=event.session_present)
        self.done = not missing
        if missing:
            self.link.subscribe(missing)

    def on_subscribed(self, codes: list[int]) -> None:
        self._filters.subscribed(codes, self.settings.mqtt, self.link.client_id)
        self.done = True


class _Step(Enum):
    FLOW = auto()
    """Read and acknowledge until the marker arrives."""
    WITHHOLD = auto()
    """Withhold acknowledgements; with credit left, all queued messages must arrive now."""
    PROOF = auto()
    """Still withhold: a second marker shows that the broker could deliver more."""
    LAST = auto()
    """The window is too small or full of live messages: acknowledge until the marker arrives."""
    END = auto()
    """Read no more; store and acknowledge the rest."""


class _Drain(_Connection):
    """Stores and acknowledges all messages of a session that were published before it connected."""

    def __init__(self, session_settings: Settings, service: Service, lost: Sequence[str]) -> None:
        super().__init__(session_settings, window=65535)
        mqtt = session_settings.mqtt
        self.marker = f"{MOVES_TOPIC}/" + mqtt.client_id.translate(str.maketrans("/+#", "___"))
        self.lost = False
        """Whether the broker no longer had the session."""
        self.count = 0
        self._shared = [f for f in lost if f.startswith("$share/")]
        self._acks = AckQueue()
        self._intake = service.intake(
            link=mqtt.client_id, protocol=mqtt.protocol, limit=2 * _CREDIT, wake=self.link.wake
        )
        self._step = _Step.FLOW
        self._token = b""
        self._until = 0.0
        self._next_watch = 0.0
        self._warn_at = time.monotonic() + _WARN_S
        self._awaited_since = math.inf  # the last message while a marker is awaited

    def on_connected(self, event: Connected) -> None:
        """Subscribe to the marker's topic, on each connection."""
        self._acks.connected(event.epoch)
        if not event.session_present:
            self.lost = self.done = True
            return
        if self._shared:  # the group's other members get new messages, this session keeps its queued ones
            self.link.unsubscribe(self._shared)
        self.link.subscribe([Subscription(self.marker)])

    def on_subscribed(self, codes: list[int]) -> None:
        if codes[0] >= 0x80:
            raise DeniedError(
                f"the MQTT broker refused the subscription to {self.marker!r} (code {codes[0]:#x})",
                remedy=subscription_remedy(self.settings.mqtt, self.link.client_id),
            )
        if self._step is not _Step.END:
            self._step = _Step.FLOW
            self._mark()

    def _mark(self) -> None:
        self._token = secrets.token_hex(8).encode()
        self._awaited_since = time.monotonic()
        self.link.publish(self.marker, self._token, confirmed=self._marked)

    def _marked(self, reason: int) -> None:
        if reason >= 0x80:
            raise DeniedError(
                f"the MQTT broker refused the marker of a session that is drained, {self.marker!r} (code {reason:#x})",
                remedy=self.remedy,
            )

    @property
    def remedy(self) -> str:
        """The remedy if the marker does not arrive."""
        who = subscriber(self.settings.mqtt, self.link.client_id)
        return f"allow {who} to publish and to subscribe to {MOVES_TOPIC}/#"

    def on_message(self, message: Message) -> None:
        reading = Reading(self.link.epoch, message.mid, time.monotonic())
        self._acks.arrived(reading)
        if message.topic == self.marker:
            reading.stored = True
            if message.payload == self._token:
                self._marker_arrived()
            return
        self.count += 1
        if self._awaited_since < math.inf:
            self._awaited_since = time.monotonic()
        self._intake.take(reading, message)
        if self._intake.full:
            self.link.paused = True

    def _marker_arrived(self) -> None:
        self._awaited_since = math.inf
        if self._step is _Step.FLOW:
            self._step = _Step.WITHHOLD
            self._until = time.monotonic() + _WITHHOLD_S
        elif self._step in (_Step.PROOF, _Step.LAST):
            self._step = _Step.END
            self.link.paused = True

    def on_turn(self, now: float) -> None:
        """Store messages, acknowledge, and decide the next step."""
        self._intake.turn(now)
        if self._step in (_Step.WITHHOLD, _Step.PROOF):
            self._check_step(now)
        if self._step not in (_Step.WITHHOLD, _Step.PROOF):
            self.link.acknowledge(self._acks.take(), self.link.epoch)
        if self._step is _Step.END:
            self.done = self._intake.in_flight == 0 and not len(self._acks)
        elif self.link.paused and self._intake.has_room:
            self.link.paused = False
        if now >= self._next_watch:
            self._watch(now)

    def _check_step(self, now: float) -> None:
        if len(self._acks) >= _CREDIT or self.link.paused:
            self._step = _Step.FLOW
            self._mark()
        elif now >= self._until and self._step is _Step.WITHHOLD:
            self._step = _Step.PROOF
            self._until = now + _WITHHOLD_S
            self._mark()
        elif now >= self._until:
            self._step = _Step.LAST

    def _watch(self, now: float) -> None:
        self._next_watch = now + 1.0
        oldest = self._acks.oldest
        withheld = self._step in (_Step.WITHHOLD, _Step.PROOF)
        self._intake.watch(now, oldest.arrived if isinstance(oldest, Reading) and not withheld else None)
        if now - self._awaited_since >= _QUIET_S:
            self._awaited_since = now + _WARN_S
            log.warning(
                "the marker of a session that is drained does not arrive. Action: if this persists, " + self.remedy,
                client_id=self.link.client_id,
                marker=self.marker,
            )
        elif now >= self._warn_at:
            self._warn_at = now + _WARN_S
            log.warning(
                "an MQTT session is still being drained. Action: if its live messages alone are more than "
                f"{_CREDIT / _WITHHOLD_S:.0f} a second, limit them for some seconds",
                client_id=self.link.client_id,
                messages=self.count,
            )

"""Moves filters between MQTT sessions before anybody reads, so that nothing is lost and no order is broken (H7).

What must move is decided by ``bridge.sharding.plan_move``; the worker of the family's first session does it, the
others wait until there is nothing left to do. Each step may be repeated after a crash:

1. The sessions that gain filters subscribe to them. From here on the broker queues for the new owner; what is
   published twice comes twice.
2. The sessions that lose filters are drained: read, stored in Pulsar, acknowledged, up to what was published after 1.
3. Those that nobody serves are deleted at the broker; the others unsubscribe when their worker starts.

When is a session drained? A marker is published to it, on a topic of its own. Brokers that keep one queue for a
session hand the marker over behind all that was queued before. Others (Artemis) keep a queue for each subscription;
there acknowledgements are withheld for a while, and the session is drained when the broker still has credit, and
hands over a second marker, but nothing more.
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

from bridge.acks import AckQueue
from bridge.contract import MOVES_TOPIC
from bridge.errors import DeniedError, TerminalError, TransientError
from bridge.ingest.lanes import Reading
from bridge.ingest.places import Place
from bridge.ingest.session import wanted_subscriptions
from bridge.ingest.session_memory import SessionMemory
from bridge.ingest.worker import packet_limit
from bridge.mqtt.client import Link
from bridge.mqtt.keepalive import backoff_s
from bridge.mqtt.refusals import subscriber, subscription_remedy, what_to_check
from bridge.mqtt.types import (
    DISCONNECT_TAKEN_OVER,
    Confirmation,
    Connected,
    Disconnected,
    LinkHandler,
    Message,
    Subscription,
)
from bridge.protocols.handler import Service
from bridge.settings import Settings
from bridge.sharding import Move, Remembered, plan_move

__all__ = ["SessionMover"]

log = structlog.get_logger("ingest")

_CREDIT: Final = 4000
"""Messages that the broker may hand over unacknowledged while the drained session is judged."""
_HOLD_S: Final = 2.0
"""How long acknowledgements are withheld then, in seconds: a session with a live flow above their quotient waits."""
_WARN_S: Final = 60.0
_QUIET_S: Final = 10.0
"""How long a marker may take when nothing comes before it, in seconds."""
_WAIT_S: Final = 1.0
_AT_ONCE: Final = 8
"""Sessions that are drained at once."""


class SessionMover:
    """Settles the sessions of one family before the worker of ``place`` reads. ``settings.mqtt`` is its broker."""

    def __init__(self, place: Place, settings: Settings, service: Service, memory: SessionMemory) -> None:
        self._place = place
        self._settings = settings
        self._service = service
        self._memory = memory

    def settle(self) -> tuple[bool, dict[str, int] | None]:
        """Wait until nothing has to move, or move it. Returns whether that is so, and the filters of the own session.

        False means that the service stops. The filters are None when nothing is known. Raises TerminalError when
        another process uses one of the sessions, DeniedError when the broker does not allow a step.
        """
        place, stopping = self._place, self._service.stopping
        attempt = 0
        told = False
        while not stopping.is_set():
            try:
                known = self._memory.load(self._service.admin)
                move = plan_move(place.family, known, place.sessions, former=place.former)
                if move is None:
                    mine = known.get(place.name)
                    return True, None if mine is None else dict(mine.granted)
                if place.name == next(iter(place.sessions)):
                    self._move(move, known)
                    continue
                if not told:
                    log.warning(
                        "sessions of other filters or shards must be drained first; the first worker (shard 0) does "
                        "that: start it with these settings, and stop the workers of the former ones",
                        waiting=place.name,
                        to_drain=sorted(move.drain),
                    )
                    told = True
                stopping.wait(_WAIT_S)
            except TransientError as e:
                if attempt == 0:
                    log.warning(
                        "the sessions' filters cannot be read or kept yet, trying again; check Pulsar's admin",
                        why=str(e),
                    )
                stopping.wait(backoff_s(attempt, 0.5, 10.0, 0.5))
                attempt += 1
        return False, None

    def _move(self, move: Move, known: Mapping[str, Remembered]) -> None:
        place, admin, memory = self._place, self._service.admin, self._memory
        log.info(
            "moving filters between MQTT sessions before reading",
            gain={place.client_id(n): list(f) for n, f in move.gain.items()},
            drain=[place.client_id(n) for n in move.drain],
            delete=[place.client_id(n) for n in sorted(move.delete)],
        )
        for name in move.gain:
            had = known[name].granted if name in known else {}
            visit = _Subscribe(self._mqtt(name), self._settings, place.sessions[name], had)
            if not visit.run(self._service):
                return
            released = known[name].released if name in known else ()
            memory.store(admin, name, place.remembered(name, visit.granted, released))
        drains = {name: _Drain(self._mqtt(name), self._service, lost) for name, lost in move.drain.items()}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ingest-drain") as pool:
            ran = list(pool.map(lambda drain: drain.run(self._service), drains.values()))
        if not all(ran):
            return
        for name, drain in drains.items():
            log.info("session drained", client_id=drain.link.client_id, messages=drain.taken)
            if not self._give_up(name, drain, move):
                return

    def _give_up(self, name: str, drain: _Drain, move: Move) -> bool:
        """Delete a drained session, or note what its worker is to unsubscribe. Returns False when stopped before."""
        admin, memory = self._service.admin, self._memory
        if name in move.delete:
            if not _Delete(self._mqtt(name)).run(self._service):
                return False
            memory.forget(admin, name)
        elif drain.lost:
            memory.forget(admin, name)  # then its worker subscribes to everything
        else:
            session = memory.load(admin)[name]
            granted = {**session.granted, drain.marker: 1}
            released = (*session.released, *move.drain[name], drain.marker)
            memory.store(admin, name, replace(session, granted=granted, released=released))
        return True

    def _mqtt(self, name: str) -> Settings:
        mqtt = self._settings.mqtt.model_copy(update={"client_id": self._place.client_id(name)})
        return self._settings.model_copy(update={"mqtt": mqtt})


class _Visit(LinkHandler):
    """A session that is dialled for one purpose. ``done`` ends it."""

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
        self._losses = 0

    def run(self, service: Service) -> bool:
        """Take turns until ``done``. Returns False when the service stops before."""
        try:
            while not self.done and not service.stopping.is_set():
                self.link.turn(min(0.2, self.next_in()))
            if self.done:
                self.link.turn(0.0)  # what the last turn has left to write
            return self.done
        finally:
            self.link.disconnect()
            self.link.close()

    def next_in(self) -> float:
        """How long the loop may wait for bytes, in seconds."""
        return 0.2

    def on_disconnected(self, event: Disconnected) -> None:
        """Try again, unless that cannot help."""
        if event.reason == DISCONNECT_TAKEN_OVER:
            raise TerminalError(
                f"another process uses the MQTT client id {self.link.client_id!r}: {event.why}",
                remedy="stop the workers that run with the former filters or shards, then start again",
            )
        if event.remedy is not None and self.link.epoch == 0:
            raise DeniedError(event.why, remedy=event.remedy)
        self._losses += 1
        if self._losses in (1, 10, 100):
            log.warning(f"no connection to the MQTT broker, trying again; {what_to_check(event)}", why=event.why)

    def check(self, asked: Sequence[str], codes: Sequence[int]) -> None:
        """Raise DeniedError when the broker refused one of the filters that were asked for."""
        for one, code in zip(asked, codes, strict=False):
            if code >= 0x80:
                raise DeniedError(
                    f"the MQTT broker refused the subscription to {one!r} (code {code:#x})",
                    remedy=subscription_remedy(self.settings.mqtt, self.link.client_id),
                )


class _Subscribe(_Visit):
    """Subscribes to what a session lacks. What arrives meanwhile is not acknowledged, and comes again."""

    def __init__(
        self, visited: Settings, settings: Settings, wanted: Sequence[str], granted: Mapping[str, int]
    ) -> None:
        super().__init__(visited)
        self.granted = dict(granted)
        self._wanted = wanted_subscriptions(wanted, settings.ingest.qos, settings.ingest.retained)
        self._asked: tuple[Subscription, ...] = ()

    def on_connected(self, event: Connected) -> None:
        """Subscribe."""
        if not event.session_present:
            self.granted = {}
        self._asked = tuple(s for s in self._wanted if self.granted.get(s.filter) != s.qos)
        self.done = not self._asked
        if self._asked:
            self.link.subscribe(self._asked)

    def on_subscribed(self, codes: list[int]) -> None:
        """Note what was granted."""
        self.check([s.filter for s in self._asked], codes)
        self.granted |= {s.filter: s.qos for s in self._asked}
        self.done = True


class _Delete(_Visit):
    """Ends a session at the broker: a connection with a clean start and no expiry."""

    def __init__(self, visited: Settings) -> None:
        super().__init__(visited, persistent=False)

    def on_connected(self, event: Connected) -> None:
        """Nothing is left of it."""
        self.done = True


class _Step(Enum):
    FLOW = auto()
    """Read and acknowledge until the marker comes back."""
    HOLD = auto()
    """Withhold acknowledgements; with credit left, everything that is queued must come now."""
    PROOF = auto()
    """Still withholding: a second marker shows that the broker could hand more over."""
    LAST = auto()
    """Its window is smaller than our credit, or full of live messages: acknowledge until the marker comes."""
    END = auto()
    """Read no more, store and acknowledge the rest."""


class _Drain(_Visit):
    """Takes everything out of a session that was published before the visit began."""

    def __init__(self, visited: Settings, service: Service, lost: Sequence[str]) -> None:
        super().__init__(visited, window=65535)
        mqtt = visited.mqtt
        self.marker = f"{MOVES_TOPIC}/" + mqtt.client_id.translate(str.maketrans("/+#", "___"))
        self.lost = False
        """Whether the broker had no such session any more."""
        self.taken = 0
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
        """Ask for the marker's topic, again after each lost connection."""
        self._acks.connected(event.epoch)
        if not event.session_present:
            self.lost = self.done = True
            return
        if self._shared:  # the group's others take what comes; ours keeps what it was dealt
            self.link.unsubscribe(self._shared)
        self.link.subscribe([Subscription(self.marker)])

    def on_subscribed(self, codes: list[int]) -> None:
        """Publish the marker."""
        self.check([self.marker], codes)
        if self._step is not _Step.END:
            self._step = _Step.FLOW
            self._mark()

    def _mark(self) -> None:
        self._token = secrets.token_hex(8).encode()
        self._awaited_since = time.monotonic()
        self.link.publish(self.marker, self._token, confirmed=self._marked)

    def _marked(self, confirmation: Confirmation) -> None:
        if confirmation.reason >= 0x80:
            raise DeniedError(
                f"the MQTT broker does not take the marker of a session that is drained, {self.marker!r} (code "
                f"{confirmation.reason:#x})",
                remedy=self.remedy,
            )

    @property
    def remedy(self) -> str:
        """What to change when the marker does not come back."""
        who = subscriber(self.settings.mqtt, self.link.client_id)
        return f"allow {who} to publish and to subscribe to {MOVES_TOPIC}/#"

    def on_message(self, message: Message) -> None:
        """Take one message, or the marker."""
        reading = Reading(self.link.epoch, message.mid, time.monotonic())
        self._acks.arrived(reading)
        if message.topic == self.marker:
            reading.stored = True
            if message.payload == self._token:
                self._came()
            return
        self.taken += 1
        if self._awaited_since < math.inf:
            self._awaited_since = time.monotonic()
        self._intake.take(reading, message)
        if self._intake.full:
            self.link.pause()

    def _came(self) -> None:
        self._awaited_since = math.inf
        if self._step is _Step.FLOW:
            self._step = _Step.HOLD
            self._until = time.monotonic() + _HOLD_S
        elif self._step in (_Step.PROOF, _Step.LAST):
            self._step = _Step.END
            self.link.pause()

    def on_turn(self, now: float) -> None:
        """Store what was read, acknowledge, and see how far the session is."""
        self._intake.turn(now)
        if self._step in (_Step.HOLD, _Step.PROOF):
            self._judge(now)
        if self._step not in (_Step.HOLD, _Step.PROOF):
            self.link.acknowledge(self._acks.take(), self.link.epoch)
        if self._step is _Step.END:
            self.done = self._intake.in_flight == 0 and not len(self._acks)
        elif self.link.paused and self._intake.has_room:
            self.link.resume()
        if now >= self._next_watch:
            self._watch(now)

    def _judge(self, now: float) -> None:
        if len(self._acks) >= _CREDIT or self.link.paused:
            self._step = _Step.FLOW
            self._mark()
        elif now >= self._until and self._step is _Step.HOLD:
            self._step = _Step.PROOF
            self._until = now + _HOLD_S
            self._mark()
        elif now >= self._until:
            self._step = _Step.LAST

    def _watch(self, now: float) -> None:
        self._next_watch = now + 1.0
        oldest = self._acks.oldest
        held = self._step in (_Step.HOLD, _Step.PROOF)
        self._intake.watch(now, oldest.arrived if isinstance(oldest, Reading) and not held else None)
        if now - self._awaited_since >= _QUIET_S:
            self._awaited_since = now + _WARN_S
            log.warning(
                "the marker of a session that is drained does not come back; if it stays so, " + self.remedy,
                client_id=self.link.client_id,
                marker=self.marker,
            )
        elif now >= self._warn_at:
            self._warn_at = now + _WARN_S
            log.warning(
                "an MQTT session is still being drained; if its live messages alone are more than "
                f"{_CREDIT / _HOLD_S:.0f} a second, limit them for some seconds",
                client_id=self.link.client_id,
                messages=self.taken,
            )

    def next_in(self) -> float:
        """How long the loop may wait for bytes, in seconds."""
        return self._intake.next_in(time.monotonic())

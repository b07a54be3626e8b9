"""An owner: the shell around the core of a partition that this process owns, with its clock and its retention."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Final

import structlog

from bridge.contract.commands import CommandPosition
from bridge.contract.tagged_positions import PositionTags
from bridge.mqtt.client import Link
from bridge.mqtt.types import Disconnected
from bridge.pulsar.batch_writer import BatchAnswered, ProducerOpened
from bridge.pulsar.messages import StoredMessage
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.sending import Stored
from bridge.push.connection import Connection
from bridge.push.cursor_log import CursorRecords, CursorRewriter, CursorsAged, CursorsForgotten
from bridge.push.effects import Effects
from bridge.push.groups.payloads import PayloadCame, Payloads
from bridge.push.limits import limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import Seen
from bridge.push.puller import Copied, Pulled, Puller
from bridge.push.request_log import Asked, Found
from bridge.push.tracing import Tracer
from bridge.settings import Settings
from bridge.unreadable import leave_out

__all__ = ["Owner", "RetentionMover", "RetentionPosition", "WallClock"]

_STEP_S: Final = 1.0
"""A clock that is slewed goes back by less, and the clock that it is compared with is slewed with it."""


class WallClock:
    """Detects whether the clock was set back since it was made.

    The core gets the time in µs since the epoch, because expiries and signs of life have it. A clock that is set back
    makes every wait that began before longer: after an hour back, a parked device ignores signs of life for an hour,
    because they seem older than its absence. So the session ends, and the partition is taken over again from what is
    stored. A clock that is set forward ends waits early, which costs a repetition at most.
    """

    def __init__(self) -> None:
        self._ahead_s = -math.inf
        self.set_back_s()

    def set_back_s(self) -> float:
        """Return by how many seconds the clock was set back, 0.0 where it was not. It may have been set ahead before."""
        ahead = time.time_ns() / 1e9 - time.monotonic()
        self._ahead_s = max(self._ahead_s, ahead)
        back = self._ahead_s - ahead
        return back if back > _STEP_S else 0.0


_FIRST_S: Final = 5.0
_EVERY_S: Final = 60.0


class RetentionPosition:
    """Where the subscription is, as its owner knows. Positions within an entry count as one."""

    def __init__(self, horizon: CommandPosition | None) -> None:
        """``horizon``: the last command of the topic at the takeover; None for none."""
        self._horizon = horizon
        self._at: CommandPosition | None = None
        self._repeats = False

    def forward(self, to: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek, None for nowhere; nothing before ``to`` is needed, None if that is unknown."""
        if to is None:
            return None
        ahead = self._at is None or to[:2] > self._at[:2]
        self._at = to
        beyond = self._horizon is None or to[:2] >= self._horizon[:2]
        self._repeats = self._repeats and not beyond
        return to if ahead else None

    def back(self, to: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek unless it is before that, None for nowhere; everything from ``to`` on is needed again."""
        if to is None:
            return None
        self._repeats = self._horizon is not None
        if self._at is not None and to[:2] >= self._at[:2]:
            return None
        self._at = to
        return to

    def repeated(self) -> CommandPosition | None:
        """Return where to seek again unless it is before that, None for nowhere."""
        return self._at if self._repeats else None


class RetentionMover:
    """Moves the retention subscriptions of a partition's commands and relocated commands, before which Pulsar may trim.

    The one of the commands moves forward with what the core needs no more, and back if a device gets again what was released before. Every
    process that may consume can move it, also a former owner that was stopped while it moved the subscription, and
    continues hours later. Such a process knows of no command that came after our takeover. So after a move back the
    subscription is moved there again at each scan, until it belongs behind the last command of our takeover: what a
    former owner releases is retained again before long, and Pulsar deletes nothing of it unless it trims in between.
    """

    def __init__(
        self, core: Partition, puller: Puller, horizon: CommandPosition | None, *, every_s: float, now: float
    ) -> None:
        """``horizon``: the last command at the takeover. A scan begins ``every_s`` seconds after the last one ended, 0 for
        the default, and a minute after it at the latest; ``now`` in seconds of the monotonic clock.
        """
        self._retention = core.retention
        self._resume = core.resume
        self._puller = puller
        self._position = RetentionPosition(horizon)
        self._every_s = min(_EVERY_S, every_s or _EVERY_S)
        self._next = now + _FIRST_S
        self._copies = RetentionPosition(None)

    def turn(self, now: float, now_us: int, *, proven: bool) -> None:
        """Continue the scan, and let Pulsar trim what no device needs, if the ownership is ``proven`` (H25)."""
        retention = self._retention
        if not retention.scanning and now >= self._next:
            retention.begin_scan()
        if retention.scan(now_us):
            self._next = now + self._every_s
            position = retention.trims_to(now_us)
            if proven:
                self._move(position)

    def _move(self, position: CommandPosition | None) -> None:
        self._seek(self._position.forward(position))
        self._seek(self._position.repeated(), back=True)
        copy = self._copies.forward(None if position is None else self._retention.keeps_copies_from())
        if copy is not None:
            self._puller.retain_from(copy, relocated=True)

    def move_back(self) -> None:
        """Retain what is sent again, before it is trimmed; what was before it is released later."""
        self._seek(self._position.back(self._resume.resends_from), back=True)

    def _seek(self, position: CommandPosition | None, *, back: bool = False) -> None:
        if position is not None:
            self._puller.retain_from(position, back=back)


log = structlog.get_logger("push")

_SHOWN: Final = 200


@dataclass(eq=False)
class Owner:
    """The owner of one partition; all of it runs on the partition's thread."""

    _settings: Settings
    _connection: Connection
    _cursors: InitVar[CursorRecords]
    _budget: ReadBudget
    _metrics: PartitionMetrics
    _payloads: Payloads
    _trace: str

    def __post_init__(self, cursors: CursorRecords) -> None:
        settings, connection = self._settings, self._connection
        self._log = connection.log
        self._clock = WallClock()
        self._next_look = 0.0
        self._rewriter = CursorRewriter(self._log.cursors)
        self._rewriter.taken_over(cursors, self._log.last)
        core = self._core = Partition(
            self._log.partition,
            limits_of(settings.push),
            cursors.by_device,
            None if cursors.clean else self._log.last,
            cursors.parked,
            owner=connection.ownership.name,
            term=cursors.own_term,
            now_us=time.time_ns() // 1000,
            left_us=cursors.left_us,
            links=tuple(connection.links),
            generation=settings.pulsar.command_generation,
        )
        for key, why in core.parking.unread:
            lost = f"the commands that are parked there may be lost; `pulsebridge resend` sends them: {why}"
            leave_out(self._log.cursors.topic, lost, key=key)
        every_s, now = settings.push.offline.relocate_after, time.monotonic()
        self._retention = RetentionMover(core, self._log.puller, self._log.last, every_s=every_s, now=now)
        self._effects = Effects(
            settings,
            core,
            {name: one.link for name, one in connection.links.items()},
            self._log,
            self._budget,
            self._metrics.all,
            self._ask,
            PositionTags(
                cursors.term.secret, self._log.partition, settings.pulsar.command_generation, cursors.term.former
            ),
        )
        effects = self._effects
        self._handlers: dict[type, Callable[[Any], None]] = {
            StoredMessage: effects.arrived,
            Stored: lambda event: effects.stored(event.token),
            BatchAnswered: self._receipts_written,
            ProducerOpened: lambda event: self._log.receipts.opened(event, time.monotonic()),
            Pulled: effects.pulled,
            Copied: effects.copied,
            PayloadCame: lambda event: effects.payload_came(event.position, event.payload),
            Seen: self._seen,
            Asked: effects.resume.asked,
            Found: self._found,
            CursorsForgotten: self._write_cursors,
            CursorsAged: self._write_cursors,
        }
        if self._trace:
            effects.trace = Tracer(self._trace, core, self._log.partition, settings.pulsar.command_generation).see

    def _ask(self, position: CommandPosition) -> bytes | None:
        return self._payloads.ask(position, lambda at, payload: self._connection.post(PayloadCame(at, payload)))

    # --- the session ---

    def run(self, stopping: threading.Event) -> None:
        """Push until the process stops or the clock is set back, then drain. Raises FencedError or TransientError."""
        core, connection, ownership = self._core, self._connection, self._connection.ownership
        connection.owner = self
        for name, one in connection.links.items():
            one.inbound.serve(core, partial(self._effects.answered, link=name))
        # Nothing is sent before this is stored, behind the secret by which the next owner verifies our tags.
        connection.begin()
        self._metrics.all.counters["takeovers"].inc()
        self._metrics.owner(True)
        log.info("partition is ours", partition=self._log.partition, devices=core.devices.known_count)
        while not stopping.is_set() and not (back_s := self._clock.set_back_s()):
            due = core.next_time_us()
            connection.turn(1.0 if due is None else min(1.0, max(0.0, due / 1e6 - time.time())))
        if not stopping.is_set():
            log.warning(
                "the clock was set back, and push takes the partition over again. Action: see what sets this host's clock",
                partition=self._log.partition,
                seconds=round(back_s, 1),
            )
        self._budget.close()
        self._log.puller.drain()
        core.drain()
        self._rewriter.drain()
        end = time.monotonic() + self._settings.push.drain
        while not core.settled and not ownership.lost and time.monotonic() < end:
            connection.drain_turn()
        if core.clean and not ownership.lost:
            proof = ownership.write(clean=True)
            while not proof.stored and not ownership.lost and time.monotonic() < end:
                connection.drain_turn()

    # --- what happens on the connection ---

    @property
    def busy(self) -> bool:
        """Whether a scan is under way, of which each turn takes a part."""
        return self._core.retention.scanning

    def link_up(self, link: str) -> None:
        """The connection to a broker is up and ours: send."""
        self._core.link_up(link, reports_absence=self._connection.links[link].inbound.reports_absence)
        self._effects.resume.answers[link].link_up()

    def link_down(self, link: str, event: Disconnected) -> None:
        """The connection to a broker ended, or an attempt to connect failed."""
        if not event.epoch:
            self._core.links[link].broker_unreachable()
        self._core.link_down(time.time_ns() // 1000, link, closed=self._effects.link_down(event, link))

    def turn(self, now: float) -> None:
        """Begin what the core has decided."""
        core, now_us = self._core, time.time_ns() // 1000
        due = core.next_time_us()
        if due is not None and due <= now_us:
            core.tick(now_us)
        for action in core.take(now_us):
            self._effects.begin(action)
        self._log.receipts.flush(now)
        self._rewriter.turn(core, now)
        if now >= self._next_look:
            self._next_look = now + 1.0
            self._report_unread(core)
            shown = self._connection.brokers.shown
            self._metrics.show(core, now_us, {name: shown(name) for name in core.links.names})
            for name, one in self._connection.links.items():
                self._drop_silent_connection(name, one.link)
        self._retention.turn(now, now_us, proven=self._connection.connected)

    def _report_unread(self, core: Partition) -> None:
        """Report what could not be decoded when its device was looked at."""
        unread = core.devices.cursors.unread
        while unread:
            key, why = unread.pop()
            leave_out(self._log.cursors.topic, why, key=key)

    def _drop_silent_connection(self, name: str, link: Link) -> None:
        """A PUBACK that does not come would block its device and its place in the window as long as the link is up."""
        topic = self._effects.overdue(name) if link.connected else None
        if topic is not None:
            timeout_s = self._settings.push.puback_timeout
            log.warning(
                "the MQTT broker does not confirm what push publishes, and push reconnects. Action: see whether the "
                "broker blocks publishers",
                mqtt_topic=topic[:_SHOWN],
                partition=self._log.partition,
                after_s=timeout_s,
            )
            link.drop(f"no PUBACK within {timeout_s:g} s")

    def receive(self, event: object) -> None:
        """Hand an event to the core."""
        self._handlers[type(event)](event)

    def _seen(self, event: Seen) -> None:
        """Ingest has noted signs of life. A clock that is ahead of ours must not hide a later absence (H31)."""
        now_us = time.time_ns() // 1000
        for device, at_us, link in event.signs:
            self._core.alive(device, min(at_us, now_us), self._connection.brokers.named(link))

    def _found(self, event: Found) -> None:
        self._effects.resume.found(event)
        self._retention.move_back()

    def _receipts_written(self, event: BatchAnswered) -> None:
        for token in self._log.receipts.written(event):
            self._effects.stored(token)

    def _write_cursors(self, event: CursorsForgotten | CursorsAged) -> None:
        log.info("push writes the cursors again", partition=self._log.partition)
        self._connection.ownership.write()  # an owner that left no record counts as none
        self._rewriter.begin(event, self._core)

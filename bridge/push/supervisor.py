"""Supervises one partition: while it is wanted here, a standby that may become the owner, one session after another."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from bridge.collector import excluded_objects, let_go
from bridge.errors import FencedError
from bridge.health import Part
from bridge.killpoints import reach
from bridge.pulsar.read_budget import ReadBudget
from bridge.push.connection import Connection
from bridge.push.cursor_log import CursorsAged, CursorsForgotten
from bridge.push.groups.payloads import Payloads
from bridge.push.limits import limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.owner import Owner
from bridge.push.sessions import Sessions, wait_for
from bridge.settings import Settings

__all__ = ["PartitionSupervisor", "Session"]

log = structlog.get_logger("push")

_STUCK_S: Final = 10.0
_LOOK_S: Final = 0.5


@dataclass(eq=False)
class Session:
    """One session of a partition: a standby that may become the owner. On the partition's thread but for ``post``, ``wake``
    and ``owns``.

    Order of a takeover (H23). It ends, and begins again as a standby, wherever Pulsar reports that another process is
    the owner:

    1. The exclusive producer of the cursors partition: Pulsar grants it to one process alone.
    2. MQTT connect with the client id ``<push.client_id>-<partition>``: the broker's session takeover ends the
       connection of a former owner that has not noticed. With several brokers: to each that is there, and at least to one.
       To the others it connects later, and sends nothing there before.
    3. An owner record, written through that producer: its receipt proves the ownership.
    4. The cursors partition, read up to that record: no other process wrote after it.
    5. The commands subscription, exclusive.
    6. Outdated cursors, written again, and behind them the record that our term begins. Then commands are sent.

    When an MQTT connection is lost, step 3 precedes the next attempt to connect, and follows it, and nothing is sent
    before the partition was read from the last record that was certainly ours up to the new one (``connection``). So a
    former owner neither ends its successor's connection nor continues with outdated state: without the proof it gives
    up everything, the exclusive subscription included. Every acknowledgement comes after a cursor write's receipt.
    """

    _settings: Settings
    _partition: int
    _metrics: PartitionMetrics
    _part: Part
    _stopping: threading.Event
    _payloads: Payloads
    _trace: str = ""
    _fences: Callable[[], bool] = lambda: False  # whether to take the producer from a process that is silent

    def __post_init__(self) -> None:
        limits, gauges = self._settings.push.limits, self._metrics.gauges
        gauges["pending_limit"].set(limits.pending)
        gauges["pending_limit_bytes"].set(limits.pending_size)
        gauges["in_flight_limit"].set(limits.window)
        self._connection = Connection(self._settings, self._partition, self._metrics, self._part, self._stopping)
        self.post, self.wake = self._connection.post, self._connection.wake
        self.has = False
        """Whether it has the exclusive producer."""
        self.owns = False
        """Whether it has become the owner: Pulsar and the MQTT broker both accepted it."""
        self._stuck_at = math.inf  # unless the MQTT broker accepts it before

    @property
    def away(self) -> tuple[str, ...]:
        """The links whose MQTT brokers do not accept commands. From any thread."""
        brokers = self._connection.brokers
        return tuple(brokers.shown(name) for name, one in self._connection.links.items() if not one.up)

    @property
    def stuck(self) -> bool:
        """Whether it has had the producer for long, and the MQTT broker does not accept it."""
        return self.has and time.monotonic() > self._stuck_at

    def run(self) -> None:
        """Wait for the ownership, take over, and push, as ``Owner.run``. Raises FencedError or TransientError."""
        try:
            cursors, what = self._connection.log.cursors, f"partition {self._partition}"
            if not wait_for(lambda: cursors.own(fence=self._fences()), self._stopping, self._part, what):
                return
            self.has, self._stuck_at = True, time.monotonic() + _STUCK_S
            self._part.waits("taking over")
            reach("after_takeover")
            with excluded_objects():
                owner = self._take_over()
            if owner is not None:
                self.owns = True
                owner.run(self._stopping)
        finally:
            self._metrics.owner(False)
            self._connection.close()
            self.has = False

    def _take_over(self) -> Owner | None:
        """Become the owner. Returns None when the process stops. Raises FencedError or TransientError."""
        settings, connection = self._settings, self._connection
        ownership = connection.ownership
        if not connection.turns_until(lambda: connection.accepted):
            return None
        self._stuck_at = math.inf
        limits = limits_of(settings.push)
        since_ms = time.time_ns() // 1_000_000 - limits.parked.unsure_us // 1000
        cursors = connection.log.cursors.read(ownership.first, limits.remembered_ids, since_ms)
        ownership.own = cursors.until
        budget = ReadBudget(limits.pending, limits.pending_bytes)
        while True:
            try:
                connection.log.subscribe(budget, limits.pending_bytes, limits.resume.most)
                break
            except FencedError:
                # Pulsar has not noticed that the former owner's connection is dead.
                if not connection.turns_until(_after(0.2)):
                    return None
        return Owner(settings, connection, cursors, budget, self._metrics, self._payloads, self._trace)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


class PartitionSupervisor:
    """Owns one partition whenever it is wanted and Pulsar grants it, until it is stopped. It is wanted at first."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        metrics: PartitionMetrics,
        part: Part,
        failed: Callable[[BaseException], None],
        payloads: Payloads,
        trace: str = "",
    ) -> None:
        lost = metrics.all.counters["partitions_lost"].inc
        self._sessions = Sessions(f"partition {partition}", self._run_session, part, failed, lost)
        self._metrics = metrics
        self._part = part
        self._partition = partition
        self._wanted = threading.Event()
        self._wanted.set()
        self._fence = False
        self._session: Session | None = None
        self._had_state = False  # the last session
        self._ending = threading.Event()  # of the present session
        self._open: Callable[[threading.Event], Session] = lambda ending: Session(
            settings, partition, metrics, part, ending, payloads, trace, lambda: self._fence
        )
        self.start, self.join = self._sessions.start, self._sessions.join

    def stop(self) -> None:
        """Ask for a clean end: push nothing new, wait for what is under way, close."""
        self._sessions.stopping.set()
        self._end_session()

    def _end_session(self) -> None:
        self._ending.set()
        session = self._session
        if session is not None:
            session.wake()

    @property
    def has(self) -> bool:
        """Whether this process has the exclusive producer of the partition."""
        session = self._session
        return session is not None and session.has

    @property
    def away(self) -> tuple[str, ...]:
        """The links whose MQTT brokers do not accept commands, while this process is the owner."""
        session = self._session
        return session.away if session is not None and session.owns else ()

    @property
    def stuck(self) -> bool:
        """Whether the MQTT broker lets no takeover happen."""
        session = self._session
        return session is not None and session.stuck

    def want(self, wanted: bool, *, fence: bool) -> None:
        """Try to own the partition, and if ``fence`` take it from a process that is silent; or hand it over: push nothing
        new, wait for what is under way, close. From any thread.
        """
        self._fence = fence
        if wanted:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self._end_session()

    def cursors_forgotten(self) -> None:
        """Have the cursors written again that Pulsar has lost. From any thread."""
        session = self._session
        if session is not None:
            session.post(CursorsForgotten())

    def cursors_aged(self) -> bool:
        """Have the cursors partition written again, slowly. From any thread; returns whether this process owns it."""
        session = self._session
        if session is None or not session.owns:
            return False
        session.post(CursorsAged())
        return True

    def _run_session(self) -> None:
        if self._had_state:
            self._had_state = False
            let_go()
        if not self._wanted.is_set():
            self._part.stands_by("another process owns it")
            while not self._wanted.wait(_LOOK_S):
                if self._sessions.stopping.is_set():
                    return
        ending = self._ending = threading.Event()
        if self._sessions.stopping.is_set() or not self._wanted.is_set():
            return  # since before there was this event
        session = self._session = self._open(ending)
        try:
            session.run()
        finally:
            self._session, self._had_state = None, session.owns
            self._sessions.worked = self._sessions.worked or session.owns
        if session.owns and not self._wanted.is_set():
            self._metrics.all.counters["handed_over"].inc()
            log.info("partition was handed over to another process", partition=self._partition)

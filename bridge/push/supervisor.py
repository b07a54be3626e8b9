"""Supervises one partition: a standby that may become the owner, one session after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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


@dataclass(eq=False)
class Session:
    """One session of a partition: a standby that may become the owner. On the partition's thread but for ``post``, ``wake``
    and ``owns``.

    Order of a takeover (H23). It ends, and begins again as a standby, wherever Pulsar reports that another process is
    the owner:

    1. The exclusive producer of the cursors partition: Pulsar grants it to one process, and fences the former one.
    2. MQTT connect with the client id ``<push.client_id>-<partition>``: the broker's session takeover ends the
       connection of a former owner that has not noticed.
    3. An owner record, written through that producer: its receipt proves the ownership.
    4. The cursors partition, read up to that record: no other process wrote after it.
    5. The commands subscription, exclusive.
    6. Outdated cursors, written again, and behind them the record that our term begins. Then commands are sent.

    When the MQTT connection is lost, step 3 precedes the next attempt to connect, and follows it, and nothing is sent
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

    def __post_init__(self) -> None:
        limits, gauges = self._settings.push.limits, self._metrics.gauges
        gauges["pending_limit"].set(limits.pending)
        gauges["pending_limit_bytes"].set(limits.pending_size)
        gauges["in_flight_limit"].set(limits.window)
        self._connection = Connection(self._settings, self._partition, self._metrics, self._part, self._stopping)
        self.post, self.wake = self._connection.post, self._connection.wake
        self.owns = False
        """Whether it has become the owner: Pulsar and the MQTT broker both accepted it."""

    def run(self) -> None:
        """Wait for the ownership, take over, and push, as ``Owner.run``. Raises FencedError or TransientError."""
        try:
            self._part.stands_by("another process owns it, or Pulsar is away")
            if not wait_for(self._connection.log.cursors.own, self._stopping):
                return
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

    def _take_over(self) -> Owner | None:
        """Become the owner. Returns None when the process stops. Raises FencedError or TransientError."""
        settings, connection = self._settings, self._connection
        ownership = connection.ownership
        if not connection.turns_until(lambda: ownership.proven_epoch > 0):
            return None
        limits = limits_of(settings.push)
        cursors = connection.log.cursors.read(ownership.first, limits.remembered_ids)
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
    """Owns one partition whenever Pulsar grants it, until it is stopped."""

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
        self._session: Session | None = None
        self._open = partial(Session, settings, partition, metrics, part, self._sessions.stopping, payloads, trace)
        self.start, self.join = self._sessions.start, self._sessions.join

    def stop(self) -> None:
        """Ask for a clean end: push nothing new, wait for what is under way, close."""
        self._sessions.stopping.set()
        session = self._session
        if session is not None:
            session.wake()

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
        had_state = self._session is not None and self._session.owns
        session = self._session = self._open()
        if had_state:
            let_go()
        try:
            session.run()
        finally:
            self._sessions.worked = self._sessions.worked or session.owns

"""Supervises one partition: one session after another, for as long as the process runs, in a thread of its own.

After a session ends it decides what follows. If another process owns the partition, it waits; if Pulsar is unreachable, it
tries again; so it does after an unexpected error, which it logs as a defect: one message must not end the other partitions.
Only an error that a person has to fix (TerminalError) ends the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from bridge.collector import excluded_objects, let_go
from bridge.errors import (
    ContractError,
    FencedError,
    PulsebridgeError,
    RefusedError,
    TerminalError,
    TerminatedError,
    TransientError,
)
from bridge.health import Part
from bridge.killpoints import reach
from bridge.push.connection import Connection
from bridge.push.cursor_log import CursorRecords, CursorRewriter, CursorsAged, CursorsForgotten
from bridge.push.groups.payloads import Payloads
from bridge.push.limits import limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.owner import Owner, WallClock
from bridge.push.partition import Partition
from bridge.push.partition_log import CommandSource
from bridge.push.threads import Budget
from bridge.settings import Settings
from bridge.unreadable import leave_out

__all__ = ["PartitionSupervisor", "Session", "Standby"]


class Standby:
    """Waits for one partition, on the partition's thread.

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

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        metrics: PartitionMetrics,
        part: Part,
        stopping: threading.Event,
        payloads: Payloads,
        trace: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._metrics = metrics
        self._part = part
        self._stopping = stopping
        self._payloads = payloads
        self._trace = trace
        self._partition = connection.log.partition
        self._clock = WallClock()

    def take_over(self) -> Owner | None:
        """Wait for the ownership and take it over. Returns None when the process stops.

        Raises FencedError or TransientError.
        """
        if not self._wait():
            return None
        with excluded_objects():
            return self._become_owner()

    def _wait(self) -> bool:
        while not self._stopping.is_set():
            self._part.stands_by("another process owns it, or Pulsar is away")
            try:
                self._connection.log.cursors.own()
            except TransientError as e:
                log.debug("standby", partition=self._partition, why=str(e))
                self._stopping.wait(0.05)  # a refused lookup answers at once
                continue
            self._part.waits("taking over")
            reach("after_takeover")
            return True
        return False

    def _become_owner(self) -> Owner | None:
        connection = self._connection
        ownership = connection.ownership
        if not connection.turns_until(lambda: ownership.proven_epoch > 0):
            return None
        push = self._settings.push
        limits = limits_of(push)
        cursors = connection.log.cursors.read(ownership.first, limits.remembered_ids)
        ownership.read(cursors.until)
        pending_bytes = push.limits.pending_size
        budget = Budget(push.limits.pending, pending_bytes)
        source = self._subscribe(budget, pending_bytes, limits.resume.most)
        if source is None:
            return None
        rewriter = CursorRewriter(connection.log.cursors)
        rewriter.taken_over(cursors, source.last)
        core = Partition(
            self._partition,
            limits,
            cursors.by_device,
            None if cursors.clean else source.last,
            cursors.parked,
            owner=ownership.name,
            now_us=time.time_ns() // 1000,
            left_us=cursors.left_us,
        )
        self._report_unread(core)
        owner = Owner(
            self._settings,
            connection,
            source,
            core,
            rewriter,
            budget,
            cursors.secret,
            self._metrics,
            self._part,
            self._payloads,
            self._clock,
            self._trace,
        )
        self._serve(owner, cursors)
        return owner

    def _subscribe(self, budget: Budget, pulled_bytes: int, most_found: int) -> CommandSource | None:
        while True:
            try:
                return self._connection.log.subscribe(budget, pulled_bytes, most_found)
            except FencedError:
                # Pulsar has not noticed that the former owner's connection is dead.
                if not self._connection.turns_until(_after(0.2)):
                    return None

    def _report_unread(self, core: Partition) -> None:
        for key, why in core.parking.unread:
            leave_out(
                self._connection.log.cursors.topic,
                f"the commands that are parked there may be lost; `pulsebridge resend` sends them: {why}",
                key=key,
            )

    def _serve(self, owner: Owner, cursors: CursorRecords) -> None:
        connection = self._connection
        owner.begin()
        # Nothing is sent before this is stored, behind the secret by which the next owner verifies our tags.
        connection.ownership.proven_epoch = 0
        connection.ownership.write(connection.link.epoch)
        self._metrics.all.counters["takeovers"].inc()
        self._metrics.owner(True)
        log.info("partition is ours", partition=self._partition, devices=len(cursors.by_device))


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


class Session:
    """One session of a partition, on the partition's thread but for ``post``, ``wake`` and ``owns``."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        metrics: PartitionMetrics,
        part: Part,
        stopping: threading.Event,
        payloads: Payloads,
        trace: str = "",
    ) -> None:
        metrics.gauges["pending_limit"].set(settings.push.limits.pending)
        metrics.gauges["pending_limit_bytes"].set(settings.push.limits.pending_size)
        metrics.gauges["in_flight_limit"].set(settings.push.limits.window)
        self._metrics = metrics
        self._stopping = stopping
        self._connection = Connection(settings, partition, metrics, part, stopping)
        self._standby = Standby(settings, self._connection, metrics, part, stopping, payloads, trace)
        self.owns = False
        """Whether it has become the owner: Pulsar and the MQTT broker both accepted it."""

    def post(self, event: object) -> None:
        """Hand an event to the partition's thread. From any thread."""
        self._connection.post(event)

    def wake(self) -> None:
        """End the present wait. From any thread."""
        self._connection.wake()

    def run(self) -> None:
        """Wait for the ownership, take over, and push until the process stops, or the clock is set back.

        Raises FencedError or TransientError.
        """
        try:
            owner = self._standby.take_over()
            if owner is not None:
                self.owns = True
                owner.run(self._stopping)
        finally:
            self._metrics.owner(False)
            self._connection.close()


log = structlog.get_logger("push")

_RETRY_S: Final = (0.2, 5.0)


def _ends(error: Exception, worked: bool) -> bool:
    """Whether an error of a session ends the process; ``worked``: a session of this process has worked before."""
    if isinstance(error, TerminatedError) or (isinstance(error, RefusedError) and not worked):
        return True
    return isinstance(error, TerminalError) and not isinstance(error, (RefusedError, ContractError))


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
        self._settings = settings
        self._payloads = payloads
        self.partition = partition
        self._metrics = metrics
        self._part = part
        self._failed = failed
        self._trace = trace
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name=f"push-{partition}", daemon=True)

    def start(self) -> None:
        """Start the partition's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for a clean end: push nothing new, wait for what is under way, close."""
        self._stopping.set()
        session = self._session
        if session is not None:
            session.wake()

    def cursors_forgotten(self) -> None:
        """Have the cursors written again that Pulsar has lost. From any thread."""
        session = self._session
        if session is not None:
            session.post(CursorsForgotten())

    def cursors_aged(self) -> bool:
        """Have the records of the cursors partition written again, slowly. From any thread; returns whether this process
        owns the partition.
        """
        session = self._session
        if session is None or not session.owns:
            return False
        session.post(CursorsAged())
        return True

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._run_sessions()
        except BaseException as e:
            self._part.failed(str(e))
            self._failed(e)
            if not isinstance(e, PulsebridgeError):
                raise

    def _run_sessions(self) -> None:
        wait = _RETRY_S[0]
        worked = False
        while not self._stopping.is_set():
            had_state = self._session is not None and self._session.owns
            session = self._session = Session(
                self._settings,
                self.partition,
                self._metrics,
                self._part,
                self._stopping,
                self._payloads,
                self._trace,
            )
            if had_state:
                let_go()
            try:
                session.run()
            except FencedError as e:
                self._metrics.all.counters["partitions_lost"].inc()
                self._part.stands_by("another process owns it")
                log.info("partition went to another process", partition=self.partition, why=str(e))
            except Exception as e:
                worked = worked or session.owns
                if _ends(e, worked):
                    raise
                # It may succeed later: a token is rotated, a right granted, a topic re-created.
                self._metrics.all.counters["partitions_lost"].inc()
                self._part.waits(str(e))
                if isinstance(e, (TransientError, RefusedError)):
                    log.warning(
                        "push lost a partition and tries again. Action: see that Pulsar is up and accepts push",
                        partition=self.partition,
                        why=str(e),
                    )
                else:
                    log.exception(
                        "an unexpected error ended the session of a partition, and push tries again. Action: report it",
                        partition=self.partition,
                    )
                self._stopping.wait(wait)
                wait = min(2 * wait, _RETRY_S[1])
                continue
            wait = _RETRY_S[0]
            worked = worked or session.owns

"""Supervises one partition: one session after another, for as long as the process runs, in a thread of its own.

After a session ends it decides what follows. If another process owns the partition, it waits; if Pulsar is unreachable, it
tries again; so it does after an unexpected error, which it logs as a defect: one message must not end the other partitions.
Only an error that a person has to fix (TerminalError) ends the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from bridge.push.cursor_log import CursorsAged, CursorsForgotten
from bridge.push.groups.payloads import Payloads
from bridge.push.limits import Limits, limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.owner import Owner
from bridge.push.partition_log import CommandSource
from bridge.push.threads import Budget
from bridge.settings import Settings

__all__ = ["PartitionSupervisor", "Session"]


log = structlog.get_logger("push")


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
        """Wait for the ownership, take over, and push until the process stops, or the clock is set back.

        Raises FencedError or TransientError.
        """
        try:
            if not self._wait():
                return
            with excluded_objects():
                owner = self._take_over()
            if owner is not None:
                self.owns = True
                owner.run(self._stopping)
        finally:
            self._metrics.owner(False)
            self._connection.close()

    def _wait(self) -> bool:
        """Wait for the exclusive producer. Returns False when the process stops."""
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

    def _take_over(self) -> Owner | None:
        """Become the owner. Returns None when the process stops. Raises FencedError or TransientError."""
        settings, connection = self._settings, self._connection
        ownership = connection.ownership
        if not connection.turns_until(lambda: ownership.proven_epoch > 0):
            return None
        limits = limits_of(settings.push)
        cursors = connection.log.cursors.read(ownership.first, limits.remembered_ids)
        ownership.own = cursors.until
        budget = Budget(limits.pending, limits.pending_bytes)
        source = self._subscribe(budget, limits)
        if source is None:
            return None
        return Owner(settings, connection, source, cursors, budget, self._metrics, self._payloads, self._trace)

    def _subscribe(self, budget: Budget, limits: Limits) -> CommandSource | None:
        while True:
            try:
                return self._connection.log.subscribe(budget, limits.pending_bytes, limits.resume.most)
            except FencedError:
                # Pulsar has not noticed that the former owner's connection is dead.
                if not self._connection.turns_until(_after(0.2)):
                    return None


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


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
        self.partition = partition
        self._metrics = metrics
        self._part = part
        self._failed = failed
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._open: Callable[[], Session] = lambda: Session(
            settings, partition, metrics, part, self._stopping, payloads, trace
        )
        thread = threading.Thread(target=self._run, name=f"push-{partition}", daemon=True)
        self.start, self.join = thread.start, thread.join

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
            session = self._session = self._open()
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

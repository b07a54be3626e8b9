"""A standby: waits for the ownership of a partition, takes it over, and becomes its owner.

Order of a takeover (H23). It ends, and begins again as a standby, wherever Pulsar reports that another process is the owner:

1. The exclusive producer of the cursors partition: Pulsar grants it to one process, and fences the former one.
2. MQTT connect with the client id ``<push.client_id>-<partition>``: the broker's session takeover ends the connection of
   a former owner that has not noticed.
3. An owner record, written through that producer: its receipt proves the ownership.
4. The cursors partition, read up to that record: no other process wrote after it.
5. The commands subscription, exclusive.
6. Outdated cursors, written again, and behind them the record that our term begins. Then commands are sent.

When the MQTT connection is lost, step 3 precedes the next attempt to connect, and follows it, and nothing is sent before
the partition was read from the last record that was certainly ours up to the new one (``ownership``). So a former owner
neither ends its successor's connection nor continues with outdated state: without the proof it gives up everything, the
exclusive subscription included. Every acknowledgement comes after a cursor write's receipt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from bridge.collector import excluded_objects
from bridge.errors import FencedError, TransientError
from bridge.health import Part
from bridge.killpoints import reach
from bridge.push.connection import Connection
from bridge.push.cursor_log import Cursors
from bridge.push.cursor_rewriter import CursorRewriter
from bridge.push.groups.payloads import Payloads
from bridge.push.limits import limits_of
from bridge.push.metrics import PartitionMetrics
from bridge.push.owner import Owner
from bridge.push.partition import Partition
from bridge.push.partition_log import CommandSource
from bridge.push.threads import Budget
from bridge.push.wall_clock import WallClock
from bridge.settings import Settings
from bridge.unreadable import leave_out

__all__ = ["Standby"]

log = structlog.get_logger("push")


class Standby:
    """Waits for one partition, on the partition's thread."""

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
        source = self._subscribe(budget, pending_bytes, limits.resume_max)
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

    def _serve(self, owner: Owner, cursors: Cursors) -> None:
        connection = self._connection
        owner.begin()
        # Nothing is sent before this is stored, behind the secret by which the next owner verifies our tags.
        connection.ownership.proven_epoch = 0
        connection.ownership.write(connection.link.epoch)
        self._metrics.all.takeovers.inc()
        self._metrics.owner(True)
        log.info("partition is ours", partition=self._partition, devices=len(cursors.by_device))


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end

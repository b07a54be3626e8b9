"""An owner: the shell around the core of a partition that this process owns."""

from __future__ import annotations

import threading
import time
from typing import Final

import structlog

from bridge.contract.commands import CommandPosition
from bridge.health import Part
from bridge.mqtt.types import Disconnected
from bridge.push.connection import Connection, Receiver
from bridge.push.cursor_log import Stored
from bridge.push.cursor_rewriter import CursorRewriter, CursorsAged, CursorsForgotten
from bridge.push.effects import Effects
from bridge.push.groups.payloads import PayloadCame, Payloads
from bridge.push.metrics import PartitionMetrics
from bridge.push.partition import Partition
from bridge.push.partition_log import Arrived, CommandSource
from bridge.push.position_tags import PositionTags
from bridge.push.presence_log import Seen
from bridge.push.puller import Copied, Pulled
from bridge.push.receipt_log import ReceiptsOpened, ReceiptsWritten
from bridge.push.request_log import Asked, Found
from bridge.push.retention_mover import RetentionMover
from bridge.push.threads import Budget
from bridge.push.tracing import Observer, Tracer
from bridge.push.wall_clock import WallClock
from bridge.settings import Settings

__all__ = ["Owner"]

log = structlog.get_logger("push")

_SHOWN: Final = 200


class Owner(Receiver):
    """The owner of one partition; all of it runs on the partition's thread."""

    owns = True

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        source: CommandSource,
        core: Partition,
        rewriter: CursorRewriter,
        budget: Budget,
        secret: bytes,
        metrics: PartitionMetrics,
        part: Part,
        payloads: Payloads,
        clock: WallClock,
        trace: str,
    ) -> None:
        """``secret`` is the partition's, by which it verifies the positions that devices send."""
        self._settings = settings
        self._connection = connection
        self._source = source
        self._core = core
        self._rewriter = rewriter
        self._budget = budget
        self._metrics = metrics
        self._part = part
        self._payloads = payloads
        self._clock = clock
        self._log = connection.log
        self._next_look = 0.0
        every_s, now = settings.push.offline.relocate_after, time.monotonic()
        self._retention = RetentionMover(core, source.puller, source.last, every_s=every_s, now=now)
        self._effects = Effects(
            settings,
            core,
            connection.link,
            connection.log,
            source,
            budget,
            metrics.all,
            self._ask,
            PositionTags(secret, connection.log.partition),
            Tracer(trace, core, connection.log.partition, settings.push.confirm) if trace else Observer(),
        )

    def _ask(self, position: CommandPosition) -> bytes | None:
        return self._payloads.ask(position, lambda at, payload: self._connection.post(PayloadCame(at, payload)))

    # --- the session ---

    def begin(self) -> None:
        """Take over the connection, and what came on it before."""
        self._connection.serve(self)
        self._connection.inbound.serve(self._core, self._effects.answered)

    def run(self, stopping: threading.Event) -> None:
        """Push until the process stops, or the clock is set back; then wait for what is under way.

        Raises FencedError or TransientError.
        """
        core = self._core
        while not stopping.is_set() and not self._clock.was_set_back(self._log.partition):
            due = core.next_time_us()
            self._connection.turn(1.0 if due is None else min(1.0, max(0.0, due / 1e6 - time.time())))
        self._budget.close()
        self._source.puller.drain()
        core.drain()
        self._rewriter.drain()
        self._drain(time.monotonic() + self._settings.push.drain)

    def _drain(self, end: float) -> None:
        ownership = self._connection.ownership
        while not self._core.settled and not ownership.lost and time.monotonic() < end:
            self._connection.drain_turn()
        if self._core.clean and not ownership.lost:
            proof = ownership.write(0, clean=True)
            while not proof.stored and not ownership.lost and time.monotonic() < end:
                self._connection.drain_turn()

    # --- what happens on the connection ---

    @property
    def busy(self) -> bool:
        """Whether a scan is under way, of which each turn takes a part."""
        return self._core.retention.scanning

    def link_up(self) -> None:
        """The connection is up and ours: send."""
        self._core.link_up(reports_absence=self._connection.inbound.reports_absence)
        self._effects.link_up()
        self._part.ready()

    def link_down(self, event: Disconnected) -> None:
        """The connection ended, or an attempt to connect failed."""
        if not event.epoch:
            self._core.flights.broker_unreachable()
        self._core.link_down(time.time_ns() // 1000, closed=self._effects.link_down(event))

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
            self._metrics.show(core, now_us)
            self._drop_silent_connection()
        self._retention.turn(now, now_us, proven=self._connection.connected)

    def _drop_silent_connection(self) -> None:
        """A PUBACK that does not come would block its device and its place in the window as long as the link is up."""
        link = self._connection.link
        topic = self._effects.overdue() if link.connected else None
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
        effects = self._effects
        if isinstance(event, Arrived):
            effects.arrived(event.message)
        elif isinstance(event, Stored):
            self._stored(event.token)
        elif isinstance(event, ReceiptsWritten):
            for token in self._log.receipts.written(event):
                effects.stored(token)
        elif isinstance(event, Pulled):
            effects.pulled(event)
        elif isinstance(event, Copied):
            effects.copied(event)
        elif isinstance(event, Seen):
            self._connection.inbound.seen(event)
        elif isinstance(event, PayloadCame):
            effects.payload_came(event.position, event.payload)
        elif isinstance(event, Asked):
            effects.resume.asked(event)
        elif isinstance(event, Found):
            effects.resume.found(event)
            self._retention.move_back()
        elif isinstance(event, ReceiptsOpened):
            self._log.receipts.opened(event, time.monotonic())
        elif isinstance(event, (CursorsForgotten, CursorsAged)):
            log.info("push writes the cursors again", partition=self._log.partition)
            self._connection.ownership.write(0)  # an owner that left no record counts as none
            self._rewriter.begin(event, self._core)

    def _stored(self, token: object) -> None:
        if token is CursorsForgotten:
            self._rewriter.stored()
        else:
            self._effects.stored(token)

"""The driver's part of a streaming query: first offset, planning of each trigger, commit.

Runs in Spark's planner process of the query. All calls come from the query's thread, one at a time.
``sources.planning`` has the arithmetic, ``sources.retention`` the subscription. While admin or broker is unreachable, a
query gets no new data; then it continues.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from bridge.contract import Position, base_topic
from bridge.errors import ConfigError, PulsebridgeError, TerminalError, TransientError
from bridge.killpoints import reach
from bridge.loggers import configure_later, get_logger
from bridge.pulsar.client import PulsarClient
from bridge.settings.files import DEFAULT_FILE, PREFIX
from bridge.settings.log import LogSettings
from sources.binary import BinaryTopics
from sources.chunks import ChunkGuard
from sources.fallback import FallbackCatalog
from sources.hot_tail import HotTail
from sources.lag import BEHIND, Lag, as_json
from sources.offsets import Offset
from sources.options import SourceOptions
from sources.planning import Limits, PartitionView, in_force, loss_error, losses, plan
from sources.policies import expiry_error
from sources.quota import QuotaWatch
from sources.reading import ReadTask, read_kept
from sources.retention import RetentionSubscription, SubscriptionRecord
from sources.starting import resolve
from sources.tasks import read_tasks

__all__ = ["StreamPlanner"]

T = TypeVar("T")

_log = get_logger("source")
_RETRY_S: Final = 30.0
_ROWS_S: Final = 10.0
"""How long the rows per entry of a partition stay valid."""
_LOOK_S: Final = 1.0
"""How often the admin is asked for partitions and ledgers while the hot tail works."""
_FOLLOW_S: Final = 5.0
_NEW_PARTITION: Final = "new partition: earliest"


class StreamPlanner:
    """The driver's part of one streaming query. Close it when the query stops; the subscription stays."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.subscription is not None, "parse() requires the name"
        configure_later(_log_settings())  # Spark starts the planner's process without a log configuration
        self._options = options
        self._client = PulsarClient(options.pulsar)
        self._catalog = FallbackCatalog(
            options, BinaryTopics(lambda: self._client, lambda partition: self._subscription.consumer(partition))
        )
        self._subscription = RetentionSubscription(
            options.subscription, self._catalog.admin, self._client, wait_s=options.subscription_wait_s
        )
        self._tail = HotTail(options.pulsar, options.hot_tail_bytes) if options.hot_tail_bytes else None
        self._views: dict[str, PartitionView] = {}
        self._partitions: dict[str, str] = {}
        self._looked_at = -math.inf
        """Time of the last request for both, seconds of the monotonic clock."""
        self._ceiling: dict[str, Position] | None = None
        self._initial: Offset | None = None
        self._last: Offset | None = None
        """The last offset that Spark passed or received, if Spark does not pass it itself."""
        self._planned: Offset | None = None
        self._resumed = False
        self._unreachable = False
        self._rows: tuple[float, dict[str, float]] = (0.0, {})
        self._chunks = ChunkGuard(options.subscription, self._catalog.chunk_parts)
        self._quota = QuotaWatch(options.subscription, self._catalog.quotas)
        self._lag = Lag(self._catalog.published_ms)
        self._lost: set[str] = set()
        self._compared: set[tuple[str, Position]] = set()
        """Positions whose ledger is gone, of topics that are still the same."""
        self._took_at: float | None = None
        """When a trigger last read entries, seconds of the monotonic clock."""

    def close(self) -> None:
        """Release everything; the subscription stays and retains data."""
        if self._tail is not None:
            self._tail.close()
        self._subscription.close()
        self._client.close()
        self._catalog.close()

    # --- called by Spark ---

    def initial_offset(self) -> Offset:
        """Return where a query without a committed batch begins, the same at each call (H12)."""
        if self._initial is None:
            self._initial = _retry_transient(self._first_offset)
            self._resumed = True
            reach("source_after_first_offset")
        return self._initial

    def note_ceiling(self) -> None:
        """Record the current end: Trigger.AvailableNow reads no further."""
        _retry_transient(lambda: self._ask(()))
        self._ceiling = {name: view.end for name, view in self._views.items()}

    def latest_offset(self, start: Offset, limits: Limits) -> Offset:
        """Return where the next trigger ends: ``start`` itself if there is no new data."""
        self._resume(start)
        if self._ceiling is not None:  # Trigger.AvailableNow: no new data stops the query
            end = _retry_transient(lambda: self._plan(start, limits))
            new = self._initial is not None and start.positions == self._initial.positions
            if end.positions == start.positions and not new:
                self._commit_last(start)
            return end
        try:
            end = self._plan(start, limits)
        except TransientError as e:
            if not self._unreachable:
                _log.warning("Pulsar is unreachable, the query waits. Action: check that Pulsar runs", error=str(e))
            self._unreachable = True
            return start
        if self._unreachable:
            _log.info("Pulsar is reachable, the query continues")
            self._unreachable = False
        return end

    def present_end(self) -> Offset:
        """Return the current end, for a Spark that does not pass the last offset.

        Such a Spark passes it to ``tasks`` beforehand, unless the query is new or runs with Trigger.AvailableNow, which
        calls this once. Then the checkpoint's offset is used when the batch is planned.
        """
        last = self._last
        self._last = _retry_transient(self._end_of_all) if last is None else self.latest_offset(last, Limits())
        return self._last

    def report_latest(self) -> dict[str, Any] | None:
        """Return the end and the lag at the last trigger, for the query's progress."""
        if self._planned is None:
            return None
        positions = self._planned.positions
        latest = self._planned.moved_to({n: self._views[n].end for n in positions if n in self._views})
        return {**latest.to_json(), BEHIND: as_json(self._lag.of(self._views, positions))}

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """Return the tasks that read from ``start`` to ``end``; each run gives the same rows."""
        self._resume(start)
        self._last = end
        if not _covers(self._views, end.positions):
            self._views = _retry_transient(lambda: self._catalog.snapshot(end.positions))
            self._refuse_loss(start.positions)
        return read_tasks(self._options, self._views, self._begins(start, end), end.positions)

    def rows_at_hand(self, start: Offset, end: Offset, tasks: Sequence[ReadTask]) -> list[list[Any]] | None:
        """Return the Arrow record batches of each task; None if the tasks must read them."""
        if self._tail is None or self._options.min_partitions is not None:
            return None
        kept = self._tail.take(self._begins(start, end), end.positions, tasks)
        if kept is None:
            return None
        try:
            return [read_kept(task, entries) for task, entries in zip(tasks, kept, strict=True)]
        except PulsebridgeError as e:  # the tasks get the same error, and Spark retries them
            _log.debug("the rows in the hot tail cannot be used, the tasks read them", error=str(e))
            return None

    def _begins(self, start: Offset, end: Offset) -> dict[str, Position]:
        return {name: start.positions.get(name) or self._found(name).start for name in end.positions}

    def commit(self, end: Offset) -> None:
        """Let Pulsar trim the entries before ``end``, which the checkpoint has."""
        try:
            if not _covers(self._views, end.positions):
                self._views = self._catalog.snapshot(end.positions)
            self._subscription.commit(self._views, self._chunks.safe(self._views, end.positions))
            if self._tail is not None:
                self._tail.forget(end.positions)
        except TransientError as e:
            _log.warning(
                "the commit did not reach Pulsar, which keeps more until the next one. "
                "Action: check Pulsar if this repeats",
                error=str(e),
            )

    def _commit_last(self, end: Offset) -> None:
        """Commit the last batch of AvailableNow, which Spark does not commit.

        Waits a moment until Pulsar has applied it: the client delays acknowledgements, and drops them at its close.
        """
        self.commit(end)
        until = time.monotonic() + _FOLLOW_S
        try:
            while self._subscription.waits and time.monotonic() < until:
                time.sleep(0.02)
                self._views = self._catalog.snapshot(end.positions)
                self._subscription.check(self._views)
        except TransientError as e:
            _log.debug("the subscription did not visibly follow the last commit", error=str(e))

    # --- the first offset, and continuing from a checkpoint ---

    def _first_offset(self) -> Offset:
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._ask(())
        # A retry must read the subscriptions that the failed attempt made.
        looked_at, self._looked_at = self._looked_at, -math.inf
        partitions, views = self._partitions, self._views
        if self._catalog.without_admin:
            raise TransientError(
                "a new query needs Pulsar's admin: only it reports whether the subscription belongs to another "
                "checkpoint",
                remedy="correct admin.url, or make it reachable",
            )
        if self._options.wait_for_topics:
            partitions = {name: topic for name, topic in partitions.items() if name in views}
        else:
            self._catalog.refuse_missing(partitions, views)
        self._look_at_expiry(refuse=self._options.fail_on_data_loss)
        marks = self._catalog.incarnations(dict.fromkeys(partitions.values()), mark=True)
        name = self._subscription.name
        existing = [partition for partition in partitions if name in views[partition].mark_deletes]
        self._subscription.attach(existing)
        starts: dict[str, Position] = {}
        for partition in partitions:
            starts[partition] = self._begin(partition, views[partition], partition in existing)
            reach("source_in_first_offset")
        self._subscription.attach(partitions)
        self._looked_at = looked_at
        return Offset(self._catalog.cluster(), starts, marks)

    def _begin(self, partition: str, view: PartitionView, existing: bool) -> Position:
        """Return where one partition begins, and ensure that its subscription is there."""
        text = self._options.starting.text
        if self._options.reuse is not None:  # distinguishes it from a subscription made without reuseSubscription
            text = f"{self._options.reuse}: {text}"
        record = self._subscription.record(partition) if existing else None
        if record is not None and not record.committed and record.starting in (text, _NEW_PARTITION):
            return record.start
        if not existing:
            start = self._asked_start(partition, view)
            self._subscription.create(partition, SubscriptionRecord(text, start, False))
            return start
        if self._options.reuse == "position":
            start = _following(view.mark_deletes[self._subscription.name], view)
            self._subscription.adopt(partition, SubscriptionRecord(text, start, False))
            return start
        if self._options.reuse == "resolve":
            start = self._asked_start(partition, view)
            self._subscription.move(partition, SubscriptionRecord(text, start, False))
            return start
        raise TerminalError(
            _in_use(self._subscription.name, partition, record, text),
            remedy=(
                "start from the checkpoint that used it, or give predefinedSubscription (of `pulsebridge stream`: "
                "streaming.subscription) a new name, or delete the subscription, or set reuseSubscription=position "
                "(continue at its position) or =resolve (move it to startingOffsets)"
            ),
        )

    def _asked_start(self, partition: str, view: PartitionView) -> Position:
        start = resolve(self._options.starting, view, self._catalog)
        # After an end was returned, later entries belong to the query.
        return start if self._last is None else min(start, self._last.positions.get(partition, start))

    def _resume(self, start: Offset) -> None:
        """Once, if the query continues from a checkpoint: check its topics, and attach the subscription."""
        if self._resumed:
            return
        _retry_transient(lambda: self._attach_to(start))
        self._resumed = True

    def _attach_to(self, start: Offset) -> None:
        marks = self._catalog.incarnations(start.incarnations, mark=False)
        start.refuse_mismatch(self._catalog.cluster(), marks)
        self._views = self._catalog.snapshot(start.positions)
        self._refuse_loss(start.positions)
        self._look_at_expiry()
        for partition, position in start.positions.items():
            if self._catalog.without_admin or partition not in self._views:
                continue
            if self._subscription.name not in self._views[partition].mark_deletes:
                _log.warning(
                    "the retention subscription was missing and was re-created at the checkpoint. "
                    "Action: do not delete it while the query is in use",
                    subscription=self._subscription.name,
                    partition=partition,
                )
                self._subscription.create(partition, SubscriptionRecord("checkpoint", position, True))
        self._subscription.attach(name for name in start.positions if name in self._views)

    def _end_of_all(self) -> Offset:
        """Return the end of every existing partition, without regard to the checkpoint."""
        partitions = self._catalog.partitions()
        views = self._views = self._catalog.snapshot(partitions)
        if self._catalog.without_admin:
            raise TransientError(
                "with a Spark before 4.2 a query needs Pulsar's admin to begin: only it reports the end of the topics",
                remedy="correct admin.url, or make it reachable",
            )
        found = {name: topic for name, topic in partitions.items() if name in views}
        marks = self._catalog.incarnations(dict.fromkeys(found.values()), mark=True)
        return Offset(self._catalog.cluster(), {name: views[name].end for name in found}, marks)

    # --- a trigger ---

    def _plan(self, start: Offset, limits: Limits) -> Offset:
        self._look(start)
        partitions, views = self._partitions, self._views
        begins = dict(start.positions)
        for name in partitions:
            if name in begins or name not in views or self._catalog.without_admin:
                continue
            if self._ceiling is None or name in self._ceiling:
                begins[name] = self._found(name).start
        stops = self._stops(views, begins, limits)
        # A new partition enters the offset with its first data, so that an idle query makes no batch.
        moved = {name: end for name, end in stops.items() if name in start.positions or end != begins[name]}
        topics = {partitions[name] for name in moved if name in partitions}
        self._planned = start.moved_to(moved).marked(
            self._catalog.incarnations(topics - start.incarnations.keys(), mark=True)
        )
        if self._planned != start:
            reach("source_after_plan")
        return self._planned

    def _look(self, start: Offset) -> None:
        """Update partitions and views, and check that the data of the query still exists."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            known = None
            if self._ceiling is not None:  # nothing later is read
                known = self._views if self._views.keys() >= start.positions.keys() | self._ceiling.keys() else None
            elif self._tail is not None:
                known = self._tail.grown(self._views, start.positions)
            if known is not None:
                self._views = known
                return
        self._ask(start.positions)
        self._refuse_recreated(start)
        self._refuse_loss(start.positions)
        if not self._catalog.without_admin:
            self._subscription.check(self._views)
            self._quota.look(self._views, self._partitions)

    def _ask(self, positions: Mapping[str, Position] | tuple[()]) -> None:
        """Request the partitions, and views of them and of those in ``positions``, from the admin."""
        at = time.monotonic()
        self._partitions = self._catalog.partitions()
        self._views = self._catalog.snapshot({**self._partitions, **dict(positions)})
        self._looked_at = at

    def _stops(
        self, views: Mapping[str, PartitionView], begins: Mapping[str, Position], limits: Limits
    ) -> dict[str, Position]:
        """Return where the trigger ends in each partition, and log the decisive limit at DEBUG."""
        counted = limits.rows is not None or limits.least_rows is not None
        rows = self._rows_per_entry(views, begins) if counted else {}
        limit = in_force(views, begins, limits, ceiling=self._ceiling, rows_per_entry=rows)
        stops = plan(views, begins, limits, ceiling=self._ceiling, rows_per_entry=rows)
        counts = {name: views[name].backlog(begins[name], end)[0] for name, end in stops.items() if name in views}
        entries, now = sum(counts.values()), time.monotonic()
        waiting = sum(count * rows.get(name, 1.0) for name, count in counts.items())
        since = math.inf if self._took_at is None else now - self._took_at
        # Trigger.AvailableNow, which has a ceiling, never waits.
        if entries and limit == "none" and self._ceiling is None and limits.waits_for(waiting, since):
            limit, entries, stops = f"minRowsPerTrigger={limits.least_rows}", 0, dict(begins)
        if entries:
            self._took_at = now
        _log.debug("trigger", limit=limit, entries=entries, partitions=sum(1 for n in counts if stops[n] != begins[n]))
        return stops

    def _found(self, partition: str) -> SubscriptionRecord:
        """Return the record of a partition found while running. It is retained from its first entry on (H11).

        An existing subscription without such a record is Pulsar's copy of the first partition's.
        """
        record = self._subscription.known(partition) or self._subscription.record(partition)
        if record is None or record.starting != _NEW_PARTITION:
            record = SubscriptionRecord(_NEW_PARTITION, self._views[partition].start, False)
            self._subscription.create(partition, record)
        self._subscription.attach([partition])
        self._subscription.remember(partition, record)
        return record

    def _look_at_expiry(self, *, refuse: bool = False) -> None:
        found = self._catalog.expiry(self._catalog.topics)
        if found and refuse:
            raise expiry_error(found)
        for what, command in found:
            _log.warning(
                "a policy can delete unread data of the query. Action: turn it off",
                reason=what,
                command=command,
            )

    def _refuse_recreated(self, start: Offset) -> None:
        """Compare the marks of topics that lack the ledger of their offset, once per position.

        Pulsar's client resubscribes by itself to a re-created topic, at its first entry. Then all earlier entries
        seem to be read and trimmed.
        """
        gone = {
            (name, position)
            for name, position in start.positions.items()
            if name in self._views and all(of.id != position.ledger for of in self._views[name].ledgers)
        }
        if new := gone - self._compared:
            marks = self._catalog.incarnations({base_topic(name) for name, _ in new}, mark=False)
            start.refuse_mismatch(start.cluster, marks)
        self._compared = gone

    def _refuse_loss(self, positions: Mapping[str, Position]) -> None:
        found = losses(self._views, positions, self._subscription.name)
        if not found:
            return
        recreated = [n for n, position in positions.items() if n in self._views and self._views[n].beyond(position)]
        if self._options.fail_on_data_loss or recreated:
            raise loss_error(found)
        if self._lost.issuperset(found):  # already logged
            return
        self._lost.update(found)
        _log.warning(
            "data is gone; the query continues, because failOnDataLoss is off. "
            "Action: raise the retention to keep more",
            lost=found,
        )

    def _rows_per_entry(self, views: Mapping[str, PartitionView], starts: Mapping[str, Position]) -> dict[str, float]:
        at, rows = self._rows
        if not self._catalog.without_admin and (not rows or time.monotonic() - at > _ROWS_S):
            following = {n: views[n].segments(position) for n, position in starts.items() if n in views}
            rows = self._catalog.rows_per_entry(
                {n: Position(found[0].ledger, found[0].first) for n, found in following.items() if found}
            )
            self._rows = (time.monotonic(), rows)
        return rows


def _log_settings() -> LogSettings:
    """Return the log settings of the driver's environment, or of its pulsebridge.yaml."""
    # Loading all settings adds a tenth of a second to each query's start.
    if not DEFAULT_FILE.exists() and not any(name.startswith(PREFIX) for name in os.environ):
        return LogSettings()
    from bridge.settings.loading import load

    try:
        return load().log
    except ConfigError:  # of settings that the query does not use
        return LogSettings()


def _covers(views: Mapping[str, PartitionView], stops: Mapping[str, Position]) -> bool:
    return all(name in views and views[name].end >= end for name, end in stops.items())


def _following(mark_delete: Position, view: PartitionView) -> Position:
    return max(Position(mark_delete.ledger, mark_delete.entry + 1), view.start)


def _in_use(name: str, partition: str, record: SubscriptionRecord | None, text: str) -> str:
    what = f"subscription {name!r} on {partition}"
    if record is None:
        return f"{what} was not made by this source"
    if record.committed:
        return f"{what} belongs to a query that has committed batches already, and this checkpoint is new"
    return f"{what} was made for startingOffsets={record.starting}, this query has {text}"


def _retry_transient(act: Callable[[], T]) -> T:
    """Run ``act``, and retry it for half a minute after transient errors."""
    until = time.monotonic() + _RETRY_S
    while True:
        try:
            return act()
        except TransientError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)

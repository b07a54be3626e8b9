"""What a streaming query does on the driver: first offset, planning of each trigger, commit.

Lives in the planner process that Spark keeps for a running query; every call comes from the query's own thread, one
at a time. The arithmetic is in ``sources.planning``, the subscription in ``sources.hold``. A query whose admin or
broker is away for a while gets no new data and goes on when it is back.
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
from bridge.pulsar_client import PulsarClient
from bridge.settings.files import DEFAULT_FILE, PREFIX
from bridge.settings.log import LogSettings
from sources.binary import BinaryTopics
from sources.chunks import ChunkGuard
from sources.fallback import FallbackCatalog
from sources.hold import Hold, HoldRecord
from sources.hot_tail import HotTail
from sources.lag import BEHIND, Lag, as_json
from sources.offsets import Offset
from sources.options import SourceOptions
from sources.planning import Limits, PartitionView, in_force, loss_error, losses, plan
from sources.policies import expiry_error
from sources.quota import QuotaWatch
from sources.reading import ReadTask, read_kept
from sources.starting import resolve
from sources.tasks import read_tasks

__all__ = ["StreamPlanner"]

T = TypeVar("T")

_log = get_logger("source")
_RETRY_S: Final = 30.0
_ROWS_S: Final = 10.0
"""How long the rows per entry of a partition are believed."""
_LOOK_S: Final = 1.0
"""How often Pulsar's admin is asked for partitions and ledgers while the hot tail receives what is new."""
_FOLLOW_S: Final = 5.0
_NEW_PARTITION: Final = "new partition: earliest"


class StreamPlanner:
    """The driver's side of one streaming query. Close it when the query stops; the subscription stays."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.subscription is not None, "parse() requires the name"
        configure_later(_log_settings())  # the planner's process is Spark's, which configures no log
        self._options = options
        self._client = PulsarClient(options.pulsar)
        self._catalog = FallbackCatalog(
            options, BinaryTopics(lambda: self._client, lambda partition: self._hold.consumer(partition))
        )
        self._hold = Hold(options.subscription, self._catalog.admin, self._client, wait_s=options.subscription_wait_s)
        self._tail = HotTail(options.pulsar, options.hot_tail_bytes) if options.hot_tail_bytes else None
        self._views: dict[str, PartitionView] = {}
        self._partitions: dict[str, str] = {}
        self._looked_at = -math.inf
        """When the admin was asked for both, seconds of the monotonic clock."""
        self._ceiling: dict[str, Position] | None = None
        self._initial: Offset | None = None
        self._last: Offset | None = None
        """The last offset that Spark spoke of or was given, for a Spark that does not name it."""
        self._planned: Offset | None = None
        self._resumed = False
        self._away = False
        self._rows: tuple[float, dict[str, float]] = (0.0, {})
        self._chunks = ChunkGuard(options.subscription, self._catalog.chunk_parts)
        self._quota = QuotaWatch(options.subscription, self._catalog.quotas)
        self._lag = Lag(self._catalog.published_ms)
        self._lost: set[str] = set()
        self._same: set[tuple[str, Position]] = set()
        """Places whose ledger is gone, of topics that are still the same."""
        self._took_at: float | None = None
        """When a trigger last took something, seconds of the monotonic clock."""

    def close(self) -> None:
        """Give everything free; the subscription stays and goes on holding."""
        if self._tail is not None:
            self._tail.close()
        self._hold.close()
        self._client.close()
        self._catalog.close()

    # --- what Spark calls ---

    def initial_offset(self) -> Offset:
        """Return where a query without a committed batch begins, the same each time (H12)."""
        if self._initial is None:
            self._initial = _patiently(self._first_offset)
            self._resumed = True
            reach("source_after_first_offset")
        return self._initial

    def note_ceiling(self) -> None:
        """Note the present end: Trigger.AvailableNow reads no further."""
        _patiently(lambda: self._ask(()))
        self._ceiling = {name: view.end for name, view in self._views.items()}

    def latest_offset(self, start: Offset, limits: Limits) -> Offset:
        """Return where the next trigger ends: ``start`` itself when there is nothing new."""
        self._resume(start)
        if self._ceiling is not None:  # Trigger.AvailableNow: no data means that all is read
            end = _patiently(lambda: self._plan(start, limits))
            new = self._initial is not None and start.positions == self._initial.positions
            if end.positions == start.positions and not new:
                self._commit_last(start)
            return end
        try:
            end = self._plan(start, limits)
        except TransientError as e:
            if not self._away:
                _log.warning("Pulsar is away, the query waits for it; check that it runs", error=str(e))
            self._away = True
            return start
        if self._away:
            _log.info("Pulsar is back, the query goes on")
            self._away = False
        return end

    def present_end(self) -> Offset:
        """Return the end of what is there, for a Spark that does not say which offset was the last.

        It names that one beforehand, to ``tasks``, unless the query is new or Trigger.AvailableNow, which asks once:
        then what the checkpoint has is looked at when the batch is planned.
        """
        last = self._last
        self._last = _patiently(self._end_of_all) if last is None else self.latest_offset(last, Limits())
        return self._last

    def report_latest(self) -> dict[str, Any] | None:
        """Return the end of the partitions as the last trigger saw it, with what that trigger leaves unread, for the
        query's progress.
        """
        if self._planned is None:
            return None
        places = self._planned.positions
        latest = self._planned.moved_to({n: self._views[n].end for n in places if n in self._views})
        return {**latest.to_json(), BEHIND: as_json(self._lag.of(self._views, places))}

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """Return the tasks that read from ``start`` to ``end``; the same rows each time they are run."""
        self._resume(start)
        self._last = end
        if not _covers(self._views, end.positions):
            self._views = _patiently(lambda: self._catalog.snapshot(end.positions))
            self._refuse_loss(start.positions)
        return read_tasks(self._options, self._views, self._begins(start, end), end.positions)

    def rows_at_hand(self, start: Offset, end: Offset, tasks: Sequence[ReadTask]) -> list[list[Any]] | None:
        """Return the Arrow record batches that each task would read; None where they have to."""
        if self._tail is None or self._options.min_partitions is not None:
            return None
        kept = self._tail.take(self._begins(start, end), end.positions, tasks)
        if kept is None:
            return None
        try:
            return [read_kept(task, entries) for task, entries in zip(tasks, kept, strict=True)]
        except PulsebridgeError as e:  # the tasks meet it as well, and Spark tries them again
            _log.debug("the rows in the hot tail cannot be given, the tasks read them", error=str(e))
            return None

    def _begins(self, start: Offset, end: Offset) -> dict[str, Position]:
        return {name: start.positions.get(name) or self._found(name).start for name in end.positions}

    def commit(self, end: Offset) -> None:
        """Let Pulsar trim what lies before ``end``; the checkpoint has it."""
        try:
            if not _covers(self._views, end.positions):
                self._views = self._catalog.snapshot(end.positions)
            self._hold.commit(self._views, self._chunks.safe(self._views, end.positions))
            if self._tail is not None:
                self._tail.forget(end.positions)
        except TransientError as e:
            _log.warning(
                "the commit did not reach Pulsar, the next one will, and more is kept until then; check Pulsar if it repeats",
                error=str(e),
            )

    def _commit_last(self, end: Offset) -> None:
        """Commit the last batch of AvailableNow, which Spark itself does not. Waits a moment until Pulsar has followed: the
        client sends an acknowledgement later, and not when it is closed.
        """
        self.commit(end)
        until = time.monotonic() + _FOLLOW_S
        try:
            while self._hold.waits and time.monotonic() < until:
                time.sleep(0.1)
                self._views = self._catalog.snapshot(end.positions)
                self._hold.check(self._views)
        except TransientError as e:
            _log.debug("the subscription was not seen to follow the last commit", error=str(e))

    # --- the first offset, and going on from a checkpoint ---

    def _first_offset(self) -> Offset:
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._ask(())
        # A try after one that failed sees what that one has made.
        looked_at, self._looked_at = self._looked_at, -math.inf
        partitions, views = self._partitions, self._views
        if self._catalog.off:
            raise TransientError(
                "a new query needs Pulsar's admin: it alone tells whether the subscription belongs to another "
                "checkpoint",
                remedy="correct admin.url, or open the way to it",
            )
        if self._options.wait_for_topics:
            partitions = {name: topic for name, topic in partitions.items() if name in views}
        else:
            self._catalog.refuse_missing(partitions, views)
        self._look_at_expiry(refuse=self._options.fail_on_data_loss)
        marks = self._catalog.incarnations(dict.fromkeys(partitions.values()), mark=True)
        name = self._hold.name
        existing = [partition for partition in partitions if name in views[partition].holds]
        self._hold.attach(existing)
        starts: dict[str, Position] = {}
        for partition in partitions:
            starts[partition] = self._begin(partition, views[partition], partition in existing)
            reach("source_in_first_offset")
        self._hold.attach(partitions)
        self._looked_at = looked_at
        return Offset(self._catalog.cluster(), starts, marks)

    def _begin(self, partition: str, view: PartitionView, existing: bool) -> Position:
        """Return where one partition begins, having made its subscription stand there."""
        text = self._options.starting.text
        if self._options.reuse is not None:  # told apart from a subscription that was made without being told to
            text = f"{self._options.reuse}: {text}"
        record = self._hold.record(partition) if existing else None
        if record is not None and not record.committed and record.starting in (text, _NEW_PARTITION):
            return record.start
        if not existing:
            start = self._asked_start(partition, view)
            self._hold.create(partition, HoldRecord(text, start, False))
            return start
        if self._options.reuse == "position":
            start = _following(view.holds[self._hold.name], view)
            self._hold.adopt(partition, HoldRecord(text, start, False))
            return start
        if self._options.reuse == "resolve":
            start = self._asked_start(partition, view)
            self._hold.move(partition, HoldRecord(text, start, False))
            return start
        raise TerminalError(
            _in_use(self._hold.name, partition, record, text),
            remedy=(
                "start from the checkpoint that used it, or give predefinedSubscription (of `pulsebridge stream`: "
                "streaming.subscription) a new name, or delete the subscription, or set reuseSubscription=position (go on "
                "where it stands) or =resolve (move it to startingOffsets)"
            ),
        )

    def _asked_start(self, partition: str, view: PartitionView) -> Position:
        start = resolve(self._options.starting, view, self._catalog)
        # Where an end was given out before, what came since belongs to the query.
        return start if self._last is None else min(start, self._last.positions.get(partition, start))

    def _resume(self, start: Offset) -> None:
        """Once, when the query goes on from a checkpoint: it must belong here, and the hold must stand."""
        if self._resumed:
            return
        _patiently(lambda: self._attach_to(start))
        self._resumed = True

    def _attach_to(self, start: Offset) -> None:
        marks = self._catalog.incarnations(start.incarnations, mark=False)
        start.refuse_strangers(self._catalog.cluster(), marks)
        self._views = self._catalog.snapshot(start.positions)
        self._refuse_loss(start.positions)
        self._look_at_expiry()
        for partition, place in start.positions.items():
            if self._catalog.off or partition not in self._views:
                continue
            if self._hold.name not in self._views[partition].holds:
                _log.warning(
                    "the subscription that holds the query's data was gone, made anew at the checkpoint; "
                    "do not delete it while the query is in use",
                    subscription=self._hold.name,
                    partition=partition,
                )
                self._hold.create(partition, HoldRecord("checkpoint", place, True))
        self._hold.attach(name for name in start.positions if name in self._views)

    def _end_of_all(self) -> Offset:
        """Return the end of every partition that is there, whatever the checkpoint has."""
        partitions = self._catalog.partitions()
        views = self._views = self._catalog.snapshot(partitions)
        if self._catalog.off:
            raise TransientError(
                "with a Spark before 4.2 a query needs Pulsar's admin to begin: it alone tells the end of the topics",
                remedy="correct admin.url, or open the way to it",
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
            if name in begins or name not in views or self._catalog.off:
                continue
            if self._ceiling is None or name in self._ceiling:
                begins[name] = self._found(name).start
        ends = self._ends(views, begins, limits)
        # A new partition enters the offset with its first data, so that an idle query makes no batch.
        moved = {name: end for name, end in ends.items() if name in start.positions or end != begins[name]}
        topics = {partitions[name] for name in moved if name in partitions}
        self._planned = start.moved_to(moved).marked(
            self._catalog.incarnations(topics - start.incarnations.keys(), mark=True)
        )
        return self._planned

    def _look(self, start: Offset) -> None:
        """See which partitions there are and what they hold, and that what the query needs is there."""
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
        self._refuse_made_anew(start)
        self._refuse_loss(start.positions)
        if not self._catalog.off:
            self._hold.check(self._views)
            self._quota.look(self._views, self._partitions)

    def _ask(self, places: Mapping[str, Position] | tuple[()]) -> None:
        """Ask Pulsar's admin which partitions there are, and for a view of each and of those in ``places``."""
        at = time.monotonic()
        self._partitions = self._catalog.partitions()
        self._views = self._catalog.snapshot({**self._partitions, **dict(places)})
        self._looked_at = at

    def _ends(
        self, views: Mapping[str, PartitionView], begins: Mapping[str, Position], limits: Limits
    ) -> dict[str, Position]:
        """Return where the trigger ends in each partition, and say at DEBUG which limit decided it."""
        counted = limits.rows is not None or limits.least_rows is not None
        rows = self._rows_per_entry(views, begins) if counted else {}
        limit = in_force(views, begins, limits, ceiling=self._ceiling, rows_per_entry=rows)
        ends = plan(views, begins, limits, ceiling=self._ceiling, rows_per_entry=rows)
        taken = {name: views[name].backlog(begins[name], end)[0] for name, end in ends.items() if name in views}
        entries, now = sum(taken.values()), time.monotonic()
        waiting = sum(count * rows.get(name, 1.0) for name, count in taken.items())
        since = math.inf if self._took_at is None else now - self._took_at
        # Trigger.AvailableNow, which has a ceiling, waits for nothing.
        if entries and limit == "none" and self._ceiling is None and limits.waits_for(waiting, since):
            limit, entries, ends = f"minRowsPerTrigger={limits.least_rows}", 0, dict(begins)
        if entries:
            self._took_at = now
        _log.debug("trigger", limit=limit, entries=entries, partitions=sum(1 for n in taken if ends[n] != begins[n]))
        return ends

    def _found(self, partition: str) -> HoldRecord:
        """Return the record of a partition that was found while running; it is held from its first entry on (H11).

        A subscription that is there already, but was not made for this, is Pulsar's copy of the first partition's.
        """
        record = self._hold.known(partition) or self._hold.record(partition)
        if record is None or record.starting != _NEW_PARTITION:
            record = HoldRecord(_NEW_PARTITION, self._views[partition].start, False)
            self._hold.create(partition, record)
        self._hold.attach([partition])
        self._hold.remember(partition, record)
        return record

    def _look_at_expiry(self, *, refuse: bool = False) -> None:
        found = self._catalog.expiry(self._catalog.topics)
        if found and refuse:
            raise expiry_error(found)
        for what, command in found:
            _log.warning(
                "what the query has not read can be deleted under it: switch it off",
                reason=what,
                command=command,
            )

    def _refuse_made_anew(self, start: Offset) -> None:
        """Compare the marks of topics that have lost the ledger of their offset, once for each such place.

        Pulsar's client subscribes by itself to a topic that was deleted and made anew, at its first entry: then it
        looks as if all before had been read and trimmed.
        """
        gone = {
            (name, place)
            for name, place in start.positions.items()
            if name in self._views and all(of.id != place.ledger for of in self._views[name].ledgers)
        }
        if new := gone - self._same:
            marks = self._catalog.incarnations({base_topic(name) for name, _ in new}, mark=False)
            start.refuse_strangers(start.cluster, marks)
        self._same = gone

    def _refuse_loss(self, positions: Mapping[str, Position]) -> None:
        found = losses(self._views, positions, self._hold.name)
        if not found:
            return
        strangers = [n for n, place in positions.items() if n in self._views and self._views[n].beyond(place)]
        if self._options.fail_on_data_loss or strangers:
            raise loss_error(found)
        if self._lost.issuperset(found):  # said already
            return
        self._lost.update(found)
        _log.warning(
            "data is gone, going on with what is left, as failOnDataLoss is off; raise the retention to keep more",
            lost=found,
        )

    def _rows_per_entry(self, views: Mapping[str, PartitionView], starts: Mapping[str, Position]) -> dict[str, float]:
        at, rows = self._rows
        if not self._catalog.off and (not rows or time.monotonic() - at > _ROWS_S):
            following = {n: views[n].segments(place) for n, place in starts.items() if n in views}
            rows = self._catalog.rows_per_entry(
                {n: Position(found[0].ledger, found[0].first) for n, found in following.items() if found}
            )
            self._rows = (time.monotonic(), rows)
        return rows


def _log_settings() -> LogSettings:
    """Return what the driver's environment, or its pulsebridge.yaml, says of the log."""
    # To load all settings takes a tenth of a second of each query's start.
    if not DEFAULT_FILE.exists() and not any(name.startswith(PREFIX) for name in os.environ):
        return LogSettings()
    from bridge.settings.loading import load

    try:
        return load().log
    except ConfigError:  # of another tier's settings, which are none of the query's
        return LogSettings()


def _covers(views: Mapping[str, PartitionView], ends: Mapping[str, Position]) -> bool:
    return all(name in views and views[name].end >= end for name, end in ends.items())


def _following(mark_delete: Position, view: PartitionView) -> Position:
    return max(Position(mark_delete.ledger, mark_delete.entry + 1), view.start)


def _in_use(name: str, partition: str, record: HoldRecord | None, text: str) -> str:
    what = f"subscription {name!r} on {partition}"
    if record is None:
        return f"{what} was not made by this source"
    if record.committed:
        return f"{what} belongs to a query that has committed batches already, and this checkpoint is new"
    return f"{what} was made for startingOffsets={record.starting}, this query says {text}"


def _patiently(act: Callable[[], T]) -> T:
    """Do ``act``, again while it fails for a passing reason, for half a minute."""
    until = time.monotonic() + _RETRY_S
    while True:
        try:
            return act()
        except TransientError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)

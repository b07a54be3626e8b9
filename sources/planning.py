"""Decides what a trigger reads, from one snapshot of each partition's ledgers.

Computes the end of a partition, the entries of a range, lost entries, and the share of a limit. It makes no requests:
``sources.snapshot`` provides the ledgers. It relies on three facts of Pulsar. Entries are numbered from 0 in each
ledger, ledger ids only grow, and a ledger is trimmed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bridge.contract import Position
from bridge.errors import DataLossError

__all__ = [
    "Ledger",
    "Limits",
    "PartitionView",
    "Segment",
    "in_force",
    "loss_error",
    "losses",
    "plan",
    "split",
]

_USUAL_BYTES: Final = 1024
"""Size of an entry if none is known."""


@dataclass(frozen=True)
class Ledger:
    """One ledger of a partition: its id, number of readable entries, and size in bytes."""

    id: int
    entries: int
    size: int = 0

    def grown(self, entries: int) -> Ledger:
        """Return the ledger with more entries, of the average or the usual size."""
        each = self.size / self.entries if self.size and self.entries else _USUAL_BYTES
        return Ledger(self.id, entries, int(each * entries))


@dataclass(frozen=True)
class Segment:
    """Entries ``first`` to ``stop - 1`` of one ledger."""

    ledger: int
    first: int
    stop: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.stop - self.first


@dataclass(frozen=True)
class Limits:
    """Most that one trigger reads over all partitions; None for no limit.

    Pulsar counts entries and bytes, not messages: ``rows`` is applied by the rows per entry seen so far. So a batch
    can differ from it as far as the producers' batches differ. Every partition with a backlog gets at least one entry.
    """

    entries: int | None = None
    size: int | None = None
    rows: int | None = None
    least_rows: int | None = None
    """Fewer rows than these wait, at most ``delay_s`` after the last trigger that read some."""
    delay_s: float = 900.0

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.entries, self.size, self.rows))

    def waits_for(self, rows: float, since_s: float) -> bool:
        """Whether a trigger with so many rows waits, ``since_s`` after the last one with rows."""
        return self.least_rows is not None and rows < self.least_rows and since_s < self.delay_s


@dataclass(frozen=True)
class PartitionView:
    """One partition as one snapshot shows it. Ledgers are in order; the last may still grow."""

    name: str
    ledgers: tuple[Ledger, ...]
    mark_deletes: Mapping[str, Position] = field(default_factory=dict)
    """Subscription to its mark-delete position, the last entry acknowledged without a gap. Entry -1 means none."""
    readable: Position | None = None
    """The last entry before the first open transaction, None if none can be open. Readers get later entries only
    after that transaction has ended (H15)."""

    @property
    def start(self) -> Position:
        """The first readable position."""
        return Position(self.ledgers[0].id, 0) if self.ledgers else Position(-1, 0)

    @property
    def end(self) -> Position:
        """The position after the last readable entry; the start without entries."""
        for ledger in reversed(self.ledgers):
            if ledger.entries:
                return max(self.start, self._bounded(Position(ledger.id, ledger.entries)))
        return self.start

    def _bounded(self, end: Position) -> Position:
        if self.readable is None:
            return end
        return min(end, Position(self.readable.ledger, self.readable.entry + 1))

    def grown_to(self, end: Position) -> PartitionView | None:
        """Return the view with all entries before ``end``, which may be newer than the snapshot.

        Returns None if the last one is in a ledger newer than the snapshot.
        """
        if not self.ledgers or end.ledger > self.ledgers[-1].id:
            return None
        *before, last = self.ledgers
        if end.ledger == last.id and end.entry > last.entries:
            last = last.grown(end.entry)
        readable = self.readable
        if readable is not None:
            readable = max(readable, Position(end.ledger, end.entry - 1))
        return replace(self, ledgers=(*before, last), readable=readable)

    def segments(self, start: Position, end: Position | None = None) -> tuple[Segment, ...]:
        """Return the existing entries from ``start`` up to ``end``, excluded (default: all readable ones)."""
        if end is None and self.readable is not None:
            end = self.end
        found = []
        for ledger in self.ledgers:
            first = start.entry if ledger.id == start.ledger else 0
            stop = ledger.entries
            if ledger.id < start.ledger or (end is not None and ledger.id > end.ledger):
                continue
            if end is not None and ledger.id == end.ledger:
                stop = min(stop, end.entry)
            if first < stop:
                found.append(Segment(ledger.id, first, stop))
        return tuple(found)

    def backlog(self, start: Position, end: Position | None = None) -> tuple[int, int]:
        """Return entries and bytes from ``start`` to ``end``; bytes by the average of each ledger."""
        sizes = {ledger.id: ledger.size / ledger.entries for ledger in self.ledgers if ledger.entries}
        segments = self.segments(start, end)
        return sum(s.entries for s in segments), int(sum(s.entries * sizes[s.ledger] for s in segments))

    def advance(self, start: Position, entries: int) -> Position:
        """Return the position after the next ``entries`` entries, at most the end.

        It is ``start`` itself for none. It stays in the ledger of the last entry. [L, n + 1] and [next ledger, 0] are
        equal, and only new data may change the form (H16).
        """
        position = start
        for segment in self.segments(start):
            if entries <= 0:
                break
            count = min(entries, segment.entries)
            entries -= count
            position = Position(segment.ledger, segment.first + count)
        return position

    def last_before(self, end: Position) -> Position | None:
        """Return the last existing entry before ``end``, None if there is none to acknowledge (H16)."""
        last = None
        for ledger in self.ledgers:
            if ledger.id > end.ledger:
                break
            stop = min(ledger.entries, end.entry) if ledger.id == end.ledger else ledger.entries
            if stop > 0:
                last = Position(ledger.id, stop - 1)
        return last

    def preceding(self, start: Position, entries: int) -> tuple[Segment, ...]:
        """Return up to ``entries`` existing entries right before ``start``."""
        found: list[Segment] = []
        for segment in reversed(self.segments(self.start, start)):
            if entries <= 0:
                break
            first = max(segment.first, segment.stop - entries)
            found.append(Segment(segment.ledger, first, segment.stop))
            entries -= segment.stop - first
        return tuple(reversed(found))

    def beyond(self, start: Position) -> bool:
        """Whether ``start`` is in a newer ledger, so of another topic: ledger ids only grow."""
        return not self.ledgers or start.ledger > self.ledgers[-1].id

    def explain_loss(self, start: Position, subscription: str | None) -> str | None:
        """Return why entries from ``start`` on are gone, None if none is lost.

        A missing ledger may have been read to its end. The subscription proves that if it is before ``start``, or right
        before the next ledger (or one since dropped as empty). Pulsar moves it there when it trims acknowledged
        entries. If unread entries had expired, it would be amid later entries.
        """
        known = {ledger.id: ledger for ledger in self.ledgers}
        if start.ledger in known:
            if start.entry > known[start.ledger].entries:
                return (
                    f"{self.name}: the offset is at entry {start.entry} of ledger {start.ledger}, "
                    f"which has only {known[start.ledger].entries} entries"
                )
            return None
        if self.beyond(start):
            return f"{self.name}: ledger {start.ledger} of the offset does not exist; the topic was re-created"
        following = next(ledger.id for ledger in self.ledgers if ledger.id > start.ledger)
        mark_delete = self.mark_deletes.get(subscription) if subscription is not None else None
        if mark_delete is not None and (
            mark_delete < start or (mark_delete.entry < 0 and mark_delete.ledger <= following)
        ):
            return None
        return (
            f"{self.name}: ledger {start.ledger} of the offset is gone, the first remaining one is {self.start.ledger}"
        )


def plan(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    limits: Limits,
    *,
    ceiling: Mapping[str, Position] | None = None,
    rows_per_entry: Mapping[str, float] | None = None,
) -> dict[str, Position]:
    """Return where this trigger ends in each partition of ``start`` under the limits.

    ``ceiling`` is the end recorded for Trigger.AvailableNow; a later run reads later entries. A limit is shared by
    backlog: every partition gets the same fraction, and at least one entry, so that none starves.
    """
    stops: dict[str, Position] = {}
    backlogs = _backlogs(views, start, ceiling)
    total = sum(entries for entries, _ in backlogs.values())
    waiting = sum(1 for entries, _ in backlogs.values() if entries)
    # One entry each, and the rest of the limit in proportion to the remaining backlog.
    rest = max(0, int(total * _tightest(backlogs, limits, rows_per_entry or {})[0]) - waiting)
    for name, position in start.items():
        entries = backlogs[name][0]
        take = entries if total - waiting <= rest else min(entries, 1 + (entries - 1) * rest // (total - waiting))
        stops[name] = views[name].advance(position, take) if take else position
    return stops


def in_force(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    limits: Limits,
    *,
    ceiling: Mapping[str, Position] | None = None,
    rows_per_entry: Mapping[str, float] | None = None,
) -> str:
    """Return the option, with its value, that bounds a trigger planned from the same arguments.

    Returns "none" if the trigger reads the whole backlog.
    """
    return _tightest(_backlogs(views, start, ceiling), limits, rows_per_entry or {})[1]


def _backlogs(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    ceiling: Mapping[str, Position] | None,
) -> dict[str, tuple[int, int]]:
    """Return entries and bytes of the backlog of each partition, 0 for a missing partition."""
    return {
        name: views[name].backlog(position, None if ceiling is None else ceiling.get(name, position))
        if name in views
        else (0, 0)
        for name, position in start.items()
    }


def _tightest(
    backlogs: Mapping[str, tuple[int, int]], limits: Limits, rows_per_entry: Mapping[str, float]
) -> tuple[float, str]:
    """Return the fraction of the backlog that the limits allow, and the tightest limit."""
    entries = sum(count for count, _ in backlogs.values())
    size = sum(of for _, of in backlogs.values())
    rows = sum(count * rows_per_entry.get(name, 1.0) for name, (count, _) in backlogs.items())
    found = (1.0, "none")
    for option, limit, total in (
        ("maxEntriesPerTrigger", limits.entries, entries),
        ("maxBytesPerTrigger", limits.size, size),
        ("maxRowsPerTrigger", limits.rows, rows),
    ):
        if limit is not None and total > limit:
            found = min(found, (limit / total, f"{option}={limit}"))
    return found


def split(segments: tuple[Segment, ...], parts: int) -> list[tuple[Segment, ...]]:
    """Split a range into at most ``parts`` non-empty ranges of similar size, in order."""
    total = sum(segment.entries for segment in segments)
    parts = max(1, min(parts, total))
    bounds = [total * number // parts for number in range(1, parts + 1)]
    found: list[tuple[Segment, ...]] = []
    current: list[Segment] = []
    done = 0
    for segment in segments:
        first = segment.first
        while first < segment.stop:
            stop = min(segment.stop, first + bounds[len(found)] - done)
            current.append(Segment(segment.ledger, first, stop))
            done += stop - first
            first = stop
            if done == bounds[len(found)]:
                found.append(tuple(current))
                current = []
    return found


def losses(views: Mapping[str, PartitionView], start: Mapping[str, Position], subscription: str | None) -> list[str]:
    """Return a sentence for each loss in the partitions of ``start``; empty without losses.

    The caller fails or continues by ``failOnDataLoss``; see ``loss_error``.
    """
    found = []
    for name, position in start.items():
        if name not in views:
            found.append(f"{name}: the partition no longer exists")
        elif (why := views[name].explain_loss(position, subscription)) is not None:
            found.append(why)
    return found


def loss_error(found: list[str]) -> DataLossError:
    """Return the error for lost entries."""
    return DataLossError(
        "data that the query still has to read is no longer in Pulsar: " + "; ".join(found),
        remedy="restore the topic, or set failOnDataLoss=false to continue with the remaining data; keep retention "
        "longer than a query may be down, and message TTL off on topics that queries read",
    )

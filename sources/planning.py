"""What a trigger reads: pure arithmetic over one snapshot of each partition's ledgers.

Decides where a partition ends, which entries lie in a range, what is gone, and how a limit is shared. It knows no
server: ``sources.snapshot`` brings the ledgers. Pulsar numbers entries from 0 in each ledger, ledger ids only grow,
and a ledger goes as a whole when it is trimmed; on that the arithmetic rests.
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
"""Of an entry, where no size is known."""


@dataclass(frozen=True)
class Ledger:
    """One ledger of a partition: its id, how many entries can be read, and their size in bytes."""

    id: int
    entries: int
    size: int = 0

    def grown(self, entries: int) -> Ledger:
        """Return the ledger with more entries, of the size that its entries had, or one that is usual."""
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
    """Most that one trigger takes over all partitions; None without limit.

    Pulsar counts entries and bytes, not messages: ``rows`` is held by the rows per entry seen so far, so a batch can
    differ from it as far as the producers' batches differ. Every partition with a backlog gets at least one entry.
    """

    entries: int | None = None
    size: int | None = None
    rows: int | None = None
    least_rows: int | None = None
    """Fewer rows than these wait, but not longer than ``delay_s`` after the last trigger that took some."""
    delay_s: float = 900.0

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.entries, self.size, self.rows))

    def waits_for(self, rows: float, since_s: float) -> bool:
        """Whether a trigger with so many rows waits for more, ``since_s`` after the last one that took some."""
        return self.least_rows is not None and rows < self.least_rows and since_s < self.delay_s


@dataclass(frozen=True)
class PartitionView:
    """One partition as one snapshot shows it. Ledgers are in order; the last may still grow."""

    name: str
    ledgers: tuple[Ledger, ...]
    holds: Mapping[str, Position] = field(default_factory=dict)
    """Subscription to its mark-delete position: the last entry of the acknowledged run, entry -1 when none."""
    readable: Position | None = None
    """The last entry before the first open transaction, None where none can be open: what comes after it is not
    given to readers until that one ends (H15)."""

    @property
    def start(self) -> Position:
        """The first place that can still be read."""
        return Position(self.ledgers[0].id, 0) if self.ledgers else Position(-1, 0)

    @property
    def end(self) -> Position:
        """The place after the last entry that can be read; the start when there is no entry."""
        for ledger in reversed(self.ledgers):
            if ledger.entries:
                return max(self.start, self._bounded(Position(ledger.id, ledger.entries)))
        return self.start

    def _bounded(self, end: Position) -> Position:
        if self.readable is None:
            return end
        return min(end, Position(self.readable.ledger, self.readable.entry + 1))

    def grown_to(self, end: Position) -> PartitionView | None:
        """Return the view with the entries before ``end``, which were read and may be newer than the snapshot.

        None where the last one lies in a ledger that the snapshot does not know.
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
        """Return the existing entries from ``start`` up to, not including, ``end`` (default: all that can be read)."""
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
        """Return the place after the next ``entries`` entries, at most the end; ``start`` itself for none.

        The result stays in the ledger of the last entry taken: [L, n + 1] and [next ledger, 0] are one place, and
        only data that advances may change how it is written (H16).
        """
        place = start
        for segment in self.segments(start):
            if entries <= 0:
                break
            taken = min(entries, segment.entries)
            entries -= taken
            place = Position(segment.ledger, segment.first + taken)
        return place

    def last_before(self, end: Position) -> Position | None:
        """Return the last existing entry before ``end``, None when there is none to acknowledge (H16)."""
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
        """Whether ``start`` lies in a ledger newer than all: it counts in another topic, ledger ids only grow."""
        return not self.ledgers or start.ledger > self.ledgers[-1].id

    def explain_loss(self, start: Position, hold: str | None) -> str | None:
        """Tell why entries from ``start`` on are gone, None when nothing that was unread can be.

        A ledger that is no longer there may have been read to its end. The subscription proves it: it stands before
        ``start``, or, since Pulsar moves it there when it trims what was acknowledged, right before the
        first entry of the next ledger (of one since dropped as empty, maybe). Had entries expired under it, it would stand in the midst of what came after.
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
            return f"{self.name}: ledger {start.ledger} of the offset does not exist; the topic was made anew"
        following = next(ledger.id for ledger in self.ledgers if ledger.id > start.ledger)
        held = self.holds.get(hold) if hold is not None else None
        if held is not None and (held < start or (held.entry < 0 and held.ledger <= following)):
            return None
        return (
            f"{self.name}: ledger {start.ledger} of the offset is gone, the first that is left is {self.start.ledger}"
        )


def plan(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    limits: Limits,
    *,
    ceiling: Mapping[str, Position] | None = None,
    rows_per_entry: Mapping[str, float] | None = None,
) -> dict[str, Position]:
    """Return where this trigger ends in each partition of ``start``, in one snapshot, under the limits.

    ``ceiling`` is the end that Trigger.AvailableNow noted; what was written later stays for another run. A limit is
    shared by backlog: every partition takes the same fraction, and one entry at least, so that none starves.
    """
    ends: dict[str, Position] = {}
    backlogs = _backlogs(views, start, ceiling)
    total = sum(entries for entries, _ in backlogs.values())
    waiting = sum(1 for entries, _ in backlogs.values() if entries)
    # One entry each, and the rest of the limit by what else is waiting.
    rest = max(0, int(total * _tightest(backlogs, limits, rows_per_entry or {})[0]) - waiting)
    for name, place in start.items():
        entries = backlogs[name][0]
        take = entries if total - waiting <= rest else min(entries, 1 + (entries - 1) * rest // (total - waiting))
        ends[name] = views[name].advance(place, take) if take else place
    return ends


def in_force(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    limits: Limits,
    *,
    ceiling: Mapping[str, Position] | None = None,
    rows_per_entry: Mapping[str, float] | None = None,
) -> str:
    """Return the option, with its value, that bounds a trigger planned from the same arguments; "none" where all
    that waits is taken.
    """
    return _tightest(_backlogs(views, start, ceiling), limits, rows_per_entry or {})[1]


def _backlogs(
    views: Mapping[str, PartitionView],
    start: Mapping[str, Position],
    ceiling: Mapping[str, Position] | None,
) -> dict[str, tuple[int, int]]:
    """Return entries and bytes that wait in each partition; a partition that has vanished has none."""
    return {
        name: views[name].backlog(place, None if ceiling is None else ceiling.get(name, place))
        if name in views
        else (0, 0)
        for name, place in start.items()
    }


def _tightest(
    backlogs: Mapping[str, tuple[int, int]], limits: Limits, rows_per_entry: Mapping[str, float]
) -> tuple[float, str]:
    """Return the fraction of what waits that the limits allow, and the limit that allows least."""
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
    """Cut a range into at most ``parts`` ranges of about as many entries each, in order, none of them empty."""
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


def losses(views: Mapping[str, PartitionView], start: Mapping[str, Position], hold: str | None) -> list[str]:
    """Return what is gone of the partitions in ``start``, a sentence each; empty when nothing is.

    The caller fails or goes on, as ``failOnDataLoss`` says; see ``loss_error``.
    """
    found = []
    for name, place in start.items():
        if name not in views:
            found.append(f"{name}: the partition is no longer there")
        elif (why := views[name].explain_loss(place, hold)) is not None:
            found.append(why)
    return found


def loss_error(found: list[str]) -> DataLossError:
    """Return the error for what is gone."""
    return DataLossError(
        "data that the query still has to read is no longer in Pulsar: " + "; ".join(found),
        remedy="restore the topic, or set failOnDataLoss=false to go on with what is left; keep retention longer than "
        "a query may be down, and message TTL off on topics that are held",
    )

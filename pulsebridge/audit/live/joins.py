"""Compares one bucket: Pulsar with bronze and with each typed table and its quarantine. Pure.

The identity of a message is its position in Pulsar. Only messages whose publish time is within the window are due.
A row without a message is unexpected: all rows are between the first and the last position that was read of their
partition, and Pulsar was read there completely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsebridge.audit.live.buckets import SCHEMA
from pulsebridge.audit.live.findings import Finding, Hop, Kind

__all__ = [
    "BRONZE",
    "LOG",
    "QUARANTINE",
    "Lacking",
    "Span",
    "TableSide",
    "compare_bucket",
]

LOG: Final = "Pulsar"
BRONZE: Final = "bronze"
QUARANTINE: Final = "quarantine"
_KEY: Final = ("part", "ledger", "entry", "index")
_MOST: Final = 1 << 62


@dataclass(frozen=True)
class Span:
    """The window of an audit, in µs since the epoch."""

    since_us: int
    until_us: int
    names: Mapping[int, str]
    """Name of each partition by number."""

    def name(self, part: int, ledger: int, entry: int, index: int) -> str:
        """Return a position for people."""
        return f"{self.names[part].rsplit('/', 1)[-1]}:{ledger}:{entry}:{index}"


@dataclass(frozen=True)
class TableSide:
    """A typed table as the audit knows it."""

    name: str
    bit: int
    """Its number among the bits of the column ``due``, the lowest byte first: set for a message that must have a row, in the table or in quarantine."""
    keyed: bool = False
    """Whether the table leaves out messages with the keys of another. Then one of the same content explains a missing row."""


class Lacking(NamedTuple):
    """A message without a row in a keyed table: missing, unless a message of the same content has a row."""

    content: tuple[str, int]
    """Device and checksum of the payload."""
    finding: Finding


def compare_bucket(
    records: Mapping[str, pa.Table], sides: Sequence[TableSide], span: Span, *, bronze: bool
) -> Iterator[tuple[str, Finding | Lacking]]:
    """Yield (table, difference) of one bucket. ``records``: rows of a bucket by record, those without rows left out."""
    rows = _rows_of(records)
    none = _Rows(SCHEMA.empty_table(), np.empty(0, np.int64))
    log, quarantine = rows.get(LOG, none), rows.get(QUARANTINE, none)
    if bronze:
        for finding in _compare_bronze(log, rows.get(BRONZE, none), span):
            yield BRONZE, finding
    for side in sides:
        bad = quarantine.of(side.name)
        for found in _compare_table(side, log, rows.get(side.name, none), bad, span):
            yield side.name, found


class _Rows:
    """The rows of a record in a bucket."""

    def __init__(self, table: pa.Table, keys: Any) -> None:
        """``keys``: an integer for the position of each row. They have the order of the positions."""
        self.table, self.keys = table, keys
        self._columns: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """Return a column of numbers."""
        if name not in self._columns:
            self._columns[name] = self.table.column(name).to_numpy()
        return self._columns[name]

    def devices(self, at: Any) -> Any:
        """Return the devices of these rows."""
        found = self.table.column("device")
        return found if np.array_equal(at, np.arange(len(self.keys))) else found.take(pa.array(at))

    def due(self, bit: int) -> Any:
        """Return whether each message must have a row in the table with this bit."""
        sets, of = self._due
        return np.array([int.from_bytes(one, "little") >> bit & 1 for one in sets], bool)[of]

    @cached_property
    def _due(self) -> tuple[list[bytes], Any]:
        found = self.table.column("due").combine_chunks().dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy()

    @cached_property
    def positions(self) -> Any:
        """The key of each position, once, in their order."""
        return _distinct(self.keys)

    def of(self, table: str) -> _Rows:
        """Return the rows of quarantine that are of a table."""
        its = pc.equal(self.table.column("target"), table)
        return _Rows(self.table.filter(its), self.keys[its.to_numpy().astype(bool)])


def _rows_of(records: Mapping[str, pa.Table]) -> dict[str, _Rows]:
    """Return each record with the keys of its rows."""
    tables = list(records.values())
    keys = _keys([np.concatenate([one.column(name).to_numpy() for one in tables]) for name in _KEY]) if tables else ()
    ends = np.cumsum([one.num_rows for one in tables])[:-1]
    each = zip(records.items(), np.split(keys, ends), strict=True) if tables else ()
    return {name: _Rows(table, of) for (name, table), of in each}


class _Joined:
    """Records side by side: the rows of each as numbers of positions, which are in the order of the log."""

    def __init__(self, log: _Rows, *others: _Rows) -> None:
        numbers, records = log.positions, (log, *others)
        # Nearly always the log has all positions.
        ids = [_ids(numbers, one.keys) for one in records]
        if any(one is None for one in ids):
            numbers = _distinct(np.concatenate([one.keys for one in records]))
            ids = [np.searchsorted(numbers, one.keys) for one in records]
        self.count, self.ids = len(numbers), ids
        self.rows = [self._firsts(one) for one in ids]
        """By record: the first row of each number, -1 without one."""

    def _firsts(self, ids: Any) -> Any:
        rows = np.full(self.count, -1, np.int64)
        rows[ids[::-1]] = np.arange(len(ids))[::-1]
        return rows

    def times(self, record: int) -> Any:
        """Return how often each number occurs in a record."""
        return np.bincount(self.ids[record], minlength=self.count)


def _ids(numbers: Any, keys: Any) -> Any:
    """Return the index in ``numbers`` of each key, None if one is not there."""
    if np.array_equal(keys, numbers):
        return np.arange(len(keys))
    ids = np.cumsum(np.diff(keys, prepend=keys[:1]) != 0)  # right for all positions in order, as of most tables
    if not len(keys) or (ids[-1] < len(numbers) and np.array_equal(numbers[ids], keys)):
        return ids
    ids = np.searchsorted(numbers, keys)
    return ids if len(numbers) and np.array_equal(numbers[np.minimum(ids, len(numbers) - 1)], keys) else None


def _distinct(keys: Any) -> Any:
    """Return each key once, in order. (``numpy.unique`` hashes them, which costs more if they are in order.)"""
    keys = keys if (keys[1:] >= keys[:-1]).all() else np.sort(keys)
    return keys[np.diff(keys, prepend=-1) > 0]


def _keys(columns: Sequence[Any]) -> Any:
    """Return one integer for each row, in the order of the columns."""
    keys, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns if len(keys) else ():
        low = int(column.min())
        values = int(column.max()) - low + 1
        if values == 1:
            continue
        if size * values > _MOST:
            keys, column = (np.unique(one, return_inverse=True)[1] for one in (keys, column))
            low, size, values = 0, int(keys.max()) + 1, int(column.max()) + 1
        keys *= values
        keys += column
        keys -= low
        size *= values
    return keys


def _compare_bronze(log: _Rows, bronze: _Rows, span: Span) -> Iterator[Finding]:
    """Yield the differences of bronze and Pulsar: each message once, unchanged, stored in the order of its partition."""
    joined = _Joined(log, bronze)
    in_log, in_bronze = joined.rows
    us = log.column("us")
    found = _Found(Hop.BRONZE, joined, log, bronze, span)
    due = np.zeros(joined.count, bool)
    due[joined.ids[0]] = (us >= span.since_us) & (us < span.until_us)
    yield from found.each(Kind.MISSING, due & (in_bronze < 0))
    times = joined.times(1)
    yield from found.each(Kind.REPEATED, (times > 1) & (in_log >= 0), lambda n: f"{times[n]} rows")
    yield from found.unexpected(in_log < 0)
    both = np.flatnonzero((in_log >= 0) & (in_bronze >= 0))
    a, b = in_log[both], in_bronze[both]
    altered = _differ(log, bronze, a, b, "crc", -1)
    yield from found.each(Kind.ALTERED, _mask(joined.count, both[altered]), lambda _: "another payload")
    moved = _wrong_device(log, bronze, a, b)
    yield from found.each(
        Kind.ALTERED, _mask(joined.count, both[moved]), lambda n: f"device is {found.device_of_row(n)}"
    )
    yield from found.each(Kind.REORDERED, _mask(joined.count, both[_stored_late(log, bronze, a, b)]),
                          lambda _: "stored before an earlier message of its partition")  # fmt: skip


def _mask(count: int, numbers: Any) -> Any:
    mask = np.zeros(count, bool)
    mask[numbers] = True
    return mask


def _differ(left: _Rows, right: _Rows, a: Any, b: Any, name: str, unknown: int) -> Any:
    one, two = left.column(name)[a], right.column(name)[b]
    return (one != two) & (one != unknown) & (two != unknown)


def _wrong_device(left: _Rows, right: _Rows, a: Any, b: Any) -> Any:
    one, two = left.devices(a), right.devices(b)
    if one.equals(two):  # nearly always, and much faster than to compare each
        return np.zeros(len(one), bool)
    known = pc.and_(pc.not_equal(one, ""), pc.not_equal(two, ""))
    return pc.and_(known, pc.not_equal(one, two)).to_numpy().astype(bool)


def _stored_late(log: _Rows, bronze: _Rows, a: Any, b: Any) -> Any:
    """Whether a row was stored before one that precedes it: numbers are in the order of the log."""
    part, stored = log.column("part")[a], bronze.column("us")[b]
    late = np.zeros(len(a), bool)
    for number in np.flatnonzero(np.bincount(part)).tolist():
        of = np.flatnonzero((part == number) & (stored > 0))
        if len(of):  # the row after which fewer earlier ones follow is the moved one
            least_after = np.minimum.accumulate(stored[of][::-1])[::-1]
            most_before = np.maximum.accumulate(stored[of])
            low, high = stored[of] < most_before, stored[of] > least_after
            late[of[low if low.sum() <= high.sum() else high]] = True
    return late


def _compare_table(
    table: TableSide, log: _Rows, rows: _Rows, quarantine: _Rows, span: Span
) -> Iterator[Finding | Lacking]:
    """Yield the differences of a table, with its rows in quarantine, and Pulsar.

    A due message has rows in the table or in quarantine, each row once; device and arrival are the message's.
    """
    joined = _Joined(log, rows, quarantine)
    in_log, in_rows, in_bad = joined.rows
    found = _Found(Hop.table(table.name), joined, log, rows, span)
    us = log.column("us")
    due = np.zeros(joined.count, bool)
    due[joined.ids[0]] = log.due(table.bit) & (us >= span.since_us) & (us < span.until_us)
    lacking = due & (in_rows < 0) & (in_bad < 0)
    if table.keyed:
        for n, finding in zip(np.flatnonzero(lacking).tolist(), found.each(Kind.MISSING, lacking), strict=True):
            yield Lacking((finding.device, int(log.column("crc")[in_log[n]])), finding)
    else:
        yield from found.each(Kind.MISSING, lacking)
    yield from found.unexpected((in_log < 0) & (in_rows >= 0))
    for side, ids, where in ((rows, joined.ids[1], ""), (quarantine, joined.ids[2], "in quarantine")):
        repeated = _repeats(ids, side.column("element"))
        yield from found.each(Kind.REPEATED, _mask(joined.count, repeated) & (in_log >= 0), partial(_constant, where))
    yield from _altered_rows(log, rows, joined, found)


def _altered_rows(log: _Rows, rows: _Rows, joined: _Joined, found: _Found) -> Iterator[Finding]:
    """Yield each row with another device or another time of arrival than its message."""
    ids, devices, arrivals = joined.ids[1], rows.table.column("device"), rows.column("arrival")
    b = np.flatnonzero(joined.rows[0][ids] >= 0)
    a = joined.rows[0][ids[b]]
    for row in b[_wrong_device(log, rows, a, b)].tolist():
        yield found.one(Kind.ALTERED, ids[row], f"device is {devices[row]}")
    other = b[_differ(log, rows, a, b, "arrival", -1)].tolist()
    # Positions of two messages were exchanged: each row has the arrival of another message.
    sent = zip(log.table.column("device").to_pylist(), log.column("arrival").tolist(), strict=True) if other else ()
    theirs = set(sent)
    for row in other:
        finding = found.one(Kind.ALTERED, ids[row], f"its time of arrival is {arrivals[row]} µs")
        yield replace(finding, kind=Kind.REORDERED) if (finding.device, arrivals[row]) in theirs else finding


def _constant(text: str, _number: int) -> str:
    return text


def _repeats(ids: Any, elements: Any) -> Any:
    step = np.diff(ids)
    if ((step > 0) | ((step == 0) & (np.diff(elements) > 0))).all():
        return ids[:0]
    order = np.lexsort((elements, ids))
    same = (ids[order][1:] == ids[order][:-1]) & (elements[order][1:] == elements[order][:-1])
    return ids[order][1:][same]


class _Found:
    """Makes findings of numbers of positions."""

    def __init__(self, hop: str, joined: _Joined, log: _Rows, rows: _Rows, span: Span) -> None:
        self._hop, self._log, self._rows, self._span = hop, log.table, rows.table, span
        self._in_log, self._in_rows = joined.rows[:2]

    def device_of_row(self, number: int) -> str:
        return str(self._rows.column("device")[int(self._in_rows[number])].as_py())

    def one(self, kind: str, number: int, detail: str = "") -> Finding:
        at = int(self._in_log[number])
        side, row = (self._log, at) if at >= 0 else (self._rows, int(self._in_rows[number]))
        has = {name: side.column(name)[row].as_py() for name in (*_KEY, "device", "us" if at >= 0 else "arrival")}
        *position, device, us = has.values()
        return Finding(self._hop, kind, device, max(0, us), self._span.name(*position), detail)

    def each(self, kind: str, mask: Any, detail: Callable[[int], str] = lambda _: "") -> Iterator[Finding]:
        for number in np.flatnonzero(mask).tolist():
            yield self.one(kind, number, detail(number))

    def unexpected(self, mask: Any) -> Iterator[Finding]:
        for number in np.flatnonzero(mask & (self._in_rows >= 0)).tolist():
            yield self.one(Kind.UNEXPECTED, number, "Pulsar does not have it")

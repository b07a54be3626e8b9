"""Converts rows of bronze, of typed tables and of quarantine to the form that is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.contract import base_topic, partition_name
from pulsebridge.audit.live.buckets import SCHEMA
from pulsebridge.audit.live.payloads import PADDING, Payloads

__all__ = ["Partitions", "Ranges", "rows_of"]

_BRONZE: Final = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")
_TYPED: Final = ("topic", "partition", "ledger", "entry", "index", "element")


Ranges = Mapping[int, tuple[tuple[int, int], tuple[int, int]]]
"""Ledger and entry of the first and of the last message read, by number of the partition."""


class Partitions:
    """The audited partitions by number, and what was read of each. Other rows are left out: Pulsar may have their messages."""

    def __init__(self, names: Sequence[str], ranges: Ranges) -> None:
        self._numbers = {name: n for n, name in enumerate(names)}
        none = (0, 0), (-1, -1)
        self._ranges = np.array([ranges.get(n, none) for n in range(len(names))] + [none], np.int64).reshape(-1, 4).T

    def number(self, topic: str, partition: int) -> int:
        """Return the number of a partition, -1 if it is not audited."""
        base = base_topic(topic)
        return self._numbers.get(partition_name(base, partition), self._numbers.get(base, -1))

    def audited(self, part: Any, ledger: Any, entry: Any) -> Any:
        """Return whether Pulsar was read around each of these positions."""
        part = part[:1] if (part == part[:1]).all() else part  # nearly always of one
        first, first_entry, last, last_entry = (one[part] for one in self._ranges)
        after = (ledger > first) | ((ledger == first) & (entry >= first_entry))
        return after & ((ledger < last) | ((ledger == last) & (entry <= last_entry)))


def rows_of(
    found: pa.RecordBatch, partitions: Partitions, label: str = "", wanted: Sequence[str] = SCHEMA.names
) -> pa.RecordBatch:
    """Return rows in the form of ``SCHEMA``, those of audited positions, with the columns that are wanted.

    ``label`` names a column whose text goes into ``target``.
    """
    part, ledger, entry, index, element = _positions(found, partitions)
    size, columns = found.num_rows, dict(zip(found.schema.names, found.columns, strict=True))
    values: dict[str, Callable[[], Any]] = {
        "part": lambda: part,
        "ledger": lambda: ledger,
        "entry": lambda: entry,
        "index": lambda: np.maximum(index.to_numpy(), 0),
        "element": lambda: element,
        "us": lambda: _micros(columns.get("stored_at"), size, 0),
        "arrival": lambda: _micros(columns.get("arrival_time"), size, -1),
        "device": lambda: _text(columns.get("device"), size),
        "crc": lambda: _checksums(columns.get("payload"), size),
        "due": lambda: pa.repeat(pa.scalar(b"", pa.binary()), size),
        "target": lambda: _text(columns.get(label), size),
    }
    arrays = [pa.array(values[name](), SCHEMA.field(name).type) for name in wanted]
    rows = pa.RecordBatch.from_arrays(arrays, names=list(wanted))
    audited = partitions.audited(part, ledger.to_numpy(), entry.to_numpy())
    # pyarrow cannot filter views, as deltalake has them, so the rows that were converted are filtered.
    return rows if audited.all() else rows.filter(pa.array(audited))


def _positions(found: pa.RecordBatch, partitions: Partitions) -> list[Any]:
    """Return the number of the partition, -1 for another one, ledger, entry, index and element of each row."""
    if "_position" in found.schema.names:
        position = found.column("_position")
        named = dict(zip((field.name for field in position.type), position.flatten(), strict=True))
        at = [named[name] for name in _TYPED]
    else:
        at = [*(found.column(name) for name in _BRONZE), pa.array(np.zeros(found.num_rows, np.int32))]
    numbers = [_filled(one.cast(of), 0) for one, of in zip(at[1:], SCHEMA.types, strict=False)]
    return [_parts(at[0], numbers[0].to_numpy(), partitions), *numbers[1:]]


def _parts(topic: Any, numbers: Any, partitions: Partitions) -> Any:
    """Return the number of each row's partition; rows follow each other mostly in one."""
    topic = topic.cast(pa.string())
    changes = np.diff(numbers) != 0
    if not topic[1:].equals(topic[:-1]):  # mostly they are equal, and that costs less to find out
        changes |= pc.fill_null(pc.not_equal(topic[1:], topic[:-1]), True).to_numpy(zero_copy_only=False)
    first = np.append(0, np.flatnonzero(changes) + 1)[: len(topic)]
    known = [
        -1 if text is None else partitions.number(text, number)
        for text, number in zip((topic[n].as_py() for n in first.tolist()), numbers[first].tolist(), strict=True)
    ]
    return np.repeat(np.array(known, np.int32), np.diff(first, append=len(topic)))


def _filled(column: Any, unknown: Any) -> Any:
    return pc.fill_null(column, unknown) if column.null_count else column


def _micros(column: Any, size: int, unknown: int) -> Any:
    if column is None:
        return pa.array(np.full(size, unknown, np.int64))
    zone = column.type.tz
    return _filled(column.cast(pa.timestamp("us", zone)).cast(pa.int64()), unknown)


def _text(column: Any, size: int) -> Any:
    if column is None:
        return pa.repeat("", size)
    return _filled(column.cast(pa.string()), "")


def _checksums(column: Any, size: int) -> Any:
    if column is None:
        return pa.array(np.full(size, -1, np.int64))
    payloads = _filled(column.cast(pa.large_binary()), b"")
    _, offsets, data = payloads.buffers()
    ends = np.frombuffer(offsets, np.int64)[payloads.offset :][: size + 1]
    found = Payloads(bytes(data or b"") + PADDING, ends[:-1], ends[1:]).checksums()
    return pc.if_else(column.is_valid(), pa.array(found), -1)

"""The rows that an audit compares, divided by position into buckets, so that it needs the memory of one bucket only.

A position is in the same bucket in all records. A bucket has blocks of successive entries of a partition.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["COUNT", "SCHEMA", "Buckets", "bucket_of"]

COUNT: Final = 64
"""Number of buckets on disk."""
_BLOCK: Final = 10
"""Entries of a block, as a power of two."""
_PIECES: Final = 8
"""Rows in more pieces than these are sorted, which costs less than to write each piece."""
SCHEMA: Final = pa.schema(
    [
        ("part", pa.int32()),  # number of the partition in this audit
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("index", pa.int32()),
        ("element", pa.int32()),  # row within the message
        ("us", pa.int64()),  # publish time (Pulsar), stored_at (bronze), else 0
        ("arrival", pa.int64()),  # time at ingest, µs since the epoch, -1 if unknown
        ("device", pa.string()),  # empty if unknown
        ("crc", pa.int64()),  # of the payload, -1 if unknown
        ("due", pa.binary()),  # by bit, which tables must have a row (Pulsar), else empty
        ("target", pa.string()),  # table of a row in quarantine, else empty
    ]
)


def bucket_of(rows: pa.RecordBatch, count: int) -> Any:
    """Return the bucket of each row, from 0 to ``count`` - 1."""
    part, ledger, entry = (rows.column(n).to_numpy() for n in (0, 1, 2))
    return (part.astype(np.int64) * 7919 + ledger * 31 + (entry >> _BLOCK)) % count


def _starts(numbers: Any) -> list[int]:
    """Return where a run of equal numbers begins."""
    return list(np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))[: len(numbers)].tolist())


class Buckets:
    """A folder with a file for each record and bucket. Write all rows, then ``read`` each bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[tuple[str, int], Any] = {}
        self.rows: dict[str, int] = {}

    def write(self, record: str, rows: pa.RecordBatch) -> None:
        """Add rows of ``SCHEMA``, with the columns of the position at least, to a record."""
        self.rows[record] = self.rows.get(record, 0) + rows.num_rows
        number = bucket_of(rows, COUNT)
        starts = _starts(number)
        if len(starts) > _PIECES:
            order = np.argsort(number, kind="stable")
            number, rows = number[order], rows.take(pa.array(order))
            starts = _starts(number)
        for start, end in pairwise([*starts, len(number)]):
            self._writer(record, int(number[start]), rows.schema).write_batch(rows.slice(start, end - start))

    def _writer(self, record: str, bucket: int, schema: pa.Schema) -> Any:
        found = self._writers.get((record, bucket))
        if found is None:
            found = self._writers[record, bucket] = pa.ipc.new_stream(str(self._file(record, bucket)), schema)
        return found

    def _file(self, record: str, bucket: int) -> Path:
        return self._folder / f"{bucket}-{record}.arrow"

    def close(self) -> None:
        """End the writing."""
        for writer in self._writers.values():
            writer.close()

    def read(self, record: str, bucket: int) -> pa.Table:
        """Return the rows of a record in a bucket."""
        if (record, bucket) not in self._writers:
            return SCHEMA.empty_table()
        with pa.memory_map(str(self._file(record, bucket))) as file:
            return pa.ipc.open_stream(file).read_all()

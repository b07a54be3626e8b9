"""Reads and compares in this process, with the rows in files: without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.pulsar.client import PulsarClient
from pulsebridge.audit.live.buckets import COUNT, SCHEMA, Buckets
from pulsebridge.audit.live.findings import Finding
from pulsebridge.audit.live.joins import BRONZE, LOG, QUARANTINE, Lacking, Span, TableSide, compare_bucket
from pulsebridge.audit.live.log import LogReader
from pulsebridge.audit.live.sequence import Sequences
from pulsebridge.audit.live.tables import Partitions, Ranges, rows_of
from pulsebridge.delta_tables import DeltaTables

__all__ = ["Difference", "Log", "OnDisk", "Store"]

Difference = tuple[str, Finding | Lacking]
"""The table, and a finding or a message that may be one."""


_UNUSED: Final = {LOG: {"element", "target"}, BRONZE: {"element", "due", "target"}, QUARANTINE: {"us", "crc", "due"}}
"""Columns that ``compare_bucket`` does not use of a record: they are not written, which costs more than all else."""
_UNUSED_OF_TABLES: Final = {"us", "crc", "due", "target"}


def _columns(record: str) -> list[str]:
    unused = _UNUSED.get(record, _UNUSED_OF_TABLES)
    return [name for name in SCHEMA.names if name not in unused]


class Log(NamedTuple):
    """What was read from Pulsar."""

    ranges: Ranges
    found: list[Finding]
    copies: int


class Store(Protocol):
    """The rows of an audit: who reads and compares them. Read Pulsar first, then the tables, then ``compare``."""

    def read_log(self, reader: LogReader, client: PulsarClient, partitions: Sequence[str]) -> Log:
        """Read these partitions; one's number is its index."""
        ...

    def batches(self, name: str, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch] | None:
        """Yield the rows of a table where an SQL condition holds; None if it does not exist. Columns may be missing.

        Raises TransientError if the table cannot be read.
        """
        ...

    def read_table(
        self, name: str, columns: Sequence[str], where: str, partitions: Partitions, label: str = ""
    ) -> bool:
        """Read a table for ``compare``; see ``rows_of`` for ``label``. Returns whether it exists."""
        ...

    def compare(self, sides: Sequence[TableSide], span: Span) -> Iterator[Difference]:
        """Yield the differences. ``counts`` is complete then."""
        ...

    def with_rows(self, table: str, contents: Set[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return which of these contents, as device and checksum, a message with a row in the table has."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by record."""
        ...


class OnDisk:
    """Tables that are folders below a root, read by deltalake; the rows are in a folder."""

    def __init__(self, root: str, folder: Path) -> None:
        self._tables, self._rows = DeltaTables(root), Buckets(folder)

    def read_log(self, reader: LogReader, client: PulsarClient, partitions: Sequence[str]) -> Log:
        """Read the partitions one after the other."""
        ranges: dict[int, Any] = {}
        log, self._rows.rows[LOG] = Log(ranges, [], 0), 0
        for number, partition in enumerate(partitions):
            numbers = Sequences(reader.explained)
            for rows in reader.rows(client, partition, number, numbers):
                self._rows.write(LOG, rows.select(_columns(LOG)))
                ledgers, entries = rows.column("ledger"), rows.column("entry")
                first, last = ((ledgers[n].as_py(), entries[n].as_py()) for n in (0, rows.num_rows - 1))
                ranges[number] = ranges.get(number, (first, last))[0], last
            log = log._replace(found=[*log.found, *numbers.end()], copies=log.copies + numbers.copies)
        return log

    def batches(self, name: str, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch] | None:
        """See ``Store``."""
        return self._tables.batches(name, columns, where)

    def read_table(
        self, name: str, columns: Sequence[str], where: str, partitions: Partitions, label: str = ""
    ) -> bool:
        """See ``Store``."""
        batches = self.batches(name, columns, where)
        if batches is None:
            return False
        self._rows.rows[name] = 0
        for found in batches:
            self._rows.write(name, rows_of(found, partitions, label, _columns(name)))
        return True

    def compare(self, sides: Sequence[TableSide], span: Span) -> Iterator[Difference]:
        """See ``Store``."""
        self._rows.close()
        for bucket in range(COUNT):
            records = {name: self._rows.read(name, bucket) for name in self.counts}
            yield from compare_bucket(records, sides, span, bronze=BRONZE in records)

    def with_rows(self, table: str, contents: Set[tuple[str, int]]) -> set[tuple[str, int]]:
        """See ``Store``."""
        found: set[Any] = set()
        crcs = pa.array(sorted({crc for _, crc in contents}), pa.int64())
        at = SCHEMA.names[:4]
        for bucket in range(COUNT):
            log = self._rows.read(LOG, bucket)
            some = log.filter(pc.is_in(log.column("crc"), value_set=crcs))
            if some.num_rows:
                rows = self._rows.read(table, bucket).select(at)
                for row in some.join(rows, at, join_type="left semi").select(["device", "crc"]).to_pylist():
                    found.add((row["device"], row["crc"]))
        return found & contents

    @property
    def counts(self) -> dict[str, int]:
        """See ``Store``."""
        return self._rows.rows

"""Reads the tables' rows as Arrow batches: with deltalake, or with Spark for tables that only Spark can read.

Both give the same columns, so the comparisons do not know which one reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.contract import base_topic, partition_name
from bridge.errors import TransientError
from pulsebridge.audit.live.buckets import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DeltaTables", "Partitions", "SparkTables", "Tables", "rows_of"]

_BRONZE: Final = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")
_TYPED: Final = ("topic", "partition", "ledger", "entry", "index", "element")


class Tables(Protocol):
    """Reads tables. ``columns`` that a table lacks are left out of the batches. ``where`` is a condition in SQL."""

    def batches(self, name: str, columns: tuple[str, ...], where: str = "") -> Iterator[pa.RecordBatch] | None:
        """Yield the rows of a table; None if it does not exist."""
        ...


class DeltaTables:
    """Tables that are folders below a root, read by deltalake without Spark."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def batches(self, name: str, columns: tuple[str, ...], where: str = "") -> Iterator[pa.RecordBatch] | None:
        """Yield the rows of the table's current version. Raises TransientError if they cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        folder = f"{self._root}/{name}"
        try:
            if not DeltaTable.is_deltatable(folder if "://" in folder else str(Path(folder).absolute())):
                return None
            table = DeltaTable(folder)
            known = {field.name for field in table.schema().fields}
            scan = table.scan(columns=[c for c in columns if c in known], predicate=where or None)
        except DeltaError as e:
            raise TransientError(f"the table {folder} cannot be read: {e}") from e
        found: Iterator[pa.RecordBatch] = iter(pa.RecordBatchReader.from_stream(scan))
        return found


class SparkTables:
    """Tables by name or path, read by Spark: payloads stay there, only their checksums come here."""

    def __init__(self, spark: SparkSession, name: Callable[[str], str]) -> None:
        """``name`` returns how Spark SQL names a table."""
        self._spark, self._name = spark, name

    def batches(self, name: str, columns: tuple[str, ...], where: str = "") -> Iterator[pa.RecordBatch] | None:
        """Yield the rows of the table, one Spark partition at a time."""
        from pyspark.errors import AnalysisException

        try:
            frame = self._spark.table(self._name(name)).where(where or "true")
        except AnalysisException:
            return None
        wanted = [f"crc32({c}) AS {c}" if c == "payload" else f"`{c}`" for c in columns if c in frame.columns]
        return self._parts(frame.selectExpr(*wanted))

    @staticmethod
    def _parts(frame: Any) -> Iterator[pa.RecordBatch]:
        parts = frame.selectExpr("*", "spark_partition_id() AS _part").persist()
        try:
            for row in sorted(parts.select("_part").distinct().collect()):
                yield from parts.where(f"_part = {row[0]}").drop("_part").toArrow().to_batches()
        finally:
            parts.unpersist()


class Partitions:
    """The audited partitions by number. Rows of others are left out."""

    def __init__(self, names: list[str]) -> None:
        self.names = dict(enumerate(names))
        self._numbers = {name: n for n, name in self.names.items()}

    def number(self, topic: str, partition: int) -> int:
        """Return the number of a partition, -1 if it is not audited."""
        base = base_topic(topic)
        return self._numbers.get(partition_name(base, partition), self._numbers.get(base, -1))


def rows_of(found: pa.RecordBatch, partitions: Partitions, label: str = "") -> pa.RecordBatch:
    """Return the rows of bronze, of a typed table or of quarantine in the form of ``Buckets``.

    ``label`` names a column whose text goes into ``topic``.
    """
    size = found.num_rows
    columns = {name: found.column(n) for n, name in enumerate(found.schema.names)}
    if "_position" in columns:
        at = [pc.struct_field(columns["_position"], name) for name in _TYPED]
    else:
        at = [*(columns[name] for name in _BRONZE), pa.array(np.zeros(size, np.int64))]
    topics = at[0].cast(pa.string()).dictionary_encode() if not pa.types.is_dictionary(at[0].type) else at[0]
    names, codes = topics.dictionary.to_pylist(), topics.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(at[1].cast(pa.int32()), 0).to_numpy(zero_copy_only=False)
    # One number for topic and partition: both are few.
    pairs = codes.astype(np.int64) << 32 | numbers
    distinct, inverse = np.unique(pairs, return_inverse=True)
    known = [-1 if n < 0 else partitions.number(names[n >> 32], n & 0xFFFFFFFF) for n in distinct.tolist()]
    part = np.array(known, np.int32)[inverse]
    values = {
        "part": pa.array(part),
        **{
            name: pc.fill_null(column.cast(pa.int64()), 0)
            for name, column in zip(("ledger", "entry"), at[2:4], strict=True)
        },
        "index": pc.max_element_wise(pc.fill_null(at[4].cast(pa.int32()), 0), pa.scalar(0, pa.int32())),
        "element": pc.fill_null(at[5].cast(pa.int64()), 0),
        "us": _micros(columns.get("stored_at"), size, 0),
        "arrival": _micros(columns.get("arrival_time"), size, -1),
        "device": _text(columns.get("device"), size),
        "crc": _checksums(columns.get("payload"), size),
        "topic": _text(columns.get(label), size),
    }
    batch = pa.RecordBatch.from_arrays([values[f.name].cast(f.type) for f in SCHEMA], schema=SCHEMA)
    return batch.filter(pa.array(part >= 0))


def _micros(column: Any, size: int, unknown: int) -> Any:
    if column is None:
        return pa.array(np.full(size, unknown, np.int64))
    zone = column.type.tz
    return pc.fill_null(column.cast(pa.timestamp("us", zone)).cast(pa.int64()), unknown)


def _text(column: Any, size: int) -> Any:
    if column is None:
        return pa.array([""] * size, pa.string())
    return pc.fill_null(column.cast(pa.string()), "")


def _checksums(column: Any, size: int) -> Any:
    if column is None:
        return pa.array(np.full(size, -1, np.int64))
    if pa.types.is_integer(column.type):  # Spark has computed them
        return pc.fill_null(column.cast(pa.int64()), -1)
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + size + 1].tolist()
    whole, crc = memoryview(data or b""), zlib.crc32
    found = pa.array([crc(whole[a:b]) for a, b in pairwise(ends)], pa.int64())
    return pc.if_else(column.is_valid(), found, -1)

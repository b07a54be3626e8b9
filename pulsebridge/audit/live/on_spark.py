"""Reads and compares in Spark's tasks: for fleets that one process cannot read, and tables of a catalog.

A task reads a partition of Pulsar; another compares a bucket. Payloads stay in the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import astuple
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.pulsar.client import PulsarClient
from pulsebridge.audit.live.buckets import SCHEMA, bucket_of
from pulsebridge.audit.live.findings import Finding
from pulsebridge.audit.live.joins import BRONZE, LOG, Lacking, Span, TableSide, compare_bucket
from pulsebridge.audit.live.log import LogReader, batch
from pulsebridge.audit.live.on_disk import Difference, Log
from pulsebridge.audit.live.sequence import Sequences
from pulsebridge.audit.live.tables import Partitions, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OnSpark"]

_BUCKETS: Final = 4096
_ROWS: Final = (
    "part int, ledger bigint, entry bigint, index int, element int, us bigint, arrival bigint, device string, "
    "crc bigint, due binary, target string, bucket int"
)
"""``SCHEMA`` and the bucket, -1 for a row with what ``Sequences`` found, as JSON in ``target``."""
_DIFFERENCES: Final = pa.schema(
    [("table", pa.string()), ("crc", pa.int64()), *((n, pa.string()) for n in ("hop", "kind", "device")),
     ("at_us", pa.int64()), ("message", pa.string()), ("detail", pa.string())]
)  # fmt: skip
_DIFFERENCES_DDL: Final = (
    "table string, crc bigint, hop string, kind string, device string, at_us bigint, message string, detail string"
)
_AT: Final = SCHEMA.names[:4]


class OnSpark:
    """Tables by their names in Spark; each record is a DataFrame that Spark stores on its disks."""

    def __init__(self, spark: SparkSession, name: Callable[[str], str]) -> None:
        """``name`` returns how Spark SQL names a table."""
        self._spark, self._name = spark, name
        self._records: dict[str, DataFrame] = {}
        self.counts: dict[str, int] = {}

    def read_log(self, reader: LogReader, client: PulsarClient, partitions: Sequence[str]) -> Log:
        """Read each partition in a task with a client of its own."""
        from pyspark.sql import functions as F

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with PulsarClient(reader.pulsar) as own:
                for names in batches:
                    for number, name in zip(*(names.column(n).to_pylist() for n in (0, 1)), strict=True):
                        numbers = Sequences(reader.explained)
                        for rows in reader.rows(own, name, number, numbers):
                            yield _with_bucket(rows)
                        text = json.dumps([numbers.copies, *map(astuple, numbers.end())])
                        yield _with_bucket(batch([(number, 0, 0, 0, 0, 0, 0, "", 0, b"", text)]), -1)

        count = max(1, len(partitions))
        names = self._spark.createDataFrame(list(enumerate(partitions)), "number int, name string").repartition(count)
        rows = self._kept(names.mapInArrow(read, _ROWS))
        self._records[LOG] = rows.where("bucket >= 0")
        at = F.struct("ledger", "entry")
        ends = self._records[LOG].groupBy("part").agg(F.min(at).alias("first"), F.max(at).alias("last")).collect()
        found = [json.loads(row[0]) for row in rows.where("bucket < 0").select("target").collect()]
        return Log(
            {row["part"]: (tuple(row["first"]), tuple(row["last"])) for row in ends},
            [Finding(*one) for _, *some in found for one in some],
            sum(copies for copies, *_ in found),
        )

    @staticmethod
    def _kept(frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        return frame.persist(StorageLevel.DISK_ONLY)

    def _frame(self, name: str, columns: Sequence[str], where: str) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        try:
            frame = self._spark.table(self._name(name)).where(where)
            return frame.select(*(c for c in columns if c in frame.columns))
        except AnalysisException:
            return None

    def batches(self, name: str, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch] | None:
        """See ``Store``. All rows come here."""
        frame = self._frame(name, columns, where)
        return None if frame is None else iter(frame.toArrow().to_batches())

    def read_table(
        self, name: str, columns: Sequence[str], where: str, partitions: Partitions, label: str = ""
    ) -> bool:
        """See ``Store``."""
        frame = self._frame(name, columns, where)
        if frame is None:
            return False

        def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (_with_bucket(rows_of(found, partitions, label)) for found in batches)

        self._records[name] = self._kept(frame.mapInArrow(convert, _ROWS))
        return True

    def compare(self, sides: Sequence[TableSide], span: Span) -> Iterator[Difference]:
        """See ``Store``."""
        from pyspark.sql import functions as F

        bronze = BRONZE in self._records

        def differences(rows: pa.Table) -> pa.Table:
            records = {
                name: rows.filter(pa.compute.equal(rows.column("record"), name)).select(SCHEMA.names).cast(SCHEMA)
                for name in rows.column("record").unique().to_pylist()
            }
            found = [_row(*one) for one in compare_bucket(records, sides, span, bronze=bronze)]
            return pa.Table.from_pylist(found, _DIFFERENCES)

        self.counts.update({name: frame.count() for name, frame in self._records.items()})
        named = [frame.withColumn("record", F.lit(name)) for name, frame in self._records.items()]
        every = reduce(lambda one, other: one.union(other), named)
        found = every.groupBy("bucket").applyInArrow(differences, _DIFFERENCES_DDL)
        for table, crc, *fields in found.toLocalIterator():
            finding = Finding(*fields)
            yield table, finding if crc is None else Lacking((finding.device, crc), finding)

    def with_rows(self, table: str, contents: Set[tuple[str, int]]) -> set[tuple[str, int]]:
        """See ``Store``."""
        wanted = self._spark.createDataFrame(sorted(contents), "device string, crc bigint")
        log = self._records[LOG].join(wanted, ["device", "crc"], "left_semi")
        rows = log.join(self._records[table], list(_AT), "left_semi").select("device", "crc").distinct()
        return {(row[0], row[1]) for row in rows.collect()}


def _with_bucket(rows: pa.RecordBatch, bucket: int | None = None) -> pa.RecordBatch:
    numbers: Any = bucket_of(rows, _BUCKETS) if bucket is None else [bucket] * rows.num_rows
    return rows.append_column("bucket", pa.array(numbers, pa.int32()))


def _row(table: str, found: Finding | Lacking) -> dict[str, Any]:
    finding, crc = (found.finding, found.content[1]) if isinstance(found, Lacking) else (found, None)
    fields = zip(("hop", "kind", "device", "at_us", "message", "detail"), astuple(finding), strict=True)
    return {"table": table, "crc": crc, **dict(fields)}

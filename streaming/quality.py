"""Runs the checkpoints of Great Expectations besides the flows, and writes the table of results.

A verdict takes seconds, and a batch must not. So ``Suite.validated`` splits rows at once. Every
``streaming.quality.interval`` seconds a separate thread validates the newest rows of each suite: those of its table
and those in quarantine. An error there is logged and does not affect the flows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import structlog

from streaming.checkpoints import RESULT_COLUMNS, Verdict, result_rows, run_checkpoint
from streaming.reading import QUARANTINE, Reader
from streaming.sql import quoted
from streaming.suites import Suite
from streaming.tables import Table, create, struct_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RESULTS", "QualityWatch", "all_verdicts", "validated_since"]

RESULTS: Final = "quality_results"
_log = structlog.get_logger("stream")


def validated_since(
    spark: SparkSession, table: Table, quarantine: Table, name: str, version: int | None, since: datetime
) -> DataFrame:
    """Return the rows that a table's suite validated. They were written to the table after ``version``, or are there
    now if it is None; or they were written to quarantine after ``since``.
    """
    from pyspark.sql import functions as F

    rows = table.read(spark)
    kept = [c for c in rows.columns if c != "_warnings"]
    good = rows
    if version is not None:
        came = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", str(version + 1))
        good = (came.table(table.sql) if table.by_name else came.load(table.where)).where("_change_type = 'insert'")
    schema = rows.select(*map(quoted, kept)).schema
    bad = quarantine.read(spark).where((F.col("table") == name) & (F.col("validated_at") > F.lit(since)))
    failed = bad.where("row IS NOT NULL").select(F.from_json("row", schema).alias("r")).select("r.*")
    return good.select(*map(quoted, kept)).unionByName(failed)


def all_verdicts(spark: SparkSession, reader: Reader, name: str, suite: Suite) -> list[Verdict]:
    """Run the checkpoint of a table on all rows that its suite validated, quarantine included.

    Raises the exceptions of ``run_checkpoint``.
    """
    folder = reader.settings.streaming.suites
    assert folder is not None  # the suite is in it
    begin = datetime.fromtimestamp(0, timezone.utc)
    rows = validated_since(spark, reader.table(name), reader.table(QUARANTINE), name, None, begin).persist()
    try:
        return run_checkpoint(folder, name, suite, rows)
    finally:
        rows.unpersist()


class QualityWatch:
    """Makes verdicts at an interval on its own thread, until it is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        tables: Mapping[str, tuple[Table, Suite]],
        quarantine: Table,
        results: Table,
        interval_s: float,
        limit: int,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._tables = tables
        self._quarantine = quarantine
        self._results = results
        self._interval_s = interval_s
        self._limit = limit
        self._from = {name: self._version(table) for name, (table, _) in tables.items()}
        self._since = datetime.now(timezone.utc)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, except if the interval is 0."""
        if self._interval_s > 0 and self._tables:
            self._thread = threading.Thread(target=self._run, name="quality", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait at most half a minute for a verdict in progress."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
            self._thread = None

    def once(self) -> None:
        """Make a verdict on each table now, for the rows since the last verdict."""
        now = datetime.now(timezone.utc)
        for name in self._tables:
            try:
                self._validate(name, now)
            except Exception as e:  # noqa: BLE001 — an observer, whose errors do not stop the flows
                _log.warning(
                    "no verdict on a table. Action: check the suite, or set streaming.quality.interval=0s",
                    table=name,
                    error=str(e)[:300],
                )
        self._since = now

    def _validate(self, name: str, now: datetime) -> None:
        table, suite = self._tables[name]
        version = self._version(table)
        if version == self._from[name]:
            return
        rows = validated_since(self._spark, table, self._quarantine, name, self._from[name], self._since)
        rows = rows.limit(self._limit).persist()
        try:
            if rows.isEmpty():
                return
            found = run_checkpoint(self._folder, name, suite, rows)
        finally:
            rows.unpersist()
        self._from[name] = version
        schema = ", ".join(f"{quoted(n)} {kind} COMMENT '{text}'" for n, kind, text in RESULT_COLUMNS)
        create(self._spark, self._results, struct_of(schema), comment="Verdicts of Great Expectations")
        values = result_rows(found, suite, name, self._since, now)
        self._results.append(self._spark.createDataFrame(values, schema).coalesce(1))

    def _version(self, table: Table) -> int:
        row = self._spark.sql(f"DESCRIBE HISTORY {table.sql} LIMIT 1").first()
        return -1 if row is None else int(row["version"])

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.once()

"""Runs the verdicts of Great Expectations beside the queries, never inside a batch, into the table of results.

A verdict takes seconds and a batch must not: rows are split at once by predicates, and every
``streaming.quality_interval_s`` seconds the newest rows of silver and quarantine together, which is what the suite
judged, are validated on a thread of their own. A verdict that fails is logged and harms no query.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import structlog

from streaming.tables import QUALITY_COLUMNS, SILVER_COLUMNS, Tables, create, schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from streaming.expectations import Verdict
    from streaming.predicates import Suite

__all__ = ["QualityWatch", "append_results", "judged_rows", "make_verdicts"]

_log = structlog.get_logger("stream")


def judged_rows(spark: SparkSession, tables: Tables, since: datetime, limit: int) -> DataFrame:
    """Return the newest rows that the suite judged after ``since``: those of silver and of quarantine."""
    from pyspark.sql import functions as F

    names = [c.name for c in SILVER_COLUMNS]
    both = tables.silver.read(spark).select(*names).unionAll(tables.quarantine.read(spark).select(*names))
    return both.where(F.col("processed_at") > F.lit(since)).orderBy(F.desc("processed_at")).limit(limit)


def make_verdicts(
    spark: SparkSession, tables: Tables, suite: Suite, since: datetime, limit: int
) -> datetime | None:
    """Validate what was judged since then and append the verdicts; return until when, None when there was nothing."""
    from pyspark.sql import functions as F

    from streaming.expectations import verdicts

    rows = judged_rows(spark, tables, since, limit).persist()
    try:
        last = rows.agg(F.max("processed_at").alias("last")).first()
        until: datetime | None = None if last is None else last["last"]
        if until is None:
            return None
        found = verdicts(rows, suite)
    finally:
        rows.unpersist()
    append_results(spark, tables, suite, found, since, until, "silver+quarantine")
    return until


def append_results(
    spark: SparkSession,
    tables: Tables,
    suite: Suite,
    found: Sequence[Verdict],
    since: datetime | None,
    until: datetime | None,
    judged: str,
) -> None:
    """Append verdicts to the table of results. ``judged`` names what was judged; the times may be unknown."""
    create(
        spark,
        tables.quality_results,
        QUALITY_COLUMNS,
        comment="Verdicts of Great Expectations on what was judged",
        statistics=("run_at", "rule"),
    )
    now = datetime.now(timezone.utc)
    rows: list[tuple[Any, ...]] = [
        (
            now,
            suite.name,
            v.rule,
            v.expectation,
            list(v.columns),
            v.splits_rows,
            v.success,
            v.evaluated,
            v.unexpected,
            v.observed,
            since,
            until,
            judged,
        )
        for v in found
    ]
    frame = spark.createDataFrame(rows, schema_of(QUALITY_COLUMNS)).coalesce(1)
    writer = frame.write.format("delta").mode("append")
    table = tables.quality_results
    if table.by_name:
        writer.saveAsTable(table.sql)
    else:
        writer.save(table.where)


class QualityWatch:
    """Makes verdicts at an interval on a thread of its own, until stopped."""

    def __init__(
        self, spark: SparkSession, tables: Tables, suite: Suite, interval_s: float, limit: int
    ) -> None:
        self._spark = spark.newSession()
        self._tables = tables
        self._suite = suite
        self._interval_s = interval_s
        self._limit = limit
        self._since = datetime.now(timezone.utc)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless the interval is 0."""
        if self._interval_s > 0:
            self._thread = threading.Thread(target=self._run, name="quality", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; one verdict that is under way is waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
            self._thread = None

    def once(self) -> None:
        """Make one verdict now, of what came since the last."""
        try:
            until = make_verdicts(self._spark, self._tables, self._suite, self._since, self._limit)
        except Exception as e:  # noqa: BLE001 — verdicts are an observer: whatever breaks them, the queries go on
            _log.warning(
                "no verdict; see the suite, or set streaming.quality_interval_s=0", error=str(e)[:300]
            )
            return
        self._since = until or self._since

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.once()

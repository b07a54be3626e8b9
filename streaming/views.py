"""Maintains tables that follow other tables: views, and the newest row of each key. Both merges are idempotent.

A view's flow follows the change data feed of a table that the view reads. The view's function, applied to the changed
rows, returns the affected keys. Applied to the current table for only these keys, it returns the rows that replace
theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.killpoints import reach
from streaming.pipelines import Flow
from streaming.sql import quoted, same
from streaming.tables import GONE, Table
from streaming.writing import quarantined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streaming.reading import Reader
    from streaming.suites import Suite

__all__ = ["NewestBatches", "ViewBatches", "newest"]


@dataclass
class ViewBatches:
    """Updates a view with a micro-batch of changes of ``source``, a table that it reads.

    A row of the view that fails a critical rule of its suite goes from the view to quarantine, at each
    computation.
    """

    reader: Reader
    flow: Flow
    source: str
    table: Table
    suite: Suite | None = None
    quarantine: Table | None = None

    def __call__(self, changes: DataFrame, number: int) -> None:
        """Recompute the affected keys. An exception stops the query, and the batch is repeated."""
        from pyspark.sql import functions as F

        keys = self.flow.keys
        self.reader.spark = spark = changes.sparkSession
        rows = changes.drop("_change_type", "_commit_version", "_commit_timestamp").persist()
        touched = self._given(rows).select(*map(quoted, keys)).distinct().persist()
        try:
            if touched.isEmpty():
                return
            reach("view.touched")
            whole = self._near(self.reader.table(self.source).read(spark), rows, touched)
            now = (
                self._given(whole)
                .alias("s")
                .join(F.broadcast(touched).alias("k"), F.expr(same(keys, "s", "k")), "left_semi")
            )
            now = self._passed(now)
            found = touched.alias("k").join(
                now.withColumn(GONE, F.lit(False)).alias("s"), F.expr(same(keys, "k", "s")), "left"
            )
            rest = [c for c in now.columns if c not in keys]
            self.table.merge(
                found.select(
                    *(F.col(f"k.{quoted(k)}") for k in keys),
                    *(F.col(f"s.{quoted(c)}") for c in rest),
                    F.coalesce(F.col(GONE), F.lit(True)).alias(GONE),
                ),
                keys,
            )
            reach("view.merged")
        finally:
            touched.unpersist()
            rows.unpersist()

    def _passed(self, rows: DataFrame) -> DataFrame:
        """Return the rows that pass the view's suite; the others go to quarantine."""
        from pyspark.sql import functions as F

        if self.suite is None or self.quarantine is None:
            return rows
        validated = self.suite.validated(rows).persist()
        bad = validated.where(F.size("_failed_rules") > 0)
        if not bad.isEmpty():
            self.quarantine.append(quarantined(bad, self.reader.pipeline.tables[self.flow.target]))
        return validated.where(F.size("_failed_rules") == 0).drop("_failed_rules")

    def _given(self, rows: DataFrame) -> DataFrame:
        """Return the view's result for these rows of the source."""
        self.reader.instead = {self.source: rows}
        try:
            return self.reader.frame(self.flow)
        finally:
            self.reader.instead = {}
            self.reader.seen.clear()

    def _near(self, whole: DataFrame, rows: DataFrame, touched: DataFrame) -> DataFrame:
        """Return the rows of the source that can belong to the keys. Statistics of the columns let Delta skip files."""
        from pyspark.sql import functions as F

        plain = [k for k in self.flow.keys if k in whole.columns]
        bounds: list[Any] = []
        for key in plain:
            bounds += [F.min(quoted(key)).alias(f"low {key}"), F.max(quoted(key)).alias(f"high {key}")]
            bounds.append(F.count_if(F.col(quoted(key)).isNull()).alias(f"none {key}"))
        if self.flow.within is not None:
            time, span = self.flow.within
            bounds.append((F.min(quoted(time)) - F.expr(f"INTERVAL {span}")).alias("since"))
            bounds.append((F.max(quoted(time)) + F.expr(f"INTERVAL {span}")).alias("until"))
            bounds.append(F.count_if(F.col(quoted(time)).isNull()).alias("timeless"))
        if not bounds:
            return whole
        found = rows.agg(*bounds).first()
        assert found is not None
        for key in plain:
            if not found[f"none {key}"]:
                whole = whole.where(F.col(quoted(key)).between(F.lit(found[f"low {key}"]), F.lit(found[f"high {key}"])))
        if self.flow.within is not None and not found["timeless"]:
            whole = whole.where(
                F.col(quoted(self.flow.within[0])).between(F.lit(found["since"]), F.lit(found["until"]))
            )
        if plain:
            near = F.broadcast(touched.select(*map(quoted, plain)).distinct()).alias("k")
            whole = whole.alias("s").join(near, F.expr(same(plain, "s", "k")), "left_semi")
        return whole


@dataclass
class NewestBatches:
    """Keeps for each key the row with the greatest sequence."""

    table: Table
    keys: tuple[str, ...]
    sequence_by: str

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Merge one micro-batch. An exception stops the query, and the batch is repeated."""
        from pyspark.sql import functions as F

        known = self.table.read(batch.sparkSession)
        names = [quoted(c) for c in known.columns if c in batch.columns]
        rows = batch.select(*names)
        # With the stored rows, so that one expression compares all sequences.
        stored = known.select(*names).join(
            F.broadcast(rows.select(*map(quoted, self.keys)).distinct()), list(self.keys), "left_semi"
        )
        self.table.merge(newest(rows.unionByName(stored), self.keys, self.sequence_by), self.keys)
        reach("newest.merged")


def newest(rows: DataFrame, keys: tuple[str, ...], sequence_by: str) -> DataFrame:
    """Return for each key the row with the greatest sequence. Rows without a sequence are left out."""
    from pyspark.sql import functions as F

    row = F.max_by(F.struct("*"), F.expr(sequence_by)).alias("_newest")
    found = rows.where(f"({sequence_by}) IS NOT NULL").groupBy(*map(quoted, keys)).agg(row)
    return found.select("_newest.*")

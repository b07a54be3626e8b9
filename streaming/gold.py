"""The query gold: silver's readings, aggregated by device, metric and window of event time; late ones are kept aside.

A window's row is there with its first reading and grows by MERGE, so that the table itself is the state: nothing is
held in memory, and a restart or another number of cores changes nothing. A window is final when the watermark has
passed its end. The watermark is Spark's own (``withWatermark``): the latest event time of all batches before, less
``streaming.gold_watermark_s``. Spark writes a batch's watermark into its offset log before the batch runs.

One micro-batch, in this order; a test cuts it after each step:

1. *recipe*: the length of the windows is stored beside the checkpoint, unless the batch was begun before: then the
   stored one is taken. The batch's watermark is read from Spark's offset log.
2. *split*: a reading is late when its window ends at or before that watermark, or when it has no event time. Both
   depend on the reading and the batch alone: a batch that is run again splits its rows in the same way, so that
   each is in exactly one window or in the late table.
3. *gold*: the readings that are not late are aggregated and merged into their windows.
4. *late*: the others are appended to the late table.

Both writes carry the checkpoint's name and the batch's number in Delta's log: a batch that is run again skips what
it has committed, so nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streaming.batch_figures import observed
from streaming.checkpoints import Checkpoint
from streaming.conflicts import retrying
from streaming.silver import judged_by_the_query
from streaming.tables import GOLD_COLUMNS, LATE_COLUMNS, Table, Tables, create, insert_all

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from bridge.settings import StreamingSettings

__all__ = ["GoldBatches", "aggregated", "create_tables", "query", "recipe_of", "split_by"]

_KEY: Final = ("device", "metric", "window_start", "window_end")
_FIRST: Final = ("first_time", "first_id", "first_value")
_LAST: Final = ("last_time", "last_id", "last_value", "unit")


def create_tables(spark: SparkSession, tables: Tables) -> None:
    """Create gold and the late table unless they are there."""
    create(
        spark,
        tables.gold,
        GOLD_COLUMNS,
        comment="Readings by device, metric and window of event time",
        statistics=("window_start", "window_end", "device", "metric"),
    )
    create(
        spark,
        tables.late,
        LATE_COLUMNS,
        comment="Readings that came after their window of gold was final, in no window of it",
        statistics=("event_time", "device", "window_start", "processed_at"),
    )


def recipe_of(settings: StreamingSettings) -> dict[str, Any]:
    """Return what decides, beside the watermark, to which window a reading belongs, as plain data."""
    return {"v": 1, "window_s": settings.gold_window_s}


def split_by(rows: DataFrame, window_s: int, watermark_ms: int) -> DataFrame:
    """Add each reading's window, the watermark, and ``is_late``, which is never null."""
    from pyspark.sql import functions as F

    at, length = F.unix_micros("event_time"), F.lit(window_s * 1_000_000)
    start = at - F.pmod(at, length)
    return (
        rows.withColumn("window_start", F.timestamp_micros(start))
        .withColumn("window_end", F.timestamp_micros(start + length))
        .withColumn("watermark", F.timestamp_millis(F.lit(watermark_ms)))
        .withColumn("is_late", F.coalesce(F.col("window_end") <= F.col("watermark"), F.lit(True)))
    )


def aggregated(rows: DataFrame) -> DataFrame:
    """Return gold's row for each window of these readings, which have their windows."""
    from pyspark.sql import functions as F

    place = F.struct("event_time", "reading_id")
    first = F.min_by(F.struct("event_time", "reading_id", "value"), place)
    last = F.max_by(F.struct("event_time", "reading_id", "value", "unit"), place)
    found = rows.groupBy(*_KEY).agg(
        F.count("*").alias("readings"),
        F.count("value").alias("measured"),
        F.min("value").alias("min_value"),
        F.max("value").alias("max_value"),
        F.sum("value").alias("sum_value"),
        first.alias("first"),
        last.alias("last"),
    )

    def told(of: str, names: tuple[str, ...]) -> list[Column]:
        kept = ("event_time", "reading_id", "value", "unit")
        return [F.col(f"{of}.{field}").alias(name) for field, name in zip(kept, names, strict=False)]

    return found.select(
        "*",
        *told("first", _FIRST),
        *told("last", _LAST),
        F.try_divide("sum_value", "measured").alias("mean_value"),
        F.current_timestamp().alias("updated_at"),
    ).select(*(c.name for c in GOLD_COLUMNS))


@dataclass
class GoldBatches:
    """Writes the micro-batches of gold. ``after`` is told each step that is done, by its name in the module's text;
    ``written`` how many rows of which table a batch has changed or appended, ``gold`` or ``late``.
    """

    tables: Tables
    checkpoint: Checkpoint
    recipe: Mapping[str, Any]
    after: Callable[[str], None] = lambda step: None
    written: Callable[[str, int], object] = lambda table, rows: None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark's query thread; what it raises stops the query, and the batch
        is run again at the next start.
        """
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        begun = self.checkpoint.begun(batch_id)
        recipe = self.recipe if begun is None else begun
        if begun is None:
            self.checkpoint.begin(batch_id, recipe)
        watermark_ms = self.checkpoint.watermark_ms(batch_id)
        self.after("recipe")
        # Delta's log remembers both per table; the session is this query's own.
        spark.conf.set("spark.databricks.delta.write.txnAppId", self.checkpoint.app_id())
        spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        # The aggregates are read twice by a MERGE that updates, and Delta wants to keep them for that itself.
        spark.conf.set("spark.databricks.delta.merge.materializeSource", "auto")
        split = split_by(rows, int(recipe["window_s"]), watermark_ms).persist()
        try:
            kept = F.when(~F.col("is_late"), F.col("window_start"))
            counts = split.agg(
                F.count_if(~F.col("is_late")).alias("kept"),
                F.count_if("is_late").alias("late"),
                F.date_format(F.min(kept), "yyyy-MM-dd'T'HH:mm:ssXXX").alias("first"),
                F.date_format(F.max(kept), "yyyy-MM-dd'T'HH:mm:ssXXX").alias("last"),
            ).first()
            assert counts is not None  # an aggregate without keys gives one row
            self.after("split")
            if counts["kept"]:
                merged = _merge(
                    self.tables.gold,
                    aggregated(split.where("NOT is_late")),
                    str(counts["first"]),
                    str(counts["last"]),
                )
                self.written("gold", merged)
            self.after("gold")
            if counts["late"]:
                _append(self.tables.late, split.where("is_late").select(*(c.name for c in LATE_COLUMNS)))
                self.written("late", counts["late"])
            self.after("late")
        finally:
            split.unpersist()


def _merge(gold: Table, rows: DataFrame, first: str, last: str) -> int:
    """Merge windows into those that are there; return how many rows that changed."""
    same = "t.device <=> s.device AND t.metric <=> s.metric AND t.window_end = s.window_end"
    # The batch's own windows as literals let Delta skip the files of all others.
    near = f"t.window_start = s.window_start AND t.window_start BETWEEN TIMESTAMP '{first}' AND TIMESTAMP '{last}'"
    earlier = "struct(s.first_time, s.first_id) < struct(t.first_time, t.first_id)"
    later = "struct(s.last_time, s.last_id) > struct(t.last_time, t.last_id)"
    sets = {
        **{name: f"t.{name} + s.{name}" for name in ("readings", "measured")},
        "min_value": "least(t.min_value, s.min_value)",
        "max_value": "greatest(t.max_value, s.max_value)",
        "sum_value": _total("t.sum_value", "s.sum_value"),
        "mean_value": f"try_divide({_total('t.sum_value', 's.sum_value')}, t.measured + s.measured)",
        **{name: f"if({earlier}, s.{name}, t.{name})" for name in _FIRST},
        **{name: f"if({later}, s.{name}, t.{name})" for name in _LAST},
        "updated_at": "s.updated_at",
    }
    statement = (
        f"MERGE INTO {gold.sql} t USING {{rows}} s ON {same} AND {near} "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = {value}' for name, value in sets.items())} "
        f"WHEN NOT MATCHED THEN {insert_all(GOLD_COLUMNS)}"
    )
    # A forgetting or a rebuild may commit in between; the batch must not end for that.
    done = retrying(lambda: rows.sparkSession.sql(statement, rows=rows).first(), gold.where)
    return 0 if done is None else int(done["num_affected_rows"])


def _total(one: str, other: str) -> str:
    """Return the sum of two that may be null: a window without values has none."""
    return f"coalesce({one} + {other}, {one}, {other})"


def _append(late: Table, rows: DataFrame) -> None:
    writer = rows.coalesce(1).write.format("delta").mode("append")
    if late.by_name:
        writer.saveAsTable(late.sql)
    else:
        writer.save(late.where)


def query(spark: SparkSession, tables: Tables, watermark_s: float, batches: GoldBatches) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        observed(judged_by_the_query(spark, tables), "processed_at")
        .withWatermark("event_time", f"{watermark_s * 1000:.0f} milliseconds")
        .writeStream.queryName("gold")
        .foreachBatch(batches)
        .option("checkpointLocation", tables.checkpoint("gold"))
    )

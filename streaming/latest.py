"""The query latest: the table ``device_latest``, one row for each device and metric with what is known of it last.

It reads silver, and from Pulsar the commands, their receipts and the devices' signs of life (``device_changes``). What
is known of the device itself stands in all of its rows; a device that has no reading yet has one row, without a metric.

Which of several counts depends on themselves alone, not on the batch or the order in which they come:

- of the readings of a metric the one with the latest event time, then the last in Pulsar's order;
- of the commands the one emitted last, then the one with the greatest id; of its receipts the last in Pulsar's order,
  but never ``duplicate`` beside another one, which tells of a copy of the command;
- of the signs of life the last in Pulsar's order; one without payload takes them away.

So an older one never overwrites a newer one, and a batch that is run again changes nothing. One micro-batch, in this
order; a test cuts it after each step:

1. *changes*: the rows of the batch, kept in memory.
2. *merged*: with what the table has of their devices they are merged into it, those rows that differ, in one commit
   that carries the checkpoint's name and the batch's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming import device_changes
from streaming.checkpoints import Checkpoint
from streaming.conflicts import retrying
from streaming.tables import (
    DEVICE_LATEST_COLUMNS,
    POSITION_COLUMNS,
    READING_FIELDS,
    Table,
    Tables,
    create,
    insert_all,
    update_all,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

__all__ = ["LatestBatches", "create_table", "known", "merge_sql", "newest", "query"]


def create_table(spark: SparkSession, tables: Tables) -> None:
    """Create the table unless it is there."""
    create(
        spark,
        tables.device_latest,
        DEVICE_LATEST_COLUMNS,
        comment="The latest of each device and metric: reading, presence, command and its receipt",
        statistics=("device", "metric", "event_time"),
    )


def newest(changes: DataFrame) -> DataFrame:
    """Return the table's rows of the devices of these changes, with ``is_gone``: true on a row that there must not be."""
    from pyspark.sql import functions as F

    rows = changes.withColumn("command_id", F.col("command.command_id"))
    # All that follows goes by device: the rows are moved once.
    rows = rows.repartition("device")
    by_fact = rows.groupBy("device", "metric", "command_id").agg(
        _last("reading", *(f"reading.{name}" for name in ("event_time", *POSITION_COLUMNS, "element"))),
        # The command itself knows more of it than its receipts. It may stand in Pulsar twice.
        F.max_by(
            "command",
            F.when(
                F.col("command").isNotNull(),
                F.struct(F.col("command.qos").isNotNull(), -F.unix_micros("command.emitted_at")),
            ),
        ).alias("command"),
        F.max_by(
            "receipt",
            F.when(
                F.col("receipt").isNotNull(),
                F.struct(F.col("receipt.state") != "duplicate", *_place("receipt")),
            ),
        ).alias("receipt"),
        F.max_by("presence", F.when(F.col("presence").isNotNull(), F.struct(*_place("presence")))).alias(
            "presence"
        ),
    )
    told = F.struct("command", "receipt")
    by_device = by_fact.groupBy("device").agg(
        F.collect_list(F.when(F.col("reading").isNotNull(), F.struct("metric", "reading"))).alias("readings"),
        F.max_by(
            told, F.when(F.col("command").isNotNull(), F.struct("command.emitted_at", "command_id"))
        ).alias("told"),
        F.max_by("presence", F.when(F.col("presence").isNotNull(), F.struct(*_place("presence")))).alias(
            "presence"
        ),
    )
    # A device without a reading has a row without a metric, which goes when the first one comes.
    each = by_device.withColumn("is_measured", F.size("readings") > 0).withColumn(
        "each", F.explode(F.concat("readings", F.array(F.lit(None))))
    )
    return each.select(
        "device",
        "each.metric",
        *(F.col(f"each.reading.{c.name}").alias(c.name) for c in READING_FIELDS),
        "presence",
        "told.command",
        "told.receipt",
        (F.col("is_measured") & F.col("each").isNull()).alias("is_gone"),
    )


def _place(of: str) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(f"{of}.{name}") for name in ("ledger_id", "entry_id", "batch_index")]


def _last(name: str, *order: str) -> Column:
    from pyspark.sql import functions as F

    return F.max_by(name, F.when(F.col(name).isNotNull(), F.struct(*(F.col(n) for n in order)))).alias(name)


def known(table: DataFrame, but: DataFrame | None = None) -> DataFrame:
    """Return the table's rows as changes: each reading, and what is known of its device. ``but``: devices and metrics
    whose reading does not count.
    """
    from pyspark.sql import functions as F

    measured = table.where("metric IS NOT NULL")
    if but is not None:
        measured = measured.join(but, ["device", "metric"], "left_anti")
    readings = device_changes.rows_of(measured, reading=F.struct(*(c.name for c in READING_FIELDS)))
    devices = device_changes.rows_of(
        table, command=F.col("command"), receipt=F.col("receipt"), presence=F.col("presence")
    )
    return readings.unionByName(devices)


def merge_sql(table: Table) -> str:
    """Return the statement that merges ``{rows}``, as ``newest`` gives them, into the table: those that differ."""
    same = " AND ".join(f"t.`{c.name}` <=> s.`{c.name}`" for c in DEVICE_LATEST_COLUMNS)
    return (
        f"MERGE INTO {table.sql} t USING {{rows}} s ON t.device = s.device AND t.metric <=> s.metric "
        f"WHEN MATCHED AND s.is_gone THEN DELETE "
        f"WHEN MATCHED AND NOT ({same}) THEN {update_all(DEVICE_LATEST_COLUMNS)} "
        f"WHEN NOT MATCHED AND NOT s.is_gone THEN {insert_all(DEVICE_LATEST_COLUMNS)}"
    )


@dataclass
class LatestBatches:
    """Writes the micro-batches of latest. ``after`` is told each step that is done, by its name in the module's text;
    ``written`` how many rows of the table a batch has changed.
    """

    tables: Tables
    checkpoint: Checkpoint
    after: Callable[[str], None] = lambda step: None
    written: Callable[[str, int], object] = lambda table, rows: None

    def __call__(self, changes: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark's query thread; what it raises stops the query, and the batch
        is run again at the next start.
        """
        spark = changes.sparkSession
        # Delta's log remembers both; the session is this query's own.
        spark.conf.set("spark.databricks.delta.write.txnAppId", self.checkpoint.app_id())
        spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        # The rows are read twice by a MERGE that updates, and Delta wants to keep them for that itself.
        spark.conf.set("spark.databricks.delta.merge.materializeSource", "auto")
        kept = changes.persist()
        try:
            table = self.tables.device_latest
            self.after("changes")

            def write() -> Row | None:
                before = table.read(spark).join(kept.select("device").distinct(), "device", "left_semi")
                return spark.sql(merge_sql(table), rows=newest(kept.unionByName(known(before)))).first()

            # A forgetting or a rebuild may commit in between; the batch must not end for that.
            done = retrying(write, table.where)
            self.written("device_latest", 0 if done is None else int(done["num_affected_rows"]))
            self.after("merged")
        finally:
            kept.unpersist()


def query(changes: DataFrame, tables: Tables, batches: LatestBatches) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        changes.writeStream.queryName("latest")
        .foreachBatch(batches)
        .option("checkpointLocation", tables.checkpoint("latest"))
    )

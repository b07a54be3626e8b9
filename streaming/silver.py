"""The query silver: bronze decoded, judged and split into silver and quarantine.

One micro-batch, in this order; a test cuts it after each step:

1. *recipe*: the decoders, the suite and the limits that judge the batch are stored beside the checkpoint, unless the
   batch was begun before: then the stored ones are taken (H18).
2. *judged*: rows are decoded, and the names of the rules that each fails are computed once, as a column.
3. *silver*: rows that fail none are merged into silver, insert only, on device, reading id and event day (H17: no
   watermark, so nothing is too late). Of several in one batch the first in Pulsar's order is kept.
   Where a decoder says that its readings have no id, each is kept, and those that equal an earlier one are counted.
4. *quarantine*: the others are appended to quarantine with the names of the rules, the reason and the payload.

Both writes carry the checkpoint's name and the batch's number in Delta's log: a batch that is run again skips what
it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from streaming import rule_fields
from streaming.checkpoints import Checkpoint, recipe_hash
from streaming.decoders.settings import Decoder, as_recipe, parse_decoders
from streaming.predicates import Suite, failed_rules, parse_suite
from streaming.readings import UNDECODABLE, UNKNOWN_TOPIC, decode
from streaming.rule_fields import RuleFields
from streaming.tables import POSITION_COLUMNS, QUARANTINE_COLUMNS, SILVER_COLUMNS, Table, Tables, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

__all__ = [
    "CLOCK_SKEW",
    "CONTENT",
    "KEY",
    "SilverBatches",
    "create_tables",
    "first_of_each",
    "judged",
    "query",
    "recipe_of",
    "suspects_of",
]

CLOCK_SKEW: Final = "clock_skew"
"""Rule that a row fails when the device's time is too far ahead of arrival (H20)."""
KEY: Final = ("device", "reading_id", "event_day")
"""What makes two rows the same reading."""

CONTENT: Final = ("device", "mqtt_topic", "metric", "event_day", "event_time", "value")
"""What is the same in a reading without an id and in the one that it may be a repetition of."""

_REASONS: Final = {
    UNKNOWN_TOPIC: "no decoder's filter matches the MQTT topic",
    CLOCK_SKEW: "the device's time is ahead of arrival by more than streaming.clock_skew_s",
}


def create_tables(spark: SparkSession, tables: Tables) -> None:
    """Create silver and quarantine unless they are there."""
    create(
        spark,
        tables.silver,
        SILVER_COLUMNS,
        comment="Readings that passed every rule, each once",
        statistics=("event_day", "event_time", "device", "reading_id", "processed_at"),
    )
    create(
        spark,
        tables.quarantine,
        QUARANTINE_COLUMNS,
        comment="Messages that failed a rule, with the names of the rules and the payload",
        statistics=("device", "arrival_time", "processed_at"),
    )


def recipe_of(
    decoders: tuple[Decoder, ...], suite: Suite, clock_skew_s: float, rules: Sequence[RuleFields] = ()
) -> dict[str, Any]:
    """Return all that decides where a row goes, as plain data. ``rules``: what the topic rules say of readings."""
    recipe = {"v": 1, "readings": as_recipe(decoders), "suite": suite.body, "clock_skew_s": clock_skew_s}
    if all(d.id and d.time for d in decoders):
        return recipe
    return recipe | {"rules": rule_fields.as_recipe(rules)}


def judged(bronze: DataFrame, recipe: Mapping[str, Any]) -> DataFrame:
    """Decode bronze rows and add ``failed_rules``: what a row failed, empty for silver."""
    from pyspark.sql import functions as F

    decoders = parse_decoders(recipe["readings"], "recipe")
    rules = rule_fields.from_recipe(recipe.get("rules", ()))
    suite = parse_suite(recipe["suite"], "recipe")
    limit = F.make_dt_interval(secs=F.lit(float(recipe["clock_skew_s"])))
    skewed = F.when(
        F.col("event_time") > F.coalesce("arrival_time", "publish_time") + limit, F.lit(CLOCK_SKEW)
    )
    failed = F.concat("decoding_failures", F.array_compact(F.array(skewed)), failed_rules(suite))
    return decode(bronze, decoders, rules).withColumn("failed_rules", failed).drop("decoding_failures")


def first_of_each(rows: DataFrame) -> DataFrame:
    """Keep the first row of each reading in Pulsar's order, whatever the order of the rows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    place = F.row_number().over(Window.partitionBy(*KEY).orderBy(*POSITION_COLUMNS, "element"))
    return rows.withColumn("place", place).where("place = 1").drop("place")


def suspects_of(rows: DataFrame, silver: DataFrame) -> int:
    """Return how many of these rows equal an earlier one, of theirs or of silver; run again, it is the same number.

    Earlier means earlier in Pulsar, where the readings of a device keep their order.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    place = F.struct("ledger_id", "entry_id", "batch_index", "element").alias("place")
    new = rows.select(*CONTENT, place, F.lit(True).alias("new"))
    known = silver.join(rows.select(*CONTENT).distinct(), list(CONTENT), "left_semi")
    both = new.unionByName(known.select(*CONTENT, place, F.lit(False).alias("new")))
    first = F.min("place").over(Window.partitionBy(*CONTENT))
    return both.withColumn("first", first).where("new AND place > first").count()


def reason_of(suite: Suite) -> Any:
    """Return the column that puts the first failed rule into words."""
    from pyspark.sql import functions as F

    first = F.col("failed_rules")[0]
    text = F.concat(F.lit("fails the rule "), first)
    for rule in suite.row_rules:
        text = F.when(
            first == rule.name, F.lit(f"{rule.expectation} on {', '.join(rule.columns)}")
        ).otherwise(text)
    for name, words in _REASONS.items():
        text = F.when(first == name, F.lit(words)).otherwise(text)
    return F.when(first == UNDECODABLE, F.col("fault")).otherwise(text)


@dataclass
class SilverBatches:
    """Writes the micro-batches of silver. ``after`` is told each step that is done, by its name in the module's text;
    ``suspects`` how many readings without an id may be repetitions, in batches where there are any.
    """

    tables: Tables
    checkpoint: Checkpoint
    recipe: Mapping[str, Any]
    after: Callable[[str], None] = lambda step: None
    suspects: Callable[[int], object] = lambda count: None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark's query thread; what it raises stops the query, and the batch
        is run again at the next start.
        """
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        recipe = self.checkpoint.recipe_for(batch_id, self.recipe)
        self.after("recipe")
        # Delta's log remembers both per table; the session is this query's own.
        spark.conf.set("spark.databricks.delta.write.txnAppId", self.checkpoint.app_id())
        spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        split = judged(rows, recipe).persist()
        try:
            good = F.size("failed_rules") == 0
            counts = split.agg(
                F.count_if(good).alias("good"),
                F.count_if(~good).alias("bad"),
                F.count_if(good & F.col("no_id")).alias("without_id"),
                F.min(F.when(good, F.col("event_day"))).alias("first_day"),
                F.max(F.when(good, F.col("event_day"))).alias("last_day"),
            ).first()
            assert counts is not None  # an aggregate without keys gives one row
            self.after("judged")
            if counts["without_id"]:
                self._suspect(split.where(good).where("no_id"), counts["first_day"], counts["last_day"])
            if counts["good"]:
                passed = split.where(good).select(*(c.name for c in SILVER_COLUMNS))
                _merge(
                    self.tables.silver,
                    first_of_each(passed),
                    str(counts["first_day"]),
                    str(counts["last_day"]),
                )
            self.after("silver")
            if counts["bad"]:
                self._quarantine(split.where(~good), recipe, batch_id)
            self.after("quarantine")
        finally:
            split.unpersist()

    def _suspect(self, rows: DataFrame, first_day: date, last_day: date) -> None:
        from pyspark.sql import functions as F

        silver = self.tables.silver.read(rows.sparkSession)
        count = suspects_of(rows, silver.where(F.col("event_day").between(first_day, last_day)))
        if count:
            self.suspects(count)

    def _quarantine(self, rows: DataFrame, recipe: Mapping[str, Any], batch_id: int) -> None:
        from pyspark.sql import functions as F

        suite = parse_suite(recipe["suite"], "recipe")
        failed = rows.withColumn("reason", reason_of(suite)).withColumn("recipe", F.lit(recipe_hash(recipe)))
        writer = (
            failed.select(*(c.name for c in QUARANTINE_COLUMNS))
            .coalesce(1)
            .write.format("delta")
            .mode("append")
        )
        table = self.tables.quarantine
        if table.by_name:
            writer.saveAsTable(table.sql)
        else:
            writer.save(table.where)


def _merge(silver: Table, rows: DataFrame, first_day: str, last_day: str) -> None:
    same = " AND ".join(f"t.{name} = s.{name}" for name in KEY)
    # The batch's own days as literals let Delta skip the files of all other days.
    days = f"t.event_day BETWEEN DATE '{first_day}' AND DATE '{last_day}'"
    rows.sparkSession.sql(
        f"MERGE INTO {silver.sql} t USING {{rows}} s ON {same} AND {days} WHEN NOT MATCHED THEN INSERT *",
        rows=rows,
    )


def query(spark: SparkSession, tables: Tables, batches: SilverBatches) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        tables.bronze.read_stream(spark)
        .writeStream.queryName("silver")
        .foreachBatch(batches)
        .option("checkpointLocation", tables.checkpoint("silver"))
    )

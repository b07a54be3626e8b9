"""The query silver: bronze decoded, judged and split into silver and quarantine.

One micro-batch, in this order; a test cuts it after each step:

1. *judged*: rows are decoded, and the names of the rules that each fails are computed once, as a column; by the
   present recipe (decoders, suite, limits), or by the stored one where the batch was begun before (H18). A batch that
   has not begun is shown to ``admit``, which may stop the query: then nothing of it is stored, and the next start
   judges it by the rules of then. Where unknown fields are to have columns, these become part of the recipe, and where
   they are to stop the query, they do so here (``evolving``).
2. *recipe*: the recipe is stored beside the checkpoint. The batch has begun. *columns*: silver has those of the recipe.
3. *silver*: rows that fail none are merged into silver, insert only, on device, reading id and event day (H17: no
   watermark, so nothing is too late). Of several in one batch the first in Pulsar's order is kept.
   Where a decoder says that its readings have no id, each is kept, and those that equal an earlier one are counted.
4. *quarantine*: the others are appended to quarantine with the names of the rules, the reason and the payload.

Both writes carry the checkpoint's name and the batch's number in Delta's log: a batch that is run again skips what
it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from bridge.names import DEFAULT_MAX_NAME_BYTES
from streaming import rule_fields
from streaming.batch_figures import observed
from streaming.built_once import built_once
from streaming.checkpoints import Checkpoint, recipe_hash
from streaming.conflicts import retrying
from streaming.decoders.settings import Decoder, as_recipe, parse_decoders
from streaming.evolving import Evolving, Heard, nobody_hears
from streaming.predicates import Rule, Suite, failed_rules, parse_suite
from streaming.readings import BAD_TIME, UNDECODABLE, UNKNOWN_TOPIC, decode
from streaming.rule_fields import RuleFields
from streaming.tables import POSITION_COLUMNS, QUARANTINE_COLUMNS, SILVER_COLUMNS, Table, Tables, create

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

__all__ = [
    "CLOCK_SKEW",
    "CONTENT",
    "KEY",
    "LONG_METRIC",
    "Admit",
    "SilverBatches",
    "as_silver",
    "by_rule",
    "create_tables",
    "first_of_each",
    "held",
    "judged",
    "judged_by_the_query",
    "merge",
    "query",
    "reason_of",
    "recipe_of",
    "suspects_of",
]

CLOCK_SKEW: Final = "clock_skew"
"""Rule that a row fails when the device's time is too far ahead of arrival (H20), or of the clock that bronze had when
it stored the message (H45).
"""
LONG_METRIC: Final = "metric_too_long"
"""Rule that a row fails when the name of its metric has more bytes than the one limit of names (``bridge.names``)."""
KEY: Final = ("device", "reading_id", "event_day")
"""What makes two rows the same reading."""

CONTENT: Final = ("device", "mqtt_topic", "metric", "event_day", "event_time", "value")
"""What is the same in a reading without an id and in the one that it may be a repetition of."""

Admit = Callable[[int, int, int, Callable[[], Mapping[str, int]]], None]
"""Called with a batch's number, how many of its rows pass and how many fail, and a function that counts these by rule.
What it raises stops the query before anything of the batch is written."""

_REASONS: Final = {
    UNKNOWN_TOPIC: "no decoder's filter matches the MQTT topic",
    CLOCK_SKEW: "the device's time is ahead of arrival, or of bronze's clock, by more than streaming.clock_skew_s",
    LONG_METRIC: "the name of the metric has more bytes than max_name_bytes",
}


def create_tables(spark: SparkSession, tables: Tables) -> None:
    """Create silver and quarantine unless they are there."""
    create(
        spark,
        tables.silver,
        SILVER_COLUMNS,
        comment="Readings that passed every rule, each once",
        statistics=("event_day", "event_time", "device", "reading_id", "processed_at", "arrival_time"),
    )
    create(
        spark,
        tables.quarantine,
        QUARANTINE_COLUMNS,
        comment="Messages that failed a rule, with the names of the rules and the payload",
        statistics=("device", "arrival_time", "processed_at"),
    )


def recipe_of(
    decoders: tuple[Decoder, ...],
    suite: Suite,
    clock_skew_s: float,
    rules: Sequence[RuleFields] = (),
    schema_evolution: str = "rescue",
    max_added_columns: int = 0,
    max_name_bytes: int = DEFAULT_MAX_NAME_BYTES,
) -> dict[str, Any]:
    """Return all that decides where a row goes, as plain data. ``rules``: what the topic rules say of readings."""
    recipe = {
        "v": 1,
        "readings": as_recipe(decoders),
        "suite": suite.body,
        "clock_skew_s": clock_skew_s,
        "schema_evolution": schema_evolution,
        "max_added_columns": max_added_columns,
        "max_name_bytes": max_name_bytes,
    }
    if all(d.id and d.time for d in decoders):
        return recipe
    return recipe | {"rules": rule_fields.as_recipe(rules)}


def judged(bronze: DataFrame, recipe: Mapping[str, Any]) -> DataFrame:
    """Decode bronze rows and add ``failed_rules``: what a row failed, empty for silver. Columns of the recipe are there
    by their names.
    """
    from pyspark.sql import functions as F

    decoders = parse_decoders(recipe["readings"], "recipe")
    rules = rule_fields.from_recipe(recipe.get("rules", ()))
    suite = parse_suite(recipe["suite"], "recipe")
    limit = F.make_dt_interval(secs=F.lit(float(recipe["clock_skew_s"])))
    # The clock of ingest may be ahead together with a device's (H45). Bronze has stored when it wrote the row, so a batch
    # that is run again has the same bound.
    now = F.least(F.coalesce("arrival_time", "publish_time"), F.col("stored_at"))
    skewed = F.when(F.col("event_time") > now + limit, F.lit(CLOCK_SKEW))
    long = F.when(F.octet_length("metric") > recipe["max_name_bytes"], F.lit(LONG_METRIC))
    failed = F.concat("decoding_failures", F.array_compact(F.array(skewed, long)), failed_rules(suite))
    added = recipe.get("columns")
    rows = decode(bronze, decoders, rules, added, recipe.get("schema_evolution", "rescue"))
    rows = rows.select("*", "added.*").drop("added") if added else rows
    rows = rows.withColumn("rebuilt_at", F.lit(None).cast("timestamp"))
    return rows.withColumn("failed_rules", failed).drop("decoding_failures")


def first_of_each(rows: DataFrame) -> DataFrame:
    """Keep the first row of each reading in Pulsar's order, whatever the order of the rows. A row that lacks a part of
    its key, which a suite may let through, is no other's double.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    lacking = F.greatest(*(F.col(name).isNull() for name in KEY))
    own = F.when(lacking, F.struct(*POSITION_COLUMNS, "element"))
    place = F.row_number().over(Window.partitionBy(*KEY, own).orderBy(*POSITION_COLUMNS, "element"))
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


def reason_of(suite: Suite) -> Column:
    """Return the column that puts the first failed rule into words."""
    return _reason_of(suite.row_rules)


@built_once
def _reason_of(rules: Sequence[Rule]) -> Column:
    from pyspark.sql import functions as F

    first = F.col("failed_rules")[0]
    text = F.concat(F.lit("fails the rule "), first)
    for rule in rules:
        text = F.when(
            first == rule.name, F.lit(f"{rule.expectation} on {', '.join(rule.columns)}")
        ).otherwise(text)
    for name, words in _REASONS.items():
        text = F.when(first == name, F.lit(words)).otherwise(text)
    text = F.when(first == BAD_TIME, F.col("time_fault")).otherwise(text)
    return F.when(first == UNDECODABLE, F.col("fault")).otherwise(text)


def as_silver(passed: DataFrame, recipe: Mapping[str, Any]) -> DataFrame:
    """Return judged rows with silver's columns, those of the recipe among them."""
    return passed.select(*(c.name for c in SILVER_COLUMNS), *recipe.get("columns", ()))


def held(failed: DataFrame, recipe: Mapping[str, Any]) -> DataFrame:
    """Return judged rows that failed as quarantine keeps them: with the reason in words, and what judged them."""
    from pyspark.sql import functions as F

    suite = parse_suite(recipe["suite"], "recipe")
    told = failed.withColumn("reason", reason_of(suite)).withColumn("recipe", F.lit(recipe_hash(recipe)))
    return told.select(*(c.name for c in QUARANTINE_COLUMNS))


def by_rule(split: DataFrame) -> dict[str, int]:
    """Count judged rows by the rules that they fail, most first."""
    from pyspark.sql import functions as F

    rows = split.select(F.explode("failed_rules").alias("rule")).groupBy("rule").count().collect()
    return {row["rule"]: row["count"] for row in sorted(rows, key=lambda r: (-r["count"], r["rule"]))}


def _admit_all(batch_id: int, good: int, bad: int, rules: Callable[[], Mapping[str, int]]) -> None:
    """Without a limit, every batch is written."""


@dataclass
class SilverBatches:
    """Writes the micro-batches of silver. ``after`` is told each step that is done, by its name in the module's text;
    ``suspects`` how many readings without an id may be repetitions, ``heard`` which unknown fields and unfit values there
    are, with the filters of the decoders; both in batches where there are any; ``written`` how many rows a batch has
    written to ``silver`` or ``quarantine``.
    """

    tables: Tables
    checkpoint: Checkpoint
    recipe: Mapping[str, Any]
    after: Callable[[str], None] = lambda step: None
    suspects: Callable[[int], object] = lambda count: None
    admit: Admit = _admit_all
    heard: Heard = nobody_hears
    written: Callable[[str, int], object] = lambda table, rows: None
    _evolving: Evolving = field(init=False)

    def __post_init__(self) -> None:
        self._evolving = Evolving(self.tables.silver)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark's query thread; what it raises stops the query, and the batch
        is run again at the next start.
        """
        spark = rows.sparkSession
        begun = self.checkpoint.begun(batch_id)
        recipe = self._evolving.current(spark, self.recipe) if begun is None else begun
        split = judged(rows, recipe).persist()
        try:
            counts = self._counts(split)
            if begun is None and counts["noted"]:
                evolved = self._evolving.decided(split, recipe, self.heard)
                if evolved != recipe:
                    recipe = evolved
                    split.unpersist()
                    split = judged(rows, recipe).persist()
                    counts = self._counts(split)
            if begun is None:
                self.admit(batch_id, counts["good"], counts["bad"], lambda: by_rule(split))
            self.after("judged")
            if begun is None:
                self.checkpoint.begin(batch_id, recipe)
            self.after("recipe")
            self._evolving.ready(spark, recipe)
            self.after("columns")
            # Delta's log remembers both per table; the session is this query's own.
            spark.conf.set("spark.databricks.delta.write.txnAppId", self.checkpoint.app_id())
            spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
            self._write(split, counts, recipe)
        finally:
            split.unpersist()

    def _counts(self, split: DataFrame) -> Row:
        from pyspark.sql import functions as F

        good = F.size("failed_rules") == 0
        counts = split.agg(
            F.count_if(good).alias("good"),
            F.count_if(~good).alias("bad"),
            F.count_if(good & F.col("no_id")).alias("without_id"),
            F.count_if(F.col("notes").isNotNull()).alias("noted"),
            F.min(F.when(good, F.col("event_day"))).alias("first_day"),
            F.max(F.when(good, F.col("event_day"))).alias("last_day"),
        ).first()
        assert counts is not None  # an aggregate without keys gives one row
        return counts

    def _write(self, split: DataFrame, counts: Row, recipe: Mapping[str, Any]) -> None:
        from pyspark.sql import functions as F

        good = F.size("failed_rules") == 0
        if counts["without_id"] and counts["first_day"] is not None:
            self._suspect(split.where(good).where("no_id"), counts["first_day"], counts["last_day"])
        if counts["good"]:
            passed = first_of_each(as_silver(split.where(good), recipe))
            days = counts["first_day"], counts["last_day"]
            self.written("silver", merge(self.tables.silver, passed, *days))
        self.after("silver")
        if counts["bad"]:
            self._quarantine(split.where(~good), recipe)
            self.written("quarantine", counts["bad"])
        self.after("quarantine")

    def _suspect(self, rows: DataFrame, first_day: date, last_day: date) -> None:
        from pyspark.sql import functions as F

        silver = self.tables.silver.read(rows.sparkSession)
        count = suspects_of(rows, silver.where(F.col("event_day").between(first_day, last_day)))
        if count:
            self.suspects(count)

    def _quarantine(self, rows: DataFrame, recipe: Mapping[str, Any]) -> None:
        writer = held(rows, recipe).coalesce(1).write.format("delta").mode("append")
        table = self.tables.quarantine
        if table.by_name:
            writer.saveAsTable(table.sql)
        else:
            writer.save(table.where)


def merge(
    silver: Table,
    rows: DataFrame,
    first_day: date | None,
    last_day: date | None,
    write: Callable[[Callable[[], object], str], object] = retrying,
) -> int:
    """Insert those of the rows whose key silver does not have, each key once; all are of the days between these two, or
    without a day where these are None.

    Return how many were inserted. ``write`` makes the write, and again where another writer was first; it is told the
    table.
    """
    same = " AND ".join(f"t.{name} = s.{name}" for name in KEY)
    # The batch's own days as literals let Delta skip the files of all other days.
    days = "t.event_day IS NULL"
    if first_day is not None:
        days = f"t.event_day BETWEEN DATE '{first_day}' AND DATE '{last_day}'"
    # By name, since the table may have columns that the rows lack: those of its owner, or of another batch.
    names = ", ".join(f"`{name}`" for name in rows.columns)
    values = ", ".join(f"s.`{name}`" for name in rows.columns)
    statement = (
        f"MERGE INTO {silver.sql} t USING {{rows}} s ON {same} AND {days} "
        f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
    )
    inserted: list[int] = []

    def insert() -> None:
        done = rows.sparkSession.sql(statement, rows=rows).first()
        inserted.append(0 if done is None else int(done["num_affected_rows"]))

    # A rebuild, or somebody's DELETE or OPTIMIZE, may commit in between; the batch must not end for that.
    write(insert, silver.where)
    return inserted[-1] if inserted else 0


def judged_by_the_query(spark: SparkSession, tables: Tables, first_version: int | None = None) -> DataFrame:
    """Return the stream of readings as the query silver let them through, without what a rebuild or a replay puts
    in: a command must not come of the past.
    """
    return tables.silver.read_stream(spark, first_version).where("rebuilt_at IS NULL")


def query(spark: SparkSession, tables: Tables, batches: SilverBatches) -> DataStreamWriter:
    """Return the writer of the query; the caller sets its trigger and starts it."""
    return (
        observed(tables.bronze.read_stream(spark), "stored_at")
        .writeStream.queryName("silver")
        .foreachBatch(batches)
        .option("checkpointLocation", tables.checkpoint("silver"))
    )

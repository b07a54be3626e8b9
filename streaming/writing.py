"""Writes the micro-batches of a flow into its table and into quarantine: each row into exactly one of them, once.

One micro-batch, in this order; a test kills the driver after each step (``bridge.killpoints``):

1. *validated*: rows are validated by the table's suite, as a column. A payload that did not decode has failed already.
2. *table*: rows that fail nothing are written. Without keys they are appended in a commit that carries the flow's name
   and the batch's number, so that Delta takes a batch once. With keys, a row whose key is
   there is left out before, of several in one batch the first in the order of its partition is kept (H17: no watermark, so
   nothing is too late).
3. *quarantine*: the others are appended to quarantine, in a commit of the same kind.

Both tables cannot be written in one commit (H18). The first batch of a run may have been begun before, by other rules
perhaps. If the table's history names it, or is too long to say, all of it that the table lacks goes to quarantine, whatever
today's rules say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import TerminalError
from bridge.killpoints import reach
from streaming.evolution import NewColumns, new_columns
from streaming.pipelines import Declared
from streaming.reading import WORKING_COLUMNS
from streaming.sql import quoted, same
from streaming.tables import Table, add_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from streaming.suites import Suite

__all__ = ["POSITION", "QUARANTINE_SCHEMA", "BadRows", "TableBatches", "id_of", "quarantined", "validated"]

UNDECODABLE: Final = "undecodable"
"""Rule that a row fails when its payload did not decode; ``reason`` says why."""
CLOCK_SKEW: Final = "clock_skew"
"""Rule that a row fails when its time is ahead by more than ``streaming.clock_skew_s``."""
NO_KEY: Final = "no_key"
"""Rule that a row fails when a column of its table's keys is null."""
EARLIER: Final = "earlier_rules"
"""Rule of a row that an earlier run of the batch, by the rules in force at that time, left out of the table."""
_NO_ORDER: Final = re.compile("map<|variant")
"""Types whose values Spark does not compare."""
_MOST_DAYS: Final = 64
"""Days of a batch's times that are looked for one by one; beyond, from the first to the last."""

_COMMITS: Final = 100
"""So far back is looked for the last batch of a flow in the history of its table."""
_FEW: Final = 2_000
"""Rows of a batch up to which computing them again for the second write is cheaper than keeping them."""

POSITION: Final = "struct<topic: string, partition: int, ledger: bigint, entry: bigint, index: int, element: int>"
"""Type of ``_position``."""

QUARANTINE_SCHEMA: Final = (
    "`table` string COMMENT 'table that the row was meant for', "
    "failed_rules array<string> COMMENT 'names of all rules that the row failed', "
    "reason string COMMENT 'the first of them, or why the payload did not decode, in words', "
    "device string COMMENT 'device that a topic rule names', "
    "mqtt_topic string COMMENT 'MQTT topic that the device published on', "
    "event_time timestamp COMMENT 'time of the row, where it has one', "
    "arrival_time timestamp COMMENT 'when ingest took the message from MQTT', "
    "`row` string COMMENT 'the row as JSON, as it would have stood in the table', "
    "payload binary COMMENT 'payload as it came; of an element of an array that element, as JSON', "
    f"_position {POSITION} "
    "COMMENT 'where the message is in Pulsar', "
    "validated_at timestamp COMMENT 'start of the micro-batch that validated the row'"
)


@dataclass
class BadRows:
    """What happens when many rows are bad: nothing beyond a count, or the job stops before the batch is written."""

    limit: float = 1.0
    min_rows: int = 100
    stop: bool = False

    def check(self, table: str, good: int, bad: int) -> None:
        """Raise TerminalError where the batch has too many bad rows and the job is to stop then."""
        rows = good + bad
        if self.stop and rows >= self.min_rows and bad > self.limit * rows:
            raise TerminalError(
                f"{table}: {bad} of {rows} rows of a batch failed a rule, the limit is {self.limit:.1%}; "
                "nothing of the batch is written",
                remedy="correct the declaration or the suite and start again; or raise streaming.bad_share_limit, or "
                "set streaming.on_bad_share=alert to store them in quarantine",
            )


@dataclass
class TableBatches:
    """Writes micro-batches; called by Spark, in the driver or, with Spark Connect, in a process of the server.

    ``checkpoint`` is the folder of the flow's query. ``counted`` is called with the numbers of good and bad rows
    of each batch, where this process is the driver.
    """

    declared: Declared
    flow: str
    table: Table
    quarantine: Table
    checkpoint: str
    suite: Suite | None = None
    bad_rows: BadRows = field(default_factory=BadRows)
    max_added_columns: int = 100
    counted: Callable[[int, int], object] | None = None
    _first: bool = True
    _rows: int = 0
    """Rows of the batch before: the next one is likely as large."""
    _app: str = ""

    def __getstate__(self) -> dict[str, Any]:
        # Another process, with Spark Connect, has metrics of its own.
        return {**self.__dict__, "counted": None}

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch. What it raises stops the query, and the batch is run again at the next start."""
        if not self._app:
            self._app = f"{self.flow}:{id_of(batch.sparkSession, self.checkpoint)}"
        rows = validated(batch, self.declared, self.suite)
        splits = "_failed_rules" in rows.columns
        cut = self._first and (not splits or self._may_have(batch.sparkSession, number))
        often = cut or self.declared.keys or self.bad_rows.stop or self.declared.schema_evolution != "rescue"
        keeps = splits and bool(often or self._first or self._rows > _FEW)
        if keeps:
            rows = rows.persist()
        try:
            self._write(rows, number, splits, cut)
        finally:
            if keeps:
                rows.unpersist()
        self._first = False

    def _may_have(self, spark: SparkSession, number: int) -> bool:
        """Whether the table may have the batch already."""
        history = spark.sql(f"DESCRIBE HISTORY {self.table.sql} LIMIT {_COMMITS}").select("userMetadata").collect()
        last = (row[0].rpartition(":") for row in history if row[0])
        found = next((int(n) for app, _, n in last if app == self._app), None)
        return len(history) == _COMMITS if found is None else found >= number

    def _write(self, validated: DataFrame, number: int, splits: bool, cut: bool) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        self.evolve(validated)
        bad = F.size("_failed_rules") > 0 if splits else F.lit(False)
        if self.bad_rows.stop and splits:
            self.bad_rows.check(self.declared.name, **_counts(validated, bad))
        reach("table.validated")
        # A batch that Delta has already is skipped, and then nothing is observed.
        kept = cut or bool(self.declared.keys)
        counts = _counts(validated, bad) if kept and splits else {}
        seen = Observation()
        if not kept:
            validated = validated.observe(seen, F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad"))
        good = self.as_table(validated.where(~bad) if splits else validated)
        if self.declared.keys:
            good = self._unknown(self.first_of_keys(good))
        self.table.append(good, (self._app, number))
        reach("table.written")
        counts = counts or ({} if kept else seen.get)
        if splits and cut:
            self._quarantine(self._left_out(validated), number)
        elif counts.get("bad"):
            self._quarantine(validated.where(bad), number)
        reach("table.quarantined")
        good_rows, bad_rows = int(counts.get("good") or 0), int(counts.get("bad") or 0)
        self._rows = good_rows + bad_rows
        if self.counted is not None and counts:
            self.counted(good_rows, bad_rows)

    def as_table(self, rows: DataFrame) -> DataFrame:
        """Return validated rows with the columns that the table has. ``evolve`` was called before."""
        dropped = [n for n in (*WORKING_COLUMNS, "_failed_rules") if n in rows.columns]
        return self._new.filled(rows.drop(*dropped)) if self._new else rows.drop(*dropped)

    _new: NewColumns | None = None

    def evolve(self, validated: DataFrame) -> None:
        """Give the table the columns that fields unknown so far want, or raise TerminalError where there may be none."""
        if self.declared.schema_evolution == "rescue" or "_rescued_data" not in validated.columns:
            return
        if self.declared.schema_evolution == "fail":
            found = validated.where("_rescued_data IS NOT NULL").select("_rescued_data").first()
            if found is not None:
                raise TerminalError(
                    f"{self.declared.name}: a message has fields that the table does not know, or values that do not "
                    f"fit: {found[0][:200]}",
                    remedy="declare them, or set schema_evolution to rescue or add_columns; nothing is lost",
                )
            return
        spark = validated.sparkSession
        known = self.table.read(spark).schema
        self._new = new_columns(validated, known, self.declared, self.max_added_columns)
        if self._new.lacking:
            add_columns(spark, self.table, self._new.as_schema())

    def first_of_keys(self, rows: DataFrame) -> DataFrame:
        """Return of the rows with one key the first, in the order of its partition; without keys all rows."""
        from pyspark.sql import functions as F
        from pyspark.sql.window import Window

        keys = self.declared.keys
        if not keys:
            return rows
        order = F.col("_position") if "_position" in rows.columns else F.monotonically_increasing_id()
        first = Window.partitionBy(*map(quoted, keys)).orderBy(order)
        return rows.withColumn("_rank", F.row_number().over(first)).where("_rank = 1").drop("_rank")

    def _unknown(self, rows: DataFrame) -> DataFrame:
        """Return the rows whose keys the table lacks."""
        keys = self.declared.keys
        there = self.table.read(rows.sparkSession).select(*map(quoted, keys))
        for key, kind in there.dtypes:
            if kind in ("timestamp", "date"):
                there = there.where(_days_of(rows, key))
        return rows.join(there, list(keys), "left_anti").select(*map(quoted, rows.columns))

    def _left_out(self, validated: DataFrame) -> DataFrame:
        """Return the rows of the batch that the table does not have, with a rule for those that fail none now. One whose
        key is there, in another row, was left out for that.
        """
        from pyspark.sql import functions as F

        there = self.table.read(validated.sparkSession)
        keys = list(self.declared.keys)
        place = "_position" in validated.columns
        if place and validated.groupBy("_position").count().where("count > 1").isEmpty():
            by = ["_position"]
        elif keys and not place:
            by = keys
        else:  # a message of several rows that nothing else tells apart
            by = [
                n
                for n, kind in there.dtypes
                if n in validated.columns and n not in ("_warnings", "_rescued_data") and not _NO_ORDER.search(kind)
            ]
        its = there
        if place:
            ends = validated.agg(F.min("_position.ledger"), F.max("_position.ledger")).first()
            if ends is not None and ends[0] is not None:  # literals let Delta skip files
                its = there.where(F.col("_position.ledger").between(*ends))
        found = validated.alias("s").join(its.alias("t"), F.expr(same(by)), "left_anti")
        fails = F.size("_failed_rules") > 0
        passed = found.where(~fails)
        if keys and by != keys:
            passed = passed.alias("s").join(there.alias("t"), F.expr(same(keys)), "left_anti")
        return found.where(fails).unionByName(passed.withColumn("_failed_rules", F.array(F.lit(EARLIER))))

    def _quarantine(self, rows: DataFrame, number: int) -> None:
        self.quarantine.append(quarantined(rows, self.declared), (f"{self._app}:quarantine", number))


def _counts(rows: DataFrame, bad: Column) -> dict[str, int]:
    from pyspark.sql import functions as F

    found = rows.agg(F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad")).first()
    return {} if found is None else {"good": int(found["good"]), "bad": int(found["bad"])}


def validated(batch: DataFrame, declared: Declared, suite: Suite | None) -> DataFrame:
    """Return rows with ``_failed_rules``: what each of them fails of what the table asks; without it where it asks nothing."""
    from pyspark.sql import functions as F

    rows = batch
    rules: list[Column] = []
    if "_fault" in batch.columns:
        rules.append(F.when(F.col("_fault").isNotNull(), F.lit(UNDECODABLE)))
    if "_ahead" in batch.columns:
        rules.append(F.when(F.col("_ahead"), F.lit(CLOCK_SKEW)))
    if declared.keys:
        none = F.lit(False)
        for key in declared.keys:
            none = none | F.col(quoted(key)).isNull()
        rules.append(F.when(none, F.lit(NO_KEY)))
    if suite is not None:
        rows = suite.validated(rows)
    if not rules and suite is None:
        return rows
    failed = F.array_compact(F.array(*rules)) if rules else F.array().cast("array<string>")
    if suite is not None:
        # What did not decode fails the suite as well, and that says nothing more.
        failed = F.when(F.size(failed) > 0, failed).otherwise(F.col("_failed_rules"))
    return rows.withColumn("_failed_rules", failed)


def id_of(spark: SparkSession, checkpoint: str) -> str:
    """Return the id that Spark gave the query of a checkpoint: a new checkpoint starts with batch 0, and
    its batches are others.
    """
    row = spark.read.text(f"{checkpoint}/metadata").first()
    assert row is not None  # Spark writes it before the first batch
    return str(json.loads(row[0])["id"])


def _days_of(rows: DataFrame, column: str) -> Column:
    """Return the condition that a time lies on a day of these rows, as literals by which Delta skips files."""
    from pyspark.sql import functions as F

    time = F.col(quoted(column))
    days = [row[0] for row in rows.select(F.to_date(time)).distinct().limit(_MOST_DAYS + 1).collect()]
    spans = [(day, day) for day in days]
    if len(days) > _MOST_DAYS:
        spans = [tuple(row) for row in rows.agg(F.min(F.to_date(time)), F.max(F.to_date(time))).collect()]
    found = F.lit(False)
    for low, high in spans:
        found = found | ((time >= F.lit(low)) & (time < F.date_add(F.lit(high), 1)))
    return found


def quarantined(rows: DataFrame, declared: Declared) -> DataFrame:
    """Return rows that failed rules as the table of quarantine has them."""
    from pyspark.sql import functions as F

    there = set(rows.columns)

    def given(name: str, kind: str) -> Column:
        return (F.col(name) if name in there else F.lit(None)).cast(kind)

    kept = [n for n in rows.columns if n not in (*WORKING_COLUMNS, "_failed_rules", "_warnings")]
    reason = F.coalesce(given("_fault", "string"), F.concat(F.lit("failed "), F.element_at("_failed_rules", 1)))
    return rows.select(
        F.lit(declared.name).alias("table"),
        F.col("_failed_rules").alias("failed_rules"),
        reason.alias("reason"),
        F.coalesce(given(declared.device_column or "device", "string"), given("device", "string")).alias("device"),
        given("mqtt_topic", "string").alias("mqtt_topic"),
        given("event_time", "timestamp").alias("event_time"),
        given("arrival_time", "timestamp").alias("arrival_time"),
        F.when(given("_fault", "string").isNull(), F.to_json(F.struct(*map(quoted, kept)))).alias("row"),
        given("_payload", "binary").alias("payload"),
        given("_position", POSITION).alias("_position"),
        F.current_timestamp().alias("validated_at"),
    )

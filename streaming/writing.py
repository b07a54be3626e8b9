"""Writes the micro-batches of a flow: each row once, into its table or into quarantine.

One micro-batch, in this order; a test kills the driver after each step (``bridge.killpoints``):

1. *validated*: the table's suite validates rows, as a column. An undecodable payload has failed already.
2. *table*: rows that fail nothing are appended, in a commit that names the flow and the batch
   (``streaming.tables.Appends``). With keys, rows whose key exists are left out before. Of several rows with a key, the
   first in partition order is kept (H17: without a watermark, no row is too late).
3. *quarantine*: the other rows are appended to quarantine, in a commit of the same kind.

One commit cannot write both tables (H18). The first batch of a run may be a repetition, perhaps with other rules in the
first attempt. If the table has the batch, or its history cannot decide, all rows that the table lacks go to quarantine.
The current rules do not matter for that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import TerminalError
from bridge.killpoints import reach
from streaming.evolution import NewColumns, new_columns
from streaming.pipelines import Declared
from streaming.reading import WORKING_COLUMNS
from streaming.sql import once, quoted, same
from streaming.tables import Appends, Table, add_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from streaming.suites import Suite

__all__ = ["POSITION", "QUARANTINE_SCHEMA", "BadRows", "TableBatches", "quarantined", "validated"]

UNDECODABLE: Final = "undecodable"
"""Rule that a row with an undecodable payload fails; ``reason`` has the error."""
CLOCK_SKEW: Final = "clock_skew"
"""Rule that a row fails if its time is ahead by more than ``streaming.clock_skew``."""
NO_KEY: Final = "no_key"
"""Rule that a row fails if a column of its table's keys is null."""
EARLIER: Final = "earlier_rules"
"""Rule of a row that an earlier run of the batch left out, by the rules in force at that time."""
_NO_ORDER: Final = re.compile("map<|variant")
"""Types whose values Spark cannot compare."""
_MOST_SPANS: Final = 64
"""Most hours of a batch's times that are looked up one by one. Above it, the range from first to last is used."""

_SPANS: Final = {
    "timestamp": ("floor(unix_seconds({}) / 3600)", "timestamp_seconds({} * 3600)"),
    "date": ("unix_date({})", "date_from_unix_date({})"),
}
"""By type: the number of a time's hour or day, and the start of that hour or day."""
_FEW: Final = 2_000
"""Most rows of a batch for which recomputing them for the second write is cheaper than persisting them."""

POSITION: Final = "struct<topic: string, partition: int, ledger: bigint, entry: bigint, index: int, element: int>"
"""Type of ``_position``."""

QUARANTINE_SCHEMA: Final = (
    "`table` string COMMENT 'target table of the row', "
    "failed_rules array<string> COMMENT 'names of all rules that the row failed', "
    "reason string COMMENT 'the first of them, or the decoding error, in words', "
    "device string COMMENT 'device that a topic rule names', "
    "mqtt_topic string COMMENT 'MQTT topic that the device published on', "
    "event_time timestamp COMMENT 'time of the row, if it has one', "
    "arrival_time timestamp COMMENT 'when ingest received the message from MQTT', "
    "`row` string COMMENT 'the row as JSON, with the columns of the table', "
    "payload binary COMMENT 'unchanged payload; for an element of an array, the element as JSON', "
    f"_position {POSITION} "
    "COMMENT 'position of the message in Pulsar', "
    "validated_at timestamp COMMENT 'start of the micro-batch that validated the row'"
)


@dataclass
class BadRows:
    """Reaction to many bad rows: count them, or stop the job before the write."""

    limit: float = 1.0
    min_rows: int = 100
    stop: bool = False

    def check(self, table: str, good: int, bad: int) -> None:
        """Raise TerminalError if the batch has too many bad rows and the job must stop."""
        rows = good + bad
        if self.stop and rows >= self.min_rows and bad > self.limit * rows:
            raise TerminalError(
                f"{table}: {bad} of {rows} rows of a batch failed a rule, the limit is {self.limit:.1%}; "
                "nothing of the batch is written",
                remedy="correct the declaration or the suite and restart; or raise streaming.quality.max_bad_share, or "
                "set streaming.quality.on_bad_share=alert to store them in quarantine",
            )


@dataclass
class TableBatches:
    """Writes micro-batches. Spark calls it in the driver or, with Spark Connect, in a process of the server.

    ``checkpoint`` is the folder of the flow's query. In the driver, ``counted`` is called with the numbers of good and
    bad rows of each batch.
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
    _rows: int = 0
    """Rows of the previous batch. The next one is likely as large."""
    _into: tuple[Appends, ...] = ()
    """The table and quarantine, after the first batch."""

    def __getstate__(self) -> dict[str, Any]:
        # With Spark Connect, another process has its own metrics.
        return {**self.__dict__, "counted": None}

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch. An exception stops the query, and the next start repeats the batch."""
        first = not self._into
        if first:
            app = f"{self.flow}:{_id_of(batch.sparkSession, self.checkpoint)}"
            self._into = Appends(self.table, app), Appends(self.quarantine, f"{app}:quarantine")
        rows = validated(batch, self.declared, self.suite)
        splits = "_failed_rules" in rows.columns
        often = first or self.declared.keys or self.bad_rows.stop or self.declared.schema_evolution != "rescue"
        keeps = splits and bool(often or self._rows > _FEW)
        if keeps:
            rows = rows.persist()
        try:
            self._write(rows, number, splits, first)
        finally:
            if keeps:
                rows.unpersist()

    def _write(self, validated: DataFrame, number: int, splits: bool, first: bool) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        table, quarantine = self._into
        self.evolve(validated)
        bad = F.size("_failed_rules") > 0 if splits else F.lit(False)
        stored = table.has(validated.sparkSession, number)
        # Delta skips a known batch, and then nothing is observed. Only a first batch can be known.
        counted_first = first or bool(self.declared.keys) or (splits and self.bad_rows.stop)
        counts = self._figures(validated, bad) if counted_first else {}
        if counted_first:
            self.bad_rows.check(self.declared.name, counts["good"], counts["bad"])
        reach("table.validated")
        seen = Observation()
        if not counted_first:
            validated = validated.observe(seen, F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad"))
        if not stored:
            good = self.as_table(validated.where(~bad) if splits else validated)
            if self.declared.keys:
                good = self._unknown(self.first_of_keys(good), counts)
            elif stored is None:
                good = self._absent(good)[0]
            table.append(good, number)
        reach("table.written")
        counts = counts or seen.get
        if splits and stored is not False:
            # A rebuild may have written rows of the batch meanwhile, those of a message all at once.
            known = self.quarantine.read(validated.sparkSession).where(F.col("table") == self.declared.name)
            rows = quarantined(self._left_out(validated), self.declared).alias("s")
            quarantine.append(rows.join(known.alias("t"), F.expr("s._position = t._position"), "left_anti"), number)
        elif counts.get("bad"):
            quarantine.append(quarantined(validated.where(bad), self.declared), number)
        reach("table.quarantined")
        good_rows, bad_rows = int(counts.get("good") or 0), int(counts.get("bad") or 0)
        self._rows = good_rows + bad_rows
        if self.counted is not None and counts:
            self.counted(good_rows, bad_rows)

    def _figures(self, validated: DataFrame, bad: Column) -> dict[str, Any]:
        """Return the numbers of good and bad rows. For each time key, add its hours or days: the first, the last, and at
        most ``_MOST_SPANS`` + 1 of them.
        """
        from pyspark.sql import functions as F

        parts = [F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad")]
        for key, kind in validated.select(*map(quoted, self.declared.keys)).dtypes:
            if kind in _SPANS:
                span = F.when(~bad, F.expr(_SPANS[kind][0].format(quoted(key))))
                some = F.slice(F.collect_set(span), 1, _MOST_SPANS + 1)
                parts.append(F.struct(F.min(span), F.max(span), some).alias(f"{kind} {key}"))
        return validated.agg(*parts).collect()[0].asDict()

    def as_table(self, rows: DataFrame) -> DataFrame:
        """Return validated rows with the table's columns. ``evolve`` must be called before."""
        dropped = [n for n in (*WORKING_COLUMNS, "_failed_rules") if n in rows.columns]
        return self._new.filled(rows.drop(*dropped)) if self._new else rows.drop(*dropped)

    _new: NewColumns | None = None

    def evolve(self, validated: DataFrame) -> None:
        """Add columns for unknown fields to the table. Raises TerminalError if the declaration forbids them."""
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
        """Return each key's first row in the order of its partition; without keys all rows."""
        from pyspark.sql import functions as F
        from pyspark.sql.window import Window

        keys = self.declared.keys
        if not keys:
            return rows
        order = F.col("_position") if "_position" in rows.columns else F.monotonically_increasing_id()
        first = Window.partitionBy(*map(quoted, keys)).orderBy(order)
        return rows.withColumn("_rank", F.row_number().over(first)).where("_rank = 1").drop("_rank")

    def _unknown(self, rows: DataFrame, figures: Mapping[str, Any]) -> DataFrame:
        """Return the rows whose keys the table lacks."""
        from pyspark.sql import functions as F

        keys = self.declared.keys
        stored = self.table.read(rows.sparkSession).select(*map(quoted, keys))
        for key, kind in stored.dtypes:
            if f"{kind} {key}" in figures:  # literals let Delta skip files
                low, high, some = figures[f"{kind} {key}"]
                spans = [(one, one) for one in some] if len(some) <= _MOST_SPANS else [(low, high)]
                begin, name = _SPANS[kind][1], quoted(key)
                within = (
                    f"({name} >= {begin.format(first)} AND {name} < {begin.format(last + 1)})" for first, last in spans
                )
                stored = stored.where(F.expr(" OR ".join(within) or "false"))
        return rows.join(stored, list(keys), "left_anti").select(*map(quoted, rows.columns))

    def _absent(self, rows: DataFrame) -> tuple[DataFrame, Sequence[str]]:
        """Return the rows that the table lacks, and the columns that identify them."""
        from pyspark.sql import functions as F

        stored = self.table.read(rows.sparkSession)
        keys = list(self.declared.keys)
        has_position = "_position" in rows.columns
        if has_position and rows.groupBy("_position").count().where("count > 1").isEmpty():
            by = ["_position"]
        elif keys and not has_position:
            by = keys
        else:  # a message of several rows that nothing else distinguishes
            by = [
                n
                for n, kind in stored.dtypes
                if n in rows.columns and n not in ("_warnings", "_rescued_data") and not _NO_ORDER.search(kind)
            ]
        if has_position:
            ledgers = rows.agg(F.min("_position.ledger"), F.max("_position.ledger")).first()
            if ledgers is not None and ledgers[0] is not None:  # literals let Delta skip files
                stored = stored.where(F.col("_position.ledger").between(*ledgers))
        return rows.alias("s").join(stored.alias("t"), F.expr(same(by)), "left_anti"), by

    def _left_out(self, validated: DataFrame) -> DataFrame:
        """Return the batch's rows that the table lacks. Rows that fail no current rule get the rule ``EARLIER``. A row
        whose key exists in another row of the table is not returned.
        """
        from pyspark.sql import functions as F

        found, by = self._absent(validated)
        fails = F.size("_failed_rules") > 0
        passed = found.where(~fails)
        keys = list(self.declared.keys)
        if keys and by != keys:
            stored = self.table.read(validated.sparkSession)
            passed = passed.alias("s").join(stored.alias("t"), F.expr(same(keys)), "left_anti")
        return found.where(fails).unionByName(passed.withColumn("_failed_rules", F.array(F.lit(EARLIER))))


def validated(batch: DataFrame, declared: Declared, suite: Suite | None) -> DataFrame:
    """Return rows with ``_failed_rules``, the rules that each fails. Without rules the column is missing."""
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
        # An undecodable row also fails the suite, which adds no information.
        failed = F.when(F.size(failed) > 0, failed).otherwise(F.col("_failed_rules"))
    return rows.withColumn("_failed_rules", failed).withColumn("_failed_rules", F.expr(once("_failed_rules")))


def _id_of(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of a checkpoint's query. The batches of a new checkpoint start with 0, so they need a new id."""
    row = spark.read.text(f"{checkpoint}/metadata").first()
    assert row is not None  # Spark writes it before the first batch
    return str(json.loads(row[0])["id"])


def quarantined(rows: DataFrame, declared: Declared) -> DataFrame:
    """Return rows that failed rules, with the columns of quarantine."""
    from pyspark.sql import functions as F

    names = set(rows.columns)

    def given(name: str, kind: str) -> Column:
        return (F.col(name) if name in names else F.lit(None)).cast(kind)

    kept = [n for n in rows.columns if n not in (*WORKING_COLUMNS, "_failed_rules", "_warnings")]
    reason = F.coalesce(given("_fault", "string"), F.concat(F.lit("failed "), F.get("_failed_rules", F.lit(0))))
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

"""Writes the micro-batches of a flow into its table and into quarantine: each row into exactly one of them, once.

One micro-batch, in this order; a test kills the driver after each step (``bridge.killpoints``):

1. *judged*: rows are judged by the table's suite, as a column. A payload that did not decode has failed already.
2. *table*: rows that fail nothing are written. Without keys they are appended in a commit that carries the flow's name
   and the batch's number, so that Delta takes a batch once. With keys they are merged, insert only: a row whose key is
   there is left out, of several in one batch the first in the order of its partition is kept (H17: no watermark, so
   nothing is too late).
3. *quarantine*: the others are appended to quarantine, in a commit of the same kind.

Both tables cannot be written in one commit (H18). So the first batch of a run, the only one that may have been begun
before, by other rules perhaps, puts into quarantine whatever of it is not in the table, whatever today's rules say; and
it leaves out messages that quarantine has already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.errors import TerminalError
from bridge.killpoints import reach
from streaming.evolution import NewColumns, new_columns
from streaming.pipelines import Declared
from streaming.reading import WORKING_COLUMNS
from streaming.tables import Table, add_columns, quoted, same

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from streaming.suites import Suite

__all__ = ["QUARANTINE_SCHEMA", "BadRows", "TableBatches", "quarantined"]

UNDECODABLE: Final = "undecodable"
"""Rule that a row fails when its payload did not decode; ``reason`` says why."""
NO_KEY: Final = "no_key"
"""Rule that a row fails when a column of its table's keys is null."""
EARLIER: Final = "earlier_rules"
"""Rule of a row that an earlier run of the batch, by the rules of then, left out of the table."""

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
    "_position struct<topic: string, partition: int, ledger: bigint, entry: bigint, index: int, element: int> "
    "COMMENT 'where the message is in Pulsar', "
    "judged_at timestamp COMMENT 'start of the micro-batch that judged the row'"
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
                "set streaming.on_bad_share=alert to hold them in quarantine",
            )


@dataclass
class TableBatches:
    """Writes micro-batches; called by Spark, in the driver or, with Spark Connect, in a process of the server.

    ``app`` names the flow and its checkpoint in Delta's log. ``counted`` is called with the numbers of good and bad rows
    of each batch, where this process is the driver.
    """

    declared: Declared
    flow: str
    table: Table
    quarantine: Table
    app: str
    suite: Suite | None = None
    bad_rows: BadRows = field(default_factory=BadRows)
    max_added_columns: int = 100
    counted: Callable[[int, int], object] | None = None
    _first: bool = True

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch. What it raises stops the query, and the batch is run again at the next start."""
        judged = self.judged(batch)
        splits = "_failed_rules" in judged.columns
        if splits and self._first and "_position" in judged.columns:
            judged = self._unsettled(judged)
        twice = self._first or self.declared.keys or self.bad_rows.stop or self.declared.schema_evolution != "rescue"
        if splits and twice:
            judged = judged.persist()
        try:
            self._write(judged, number, splits)
        finally:
            if splits and twice:
                judged.unpersist()
        self._first = False

    def _write(self, judged: DataFrame, number: int, splits: bool) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        self.evolve(judged)
        bad = F.size("_failed_rules") > 0 if splits else F.lit(False)
        if self.bad_rows.stop and splits:
            counts = judged.agg(F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad")).first()
            assert counts is not None
            self.bad_rows.check(self.declared.name, counts["good"], counts["bad"])
        reach("table.judged")
        seen = Observation()
        rows = judged.observe(seen, F.count_if(~bad).alias("good"), F.count_if(bad).alias("bad"))
        good = self.as_table(rows.where(~bad) if splits else rows)
        if self.declared.keys:
            self._merge(self.first_of_keys(good))
        else:
            self.table.append(good, (self.app, number))
        reach("table.written")
        counts = seen.get
        if splits and self._first:
            self._quarantine(self._left_out(judged), number)
        elif splits and counts.get("bad"):
            self._quarantine(judged.where(bad), number)
        reach("table.quarantined")
        if self.counted is not None:
            self.counted(int(counts.get("good") or 0), int(counts.get("bad") or 0))

    def judged(self, batch: DataFrame) -> DataFrame:
        """Return rows with the names of the rules that they fail, in ``_failed_rules``; without it, none can fail."""
        from pyspark.sql import functions as F

        rows = batch
        rules: list[Column] = []
        if "_fault" in batch.columns:
            rules.append(F.when(F.col("_fault").isNotNull(), F.lit(UNDECODABLE)))
        if self.declared.keys:
            none = F.lit(False)
            for key in self.declared.keys:
                none = none | F.col(quoted(key)).isNull()
            rules.append(F.when(none, F.lit(NO_KEY)))
        if self.suite is not None:
            rows = self.suite.judged(rows)
        if not rules and self.suite is None:
            return rows
        failed = F.array_compact(F.array(*rules)) if rules else F.array().cast("array<string>")
        if self.suite is not None:
            # What did not decode fails the suite as well, and that says nothing more.
            failed = F.when(F.size(failed) > 0, failed).otherwise(F.col("_failed_rules"))
        return rows.withColumn("_failed_rules", failed)

    def as_table(self, rows: DataFrame) -> DataFrame:
        """Return judged rows with the columns that the table has. ``evolve`` was called before."""
        dropped = [n for n in (*WORKING_COLUMNS, "_failed_rules") if n in rows.columns]
        return self._new.filled(rows.drop(*dropped)) if self._new else rows.drop(*dropped)

    _new: NewColumns | None = None

    def evolve(self, judged: DataFrame) -> None:
        """Give the table the columns that fields unknown so far want, or raise TerminalError where there may be none."""
        if self.declared.schema_evolution == "rescue" or "_rescued_data" not in judged.columns:
            return
        if self.declared.schema_evolution == "fail":
            found = judged.where("_rescued_data IS NOT NULL").select("_rescued_data").first()
            if found is not None:
                raise TerminalError(
                    f"{self.declared.name}: a message has fields that the table does not know, or values that do not "
                    f"fit: {found[0][:200]}",
                    remedy="declare them, or set schema_evolution to rescue or add_columns; nothing is lost",
                )
            return
        spark = judged.sparkSession
        known = self.table.read(spark).schema
        self._new = new_columns(judged, known, self.declared, self.max_added_columns)
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

    def _merge(self, rows: DataFrame) -> None:
        """Insert rows whose keys are not there."""
        names = [quoted(n) for n in rows.columns]
        rows.sparkSession.sql(
            f"MERGE INTO {self.table.sql} t USING {{rows}} s ON {same(self.declared.keys)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join('s.' + n for n in names)})",
            rows=rows,
        ).collect()

    def _unsettled(self, judged: DataFrame) -> DataFrame:
        """Return the rows of messages of which quarantine has none: it gets them last, so the others are written."""
        from pyspark.sql import functions as F

        fields = ("topic", "partition", "ledger", "entry", "index")
        held = self.quarantine.read(judged.sparkSession).where(F.col("table") == self.declared.name).alias("q")
        here = [F.col(f"s._position.{name}").eqNullSafe(F.col(f"q._position.{name}")) for name in fields]
        return judged.alias("s").join(held, here, "left_anti")

    def _left_out(self, judged: DataFrame) -> DataFrame:
        """Return the rows of the batch that the table does not have, with a rule for those that fail none now."""
        from pyspark.sql import functions as F

        there = self.table.read(judged.sparkSession)
        by = list(self.declared.keys) or (["_position"] if "_position" in judged.columns else [])
        if not by:
            by = [n for n in judged.columns if n in there.columns and n != "_warnings"]
        found = judged.alias("s").join(there.alias("t"), F.expr(same(by)), "left_anti")
        fails = F.size("_failed_rules") > 0
        return found.withColumn("_failed_rules", F.when(fails, F.col("_failed_rules")).otherwise(F.array(F.lit(EARLIER))))

    def _quarantine(self, rows: DataFrame, number: int) -> None:
        self.quarantine.append(quarantined(rows, self.declared), (f"{self.app}:quarantine", number))


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
        given("_position", _POSITION).alias("_position"),
        F.current_timestamp().alias("judged_at"),
    )


_POSITION: Final = (
    "struct<topic: string, partition: int, ledger: bigint, entry: bigint, index: int, element: int>"
)

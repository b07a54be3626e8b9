"""Judges again what quarantine holds, by the decoders and the suite of now: what passes goes to silver, the rest stays.

One replay at a time, in this order; a test cuts it after each step:

1. *judged*: the messages of the held rows are read from bronze, decoded and judged, once. A row that stood for its
   whole message is replaced by all that the message gives now; an element of an array by that element alone. What the
   query does with unknown fields is done here, too (``evolving``).
2. *begun*: the recipe and the selection are stored beside silver's checkpoint.
3. *silver*: rows that pass are merged as the query merges them, insert only: a reading that silver has comes to it no
   second time, however often it is replayed.
4. *quarantine*: in one commit the rows that passed are taken out, and those that still fail get the names, the reason
   and the recipe of now. Rows whose message bronze no longer has, or in which the decoders find no such reading, stay.
5. *ended*: the record of the second step is removed.
6. *gold*, *latest*: what is made of silver is recomputed for the days that changed (``following``), which are noted
   before 3.

One that was cut is finished by the next, by the recipe that it began with, before that one begins (H18): rows that
came to silver by it leave quarantine, whatever the rules say meanwhile. Both writes name the rows that they mean, so
the query silver may run beside it, and adds to both tables. ``rebuilt_at`` marks what comes in, as a rebuild does: it
is old news, and no command comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import TerminalError
from streaming import silver
from streaming.care import REPLAY, alone, marked
from streaming.checkpoints import Checkpoint, recipe_hash
from streaming.evolving import Evolving, nobody_hears
from streaming.following import Followed, Following
from streaming.holding import HoldFile, write_between
from streaming.quarantine.selection import Selection
from streaming.tables import POSITION_COLUMNS, QUARANTINE_COLUMNS, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Outcome", "Replay"]

_PLACE: Final = (*POSITION_COLUMNS, "element")
_WANTED: Final = "#wanted"
_WHOLE: Final = "#whole"
"""Columns of judged rows while they are replayed, by names that no field of a device gets."""
_GOOD: Final = "size(failed_rules) = 0"


@dataclass(frozen=True)
class Outcome:
    """What a replay did, or would do."""

    held: int = 0
    """Rows that were meant."""
    passed: int = 0
    """Readings that pass now."""
    new: int = 0
    """Those of them that silver did not have."""
    failed: int = 0
    """Readings that still fail."""
    left: int = 0
    """Rows that stay as they are: bronze has no message for them, or the decoders find no such reading in it."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """What those that fail do fail."""
    finished: bool = False
    """Whether this finished a replay that was cut, by what that one began with."""


@dataclass
class _Work:
    """What one replay has computed, once."""

    recipe: Mapping[str, Any]
    held: DataFrame
    split: DataFrame
    outcome: Outcome
    changes: int
    """Rows of quarantine to take out, to change or to add."""
    days: tuple[Any, Any]

    def close(self) -> None:
        """Let go of the cached frame; the other goes when nobody names it."""
        self.held.unpersist()


@dataclass
class Replay:
    """Replays into the tables. ``after`` is told each step that is done, by its name in the module's text."""

    spark: SparkSession
    tables: Tables
    recipe: Mapping[str, Any]
    after: Callable[[str], object] = lambda step: None
    wait_s: float = 60.0
    """How long to wait for gold and latest to have read what came before."""
    followed: Followed = field(init=False, default_factory=Followed)
    """What was recomputed of what is made of silver."""

    def __post_init__(self) -> None:
        self._evolving = Evolving(self.tables.silver)
        self._following = Following(self.spark, self.tables, self.wait_s, self.after)

    def run(self, selection: Selection) -> list[Outcome]:
        """Replay the rows that are meant; return what was done, first that of one that had been cut, if there was.

        Raises TerminalError while another replay, a rebuild or a forgetting runs, and when rows were deleted in bronze meanwhile; TransientError
        when other writers are always first, which leaves what is to be done to the next.
        """
        with alone(self.spark, self.tables.root, REPLAY):
            silver.create_tables(self.spark, self.tables)
            record = Checkpoint(self.spark, self.tables.checkpoint("silver"))
            version = self._bronze_version()
            outcomes = []
            cut = record.intent()
            if cut is not None:
                with closing(
                    self._judge(cut["recipe"], Selection.from_recipe(cut["selection"]), True)
                ) as work:
                    outcomes.append(self._write(work))
                record.settle()
            with closing(self._judge(self.recipe, selection, False)) as work:
                self.after("judged")
                record.intend({"recipe": work.recipe, "selection": selection.as_recipe()})
                self.after("begun")
                outcomes.append(self._write(work))
            record.settle()
            self.after("ended")
            try:
                self.followed = self._following.pay()
            finally:
                self._check_bronze(version)
        return outcomes

    def look(self, selection: Selection) -> Outcome:
        """Return what a replay would do; nothing is written."""
        with closing(self._judge(self.recipe, selection, False)) as work:
            return work.outcome

    def _write(self, work: _Work) -> Outcome:
        self._evolving.ready(self.spark, work.recipe)
        if work.outcome.passed:
            rows = silver.first_of_each(silver.as_silver(work.split.where(_GOOD), work.recipe))
            days = rows.where("event_day IS NOT NULL").select("event_day").distinct().collect()
            self._following.owe(row[0] for row in days)
            silver.merge(self.tables.silver, rows, *work.days, self._between)
        self.after("silver")
        if work.changes:
            self._between(lambda: self._settle(work.split, work.recipe), self.tables.quarantine.where)
        self.after("quarantine")
        return work.outcome

    def _bronze_version(self) -> int:
        newest = self.spark.sql(f"DESCRIBE HISTORY {self.tables.bronze.sql} LIMIT 1").first()
        assert newest is not None  # a table has the commit that made it
        return int(newest["version"])

    def _check_bronze(self, version: int) -> None:
        """Raise TerminalError when bronze has lost rows since: readings that came of them may be in the tables again."""
        from pyspark.sql import functions as F

        since = self._bronze_version() - version
        if not since:
            return
        history = self.spark.sql(f"DESCRIBE HISTORY {self.tables.bronze.sql} LIMIT {since}")
        if history.where(F.col("operation").isin("DELETE", "MERGE", "UPDATE")).count():
            raise TerminalError(
                "rows were deleted in bronze during the replay, and what it read of them may be in the tables",
                remedy="run `pulsebridge tables forget` for those devices again",
            )

    def _between(self, write: Callable[[], object], what: str) -> None:
        with marked(self.spark):
            write_between(write, what, HoldFile(self.spark, self.tables.root))

    def _judge(self, recipe: Mapping[str, Any], selection: Selection, finished: bool) -> _Work:
        from pyspark.sql import functions as F

        rows = self.tables.quarantine.read(self.spark).where(selection.column())
        held = rows.select(
            *POSITION_COLUMNS,
            F.coalesce("element", F.lit(0)).alias("element"),
            "payload",
            F.col("failed_rules").alias("old_rules"),
            F.col("recipe").alias("old_recipe"),
        ).persist()
        if not finished:
            recipe = self._evolving.current(self.spark, recipe)
        # Kept for good, not cached: Delta refuses a MERGE that changes rows by a frame which the cache stands for.
        split = self._judged(held, recipe).localCheckpoint()
        if not finished:
            evolved = self._evolving.decided(split, recipe, nobody_hears)
            if evolved != recipe:
                recipe = evolved
                split = self._judged(held, recipe).localCheckpoint()
        good = F.expr(_GOOD)
        counts = split.agg(
            F.count_if(good).alias("passed"),
            F.count_if(~good).alias("failed"),
            F.min(F.when(good, F.col("event_day"))).alias("first_day"),
            F.max(F.when(good, F.col("event_day"))).alias("last_day"),
        ).first()
        place = held.select(*_PLACE, "old_rules", "old_recipe", F.lit(True).alias("known"))
        same = F.col("failed_rules").eqNullSafe(F.col("old_rules"))
        same &= F.col("old_recipe").eqNullSafe(F.lit(recipe_hash(recipe)))
        found = (
            split.select(*_PLACE, "failed_rules")
            .join(place, list(_PLACE), "left")
            .agg(F.count_if("known").alias("known"), F.count_if(good | ~same).alias("changes"))
            .first()
        )
        assert counts is not None  # an aggregate without keys gives one row
        assert found is not None
        total, days = held.count(), (counts["first_day"], counts["last_day"])
        outcome = Outcome(
            held=total,
            passed=counts["passed"],
            new=self._new(split, days) if counts["passed"] else 0,
            failed=counts["failed"],
            left=total - found["known"],
            rules=silver.by_rule(split) if counts["failed"] else {},
            finished=finished,
        )
        return _Work(recipe, held, split, outcome, found["changes"], days)

    def _judged(self, held: DataFrame, recipe: Mapping[str, Any]) -> DataFrame:
        """Return what the messages of the held rows give now, as far as it is in their place."""
        from pyspark.sql import functions as F

        places = list(POSITION_COLUMNS)
        bounds = held.agg(F.min("ledger_id").alias("first"), F.max("ledger_id").alias("last")).first()
        assert bounds is not None  # an aggregate without keys gives one row
        # As literals, so that Delta skips the files of all other ledgers.
        near = F.col("ledger_id").between(bounds["first"], bounds["last"])
        messages = self.tables.bronze.read(self.spark).where(near)
        payloads = messages.select(*places, F.col("payload").alias("message"))
        # What is kept of an element is the element: only a row for the whole message has its very payload.
        whole = F.bool_or(F.col("payload").eqNullSafe(F.col("message")))
        meant = held.join(payloads, places).groupBy(*places)
        wanted = meant.agg(F.collect_set("element").alias(_WANTED), whole.alias(_WHOLE))
        again = silver.judged(messages.join(held.select(*places), places, "left_semi"), recipe)
        again = again.withColumn("rebuilt_at", F.current_timestamp())
        return again.join(wanted, places).where(f"`{_WHOLE}` OR array_contains(`{_WANTED}`, element)")

    def _new(self, split: DataFrame, days: tuple[Any, Any]) -> int:
        from pyspark.sql import functions as F

        known = self.tables.silver.read(self.spark).where(F.col("event_day").between(*days))
        keys = split.where(_GOOD).select(*silver.KEY).distinct()
        return keys.join(known, list(silver.KEY), "left_anti").count()

    def _settle(self, split: DataFrame, recipe: Mapping[str, Any]) -> None:
        """Take out of quarantine what passed, and say of the rest by what it fails now."""
        from pyspark.sql import functions as F

        names = [f"`{c.name}`" for c in QUARANTINE_COLUMNS]
        passed = split.where(_GOOD).select(*_PLACE, F.lit(True).alias("passed"))
        more = (F.col(_WHOLE) & (F.col("element") > 0)).alias("more")
        failed = split.where(f"NOT {_GOOD}")
        still = silver.held(failed, recipe).join(failed.select(*_PLACE, more), list(_PLACE))
        rows = still.withColumn("passed", F.lit(False)).unionByName(passed, allowMissingColumns=True)
        here = " AND ".join(f"t.`{name}` = s.`{name}`" for name in POSITION_COLUMNS)
        same = "t.recipe <=> s.recipe AND t.failed_rules <=> s.failed_rules"
        # A row that somebody deletes meanwhile stays deleted: only what a message gives beyond it is added.
        self.spark.sql(
            f"""
            MERGE INTO {self.tables.quarantine.sql} t USING {{rows}} s ON {here} AND coalesce(t.element, 0) = s.element
            WHEN MATCHED AND s.passed THEN DELETE
            WHEN MATCHED AND NOT ({same}) THEN UPDATE SET {", ".join(f"{n} = s.{n}" for n in names)}
            WHEN NOT MATCHED AND NOT s.passed AND s.more
                THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{n}" for n in names)})
            """,
            rows=rows,
        )

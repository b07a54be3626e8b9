"""Recomputes silver and quarantine of a span of arrival from bronze, by today's decoders and suite, beside the jobs.

The span is one of arrival, not of event day: a message that did not decode has no event day, and those are what a
corrected decoder is for; arrival divides the rows of all three tables alike, whatever the rules say.

In this order; the process may die between any two steps, and a second run then does what is left:

1. *standing*: what the query silver has finished of bronze, from its checkpoint. Later messages are left to the query.
2. *judged*: those messages are decoded and judged, and compared with the rows that the tables have of them. What is
   to change is kept: rows that come in, rows that change, rows that go out.
3. *silver*: that is merged into silver, in one transaction.
4. *quarantine*: likewise. A row that moves may be in both, or in none, between the two.
5. *gold*, *latest*: what is made of silver is recomputed for the days that changed (``following``), which are noted
   before 3.

Nothing is counted on but identities (the reading's key in silver, its place in Pulsar in quarantine), so a row that the
running query adds meanwhile is neither lost nor doubled: the transaction touches the rows that it names, and Delta
refuses it, to be tried again, when another writer was first. Rows whose message bronze no longer has stay as they are.
Streams pass over what is rewritten, and ``rebuilt_at`` marks what comes in: no command comes of a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError, TerminalError, TransientError
from streaming import silver
from streaming.care import REBUILD, alone, marked
from streaming.evolving import Evolving
from streaming.following import Followed, Following
from streaming.holding import HoldFile, write_between
from streaming.standing import newest_commits, standing_of
from streaming.tables import POSITION_COLUMNS, QUARANTINE_COLUMNS, SILVER_COLUMNS, Column, Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Change", "Rebuild", "Span", "swap"]

_PLACE: Final = (*POSITION_COLUMNS, "element")
_UNCOMPARED: Final = ("processed_at", "rebuilt_at", "recipe")
"""Columns that say when and by what a row was judged, not what it says."""
_ADDED: Final = "added"
_CHANGED: Final = "changed"
_REMOVED: Final = "removed"
_SAME: Final = "same"
# Columns of the rows under way; no field of a device can be called so (``evolution.may_name_a_column``).
_IDENTITY: Final = "#identity"
_AT: Final = "#at"
_KEPT: Final = "#kept"
_NTH: Final = "#nth"
_KIND: Final = "#kind"
_OLD_AT: Final = "#old_at"
_OLD_DAY: Final = "#old_day"


@dataclass(frozen=True)
class Span:
    """Messages that arrived from ``begin`` on, before ``end``; both with a zone."""

    begin: datetime
    end: datetime

    @classmethod
    def parse(cls, begin: str, end: str) -> Span:
        """Read both from ISO 8601, UTC unless a zone is named. Raises ConfigError for what is no time, or no span."""
        span = cls(_time("--from", begin), _time("--to", end))
        if span.begin >= span.end:
            raise ConfigError(
                f"--from {begin} is not before --to {end}", remedy="give the earlier time first"
            )
        return span

    @property
    def days(self) -> tuple[date, ...]:
        """The days, UTC, that it touches."""
        first = self.begin.astimezone(timezone.utc).date()
        last = (self.end - timedelta(microseconds=1)).astimezone(timezone.utc).date()
        return tuple(first + timedelta(days=n) for n in range((last - first).days + 1))

    def holds(self, publish_time: str) -> SparkColumn:
        """Return the condition on a table; ``publish_time`` names the column that counts where arrival is unknown."""
        from pyspark.sql import functions as F

        begin, end = F.lit(self.begin), F.lit(self.end)
        arrival, published = F.col("arrival_time"), F.col(publish_time)
        known = (arrival >= begin) & (arrival < end)
        return known | (arrival.isNull() & (published >= begin) & (published < end))


def _time(option: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is no time", remedy="write 2026-01-31, or 2026-01-31T12:00:00+00:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Change:
    """What is to change in a table, row by row, and how many rows there are of each kind."""

    table: Table
    columns: tuple[str, ...]
    identity: str
    """SQL of what makes two rows the same; ``t`` names the table."""
    rows: DataFrame
    counts: Mapping[str, int]

    @property
    def empty(self) -> bool:
        """Whether the table has what it should have."""
        return not any(n for kind, n in self.counts.items() if kind != _SAME)

    @property
    def text(self) -> str:
        """The counts in words."""
        n = self.counts
        return (
            f"{n.get(_ADDED, 0)} rows come in, {n.get(_CHANGED, 0)} change, {n.get(_REMOVED, 0)} go out, "
            f"{n.get(_SAME, 0)} stay"
        )


@dataclass
class Rebuild:
    """One rebuild. ``after`` is told each step that is done, by its name in the module's text."""

    spark: SparkSession
    tables: Tables
    recipe: Mapping[str, Any]
    span: Span
    after: Callable[[str], object] = lambda step: None
    wait_s: float = 60.0
    """How long to wait for gold and latest to have read what came before."""
    followed: Followed = field(init=False, default_factory=Followed)
    """What was recomputed of what is made of silver; in a dry run the days alone."""
    _used: Mapping[str, Any] = field(init=False, default_factory=dict)

    def run(self, *, dry_run: bool = False) -> dict[str, Change]:
        """Do it, or with ``dry_run`` only find out what would change; return that by table.

        Raises TransientError when silver is still reading bronze as it was at its start, or when other writers are
        always first; TerminalError while another rebuild, a forgetting or a replay of quarantine runs.
        """
        with nullcontext() if dry_run else alone(self.spark, self.tables.root, REBUILD):
            return self._run(dry_run)

    def _run(self, dry_run: bool) -> dict[str, Change]:
        version = self._version()
        # Fields of payloads that have a column in silver fill it; what else is unknown is kept in _rescued_data.
        self._used = Evolving(self.tables.silver).current(self.spark, self.recipe)
        self.after("standing")
        messages = self.tables.bronze.read_at(self.spark, version - 1).where(self.span.holds("__publishTime"))
        verdicts = self._judged(messages).persist()
        changes: dict[str, Change] = {}
        try:
            changes["silver"] = self._silver(messages, verdicts)
            changes["quarantine"] = self._quarantine(messages, verdicts)
            self.after("judged")
            days = _days_of(changes["silver"])
            if dry_run:
                self.followed = Followed(days)
            else:
                following = Following(self.spark, self.tables, self.wait_s, self.after)
                following.owe(days)
                for name, change in changes.items():
                    swap(self.spark, change, self.tables)
                    self.after(name)
                try:
                    self.followed = following.pay()
                finally:
                    self._check_bronze(version)
        finally:
            for change in changes.values():
                change.rows.unpersist()
            verdicts.unpersist()
        return changes

    def _version(self) -> int:
        """Return the first version of bronze that the query silver is not done with."""
        standing = standing_of(self.spark, self.tables.checkpoint("silver"))
        if standing is None:
            raise TerminalError(
                "the query silver has not finished a batch yet: there is nothing to rebuild",
                remedy="run `pulsebridge stream` first",
            )
        if standing.in_snapshot or standing.partly:
            raise TransientError(
                f"the query silver is in the middle of version {standing.next_version} of bronze",
                remedy="let `pulsebridge stream` catch up, then try again",
            )
        return standing.next_version

    def _judged(self, messages: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return silver.judged(messages, self._used).withColumn("rebuilt_at", F.current_timestamp())

    def _silver(self, messages: DataFrame, verdicts: DataFrame) -> Change:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        table, identity = self.tables.silver, _key_identity("")
        passed = silver.as_silver(verdicts.where("size(failed_rules) = 0"), self._used)
        columns = _columns(SILVER_COLUMNS, table.read(self.spark), passed)
        stored = _identified(table.read(self.spark), identity)
        old = self._of_bronze(stored, messages)
        new = _identified(passed, identity)
        # Of several messages with one reading the one that silver has is kept, else the first.
        kept = old.select(_IDENTITY, F.col(_AT).alias(_KEPT))
        first = Window.partitionBy(_IDENTITY).orderBy(
            F.coalesce(F.col(_AT) == F.col(_KEPT), F.lit(False)).desc(), *_PLACE
        )
        new = new.join(kept, _IDENTITY, "left").withColumn(_NTH, F.row_number().over(first))
        new = new.where(F.col(_NTH) == 1)
        # What arrived outside of the span stays, and so what repeats it stays out.
        days = new.agg(F.min("event_day").alias("first"), F.max("event_day").alias("last")).first()
        assert days is not None  # an aggregate without keys gives one row
        near = stored.where(_of_days(days["first"], days["last"], ""))
        elsewhere = near.join(old.select(_AT), _AT, "left_anti").select(_IDENTITY)
        new = new.join(elsewhere, _IDENTITY, "left_anti")
        return _change(table, columns, _key_identity("t."), new, old)

    def _quarantine(self, messages: DataFrame, verdicts: DataFrame) -> Change:
        table, identity = self.tables.quarantine, _place_identity("")
        failed = silver.held(verdicts.where("size(failed_rules) > 0"), self._used)
        stored = table.read(self.spark)
        columns = _columns(QUARANTINE_COLUMNS, stored, failed)
        old = self._of_bronze(_identified(stored, identity), messages)
        return _change(table, columns, _place_identity("t."), _identified(failed, identity), old)

    def _of_bronze(self, stored: DataFrame, messages: DataFrame) -> DataFrame:
        """Return the rows of a table that came of these messages."""
        places = list(POSITION_COLUMNS)
        return stored.where(self.span.holds("publish_time")).join(
            messages.select(*places), places, "left_semi"
        )

    def _check_bronze(self, version: int) -> None:
        """Raise TerminalError when bronze has lost rows since: what was rebuilt from them is back."""
        history = newest_commits(self.spark, self.tables.bronze)
        if any(n >= version and operation in ("DELETE", "MERGE", "UPDATE") for n, operation in history):
            raise TerminalError(
                "rows were deleted in bronze during the rebuild, and what was rebuilt from them is in the tables",
                remedy="run `pulsebridge tables forget` for those devices again",
            )


def swap(spark: SparkSession, change: Change, tables: Tables) -> None:
    """Merge a change into its table in one transaction. Raises TransientError when other writers are always first."""
    if change.empty:
        return
    from pyspark.sql import functions as F

    # A row may be of another day than before, and is looked for where it is.
    before, after = F.col(_OLD_DAY), F.col("event_day")
    days = change.rows.agg(
        F.min(F.least(before, after)).alias("first"), F.max(F.greatest(before, after)).alias("last")
    ).first()
    assert days is not None  # an aggregate without keys gives one row
    within = _of_days(days["first"], days["last"], "t.")
    names = [f"`{name}`" for name in change.columns]
    statement = f"""
        MERGE INTO {change.table.sql} t USING {{rows}} s ON {change.identity} = s.`{_IDENTITY}` AND {within}
        WHEN MATCHED AND s.`{_KIND}` = '{_REMOVED}' AND {_place_identity("t.")} = s.`{_OLD_AT}` THEN DELETE
        WHEN MATCHED AND s.`{_KIND}` = '{_CHANGED}' AND {_place_identity("t.")} = s.`{_OLD_AT}`
            THEN UPDATE SET {", ".join(f"{name} = s.{name}" for name in names)}
        WHEN NOT MATCHED AND s.`{_KIND}` = '{_ADDED}'
            THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{name}" for name in names)})
    """
    rows = change.rows.where(F.col(_KIND) != _SAME)
    with marked(spark):
        write_between(
            lambda: spark.sql(statement, rows=rows), change.table.where, HoldFile(spark, tables.root)
        )


def _days_of(change: Change) -> tuple[date, ...]:
    """Return the days of event time of the rows that change."""
    if change.empty:
        return ()
    from pyspark.sql import functions as F

    changed = change.rows.where(F.col(_KIND) != _SAME)
    days = changed.select(F.explode(F.array_compact(F.array("event_day", _OLD_DAY)))).distinct()
    return tuple(sorted(row[0] for row in days.collect()))


def _of_days(first: date | None, last: date | None, prefix: str) -> str:
    """Return SQL of a row that may share a key with rows of these days; literals let Delta skip all other files."""
    none = f"{prefix}event_day IS NULL"
    return (
        none if first is None else f"({none} OR {prefix}event_day BETWEEN DATE '{first}' AND DATE '{last}')"
    )


def _columns(known: Sequence[Column], *frames: DataFrame) -> tuple[str, ...]:
    """Return the columns to compare and write: ours, and those beyond them that all have."""
    ours = [c.name for c in known]
    more = reduce(lambda a, b: [name for name in a if name in b], [frame.columns for frame in frames])
    return (*ours, *(name for name in more if name not in ours))


def _place_identity(prefix: str) -> str:
    return "to_json(array(" + ", ".join(f"CAST({prefix}`{name}` AS STRING)" for name in _PLACE) + "))"


def _key_identity(prefix: str) -> str:
    """Return SQL of the reading's key; a row that lacks a part of it is no other's double, and its place stands in."""
    key = [f"CAST({prefix}`{name}` AS STRING)" for name in silver.KEY]
    whole = " AND ".join(f"{prefix}`{name}` IS NOT NULL" for name in silver.KEY)
    return f"CASE WHEN {whole} THEN to_json(array({', '.join(key)})) ELSE {_place_identity(prefix)} END"


def _identified(rows: DataFrame, identity: str) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn(_IDENTITY, F.expr(identity)).withColumn(_AT, F.expr(_place_identity("")))


def _change(table: Table, columns: tuple[str, ...], identity: str, new: DataFrame, old: DataFrame) -> Change:
    """Compare what should be with what is; both have the identity, which is theirs alone, and the place."""
    from pyspark.sql import functions as F

    compared = [name for name in columns if name not in _UNCOMPARED]
    before = old.select(_IDENTITY, F.col(_AT).alias(_OLD_AT), F.struct(*columns).alias("old"))
    after = new.select(_IDENTITY, F.struct(*columns).alias("new"))
    same = reduce(
        lambda a, b: a & b,
        (_comparable(new, "new", n).eqNullSafe(_comparable(new, "old", n)) for n in compared),
    )
    kind = (
        F.when(F.col("old").isNull(), _ADDED)
        .when(F.col("new").isNull(), _REMOVED)
        .when(same, _SAME)
        .otherwise(_CHANGED)
    )
    both = after.join(before, _IDENTITY, "full_outer").withColumn(_KIND, kind)
    row = F.coalesce("new", "old")
    found = (row[name].alias(name) for name in columns)
    old_day = F.col("old")["event_day"].alias(_OLD_DAY)
    rows = both.select(_IDENTITY, _OLD_AT, _KIND, old_day, *found).persist()
    counts = {r[_KIND]: int(r["count"]) for r in rows.groupBy(_KIND).count().collect()}
    return Change(table, columns, identity, rows, counts)


def _comparable(frame: DataFrame, side: str, name: str) -> SparkColumn:
    from pyspark.sql import functions as F

    column = F.col(side)[name]
    # Spark compares neither variants nor maps.
    plain = frame.schema[name].dataType.typeName() not in ("variant", "map")
    return column if plain else F.to_json(column)

"""Brings gold and ``device_latest`` to what silver says, after a change of silver that their queries do not see.

A rebuild, or a replay of quarantine, changes readings of the past: streams pass over that. So the days of event time
that it touches are noted as *owed* before silver is changed, and paid afterwards: for these whole days gold's windows
are aggregated again from silver, and what ``device_latest`` says of them is looked up in silver. What is owed stays noted
until it is paid, so that the next rebuild or replay pays for one that was cut.

1. *settled*: the query has read all of silver that came before the change, and is between two batches. One that takes
   long to get there is asked to pause: its job ends the batch that was begun, and begins no other.
2. *gold*: the windows of the days hold what silver has, up to where the query has read it: what came since is added by
   the query. Readings that had come too late are in their windows now, and leave the late table. *latest*: likewise.
3. When the query has begun a batch meanwhile, both steps are done again: it may have written by what was before.

All of it depends on silver alone: doing it twice does nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.errors import TransientError
from streaming import device_changes, gold, latest
from streaming.care import is_care, is_streamed, marked
from streaming.checkpoints import Checkpoint, CheckpointLock
from streaming.holding import HoldFile, write_between
from streaming.standing import batches_of, history_of, standing_of
from streaming.tables import GOLD_COLUMNS, POSITION_COLUMNS, READING_FIELDS, Tables, insert_all, update_all

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Followed", "Following"]

_DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1)
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 3.0
"""How long a query is waited for before it is asked to pause, in seconds."""
_PAUSE_S: Final = 60.0
_TRIES: Final = 10
_ALIVE: Final = 10
"""So many times as long one batch of a query is waited for whose driver may run: batches may take minutes."""
_PLACE: Final = (*POSITION_COLUMNS, "element")
_PAIR: Final = ["device", "metric"]
_FIELDS: Final = [c.name for c in READING_FIELDS]
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"
_log = structlog.get_logger("tables")


@dataclass(frozen=True)
class Followed:
    """What was brought to what silver says: whole days of event time, and how many rows of which table differed."""

    days: tuple[date, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The same in words."""
        if not self.rows:
            return []
        span = "1 day" if len(self.days) == 1 else f"{len(self.days)} days"
        return [
            f"{name}: recomputed from silver for {span} of event time, {rows} rows differed"
            for name, rows in self.rows.items()
        ]


@dataclass
class Following:
    """The owed days of a root. ``after`` is told each table that is done; ``wait_s``: how long to wait for a query that
    begins and ends no batch, and ten times as long unless its driver is known to have ended. A query that begins and
    ends batches is waited for as long as it does.
    """

    spark: SparkSession
    tables: Tables
    wait_s: float = 60.0
    after: Callable[[str], object] = lambda step: None

    def __post_init__(self) -> None:
        self._record = Checkpoint(self.spark, self.tables.checkpoint("tables"))
        self._hold = HoldFile(self.spark, self.tables.root)
        self._asked = False
        self._silver = ""

    def owe(self, days: Iterable[date]) -> None:
        """Note days of which silver is about to change; what was owed before stays."""
        new = {day.isoformat() for day in days}
        known = set((self._record.intent() or {}).get("days", ()))
        if not new <= known:
            self._record.intend({"days": sorted(new | known)})

    def pay(self) -> Followed:
        """Do what is owed. Raises TransientError when a query has not read what came before; it stays owed then."""
        owed = self._record.intent()
        if owed is None:
            return Followed()
        days = tuple(date.fromisoformat(day) for day in owed["days"])
        rows: dict[str, int] = {}
        try:
            if self.tables.gold.exists(self.spark):
                self._between("gold", lambda version: self._gold(days, version, rows))
                self.after("gold")
            if self.tables.device_latest.exists(self.spark):
                self._between("latest", lambda version: self._latest(days, rows))
                self.after("latest")
        finally:
            if self._asked:
                self._hold.lift()
                self._asked = False
        self._record.settle()
        return Followed(days, rows)

    def _between(self, query: str, work: Callable[[int], None]) -> None:
        """Do ``work`` while the query is between two batches; it is told the version of silver to go by."""
        for _ in range(_TRIES):
            version, batch = self._settled(query)
            work(version)
            if batches_of(self.spark, self.tables.checkpoint(query)) == (batch, batch):
                return
            self._ask()
        raise self._behind(query, "never rests between two batches")

    def _settled(self, query: str) -> tuple[int, int]:
        """Wait until the query is past the change and at rest; return silver's version to go by, and the last batch."""
        driver = CheckpointLock(self.spark, self.tables.checkpoint(query))
        began = moved = time.monotonic()
        batches = (-1, -1)
        warned = False
        while True:
            now = time.monotonic()
            if (latest := batches_of(self.spark, self.tables.checkpoint(query))) != batches:
                batches, moved = latest, now
            found = self._version(query, latest)
            if found is not None:
                return found
            if now - moved > self.wait_s:
                if driver.ended() or now - moved > _ALIVE * self.wait_s:
                    raise self._behind(query, "has not read all of silver that came before the change")
                if not warned:
                    warned = True
                    _log.warning(
                        "query has not read all of silver yet, and its batch takes long: see that "
                        "`pulsebridge stream` runs with it",
                        query=query,
                        waited_s=round(now - moved),
                    )
            # A query that has to read on must run: only one that does not rest is asked to pause.
            if now - began > _PATIENCE_S and self._version(query, latest, at_rest=False) is not None:
                self._ask()
            time.sleep(_POLL_S)

    def _version(
        self, query: str, batches: tuple[int, int], *, at_rest: bool = True
    ) -> tuple[int, int] | None:
        """Return the version of silver that has what the query has read and every change beside it, and no more; then the
        last of its ``batches``, which were done and begun.
        """
        checkpoint = self.tables.checkpoint(query)
        done, begun = batches
        if not self._silver:
            detail: Any = self.spark.sql(f"DESCRIBE DETAIL {self.tables.silver.sql}").first()
            self._silver = str(detail["id"])
        standing = standing_of(self.spark, checkpoint, self._silver)
        if standing is None or standing.in_snapshot or standing.partly or (at_rest and done != begun):
            return None
        commits = history_of(self.spark, self.tables.silver)
        change = max((c.version for c in commits if is_care(c)), default=-1)
        next_one = standing.next_version
        unread = [c for c in commits if next_one <= c.version < change and is_streamed(c)]
        if unread or next_one < min(commits[-1].version, change):
            return None
        return max(next_one - 1, change), done

    def _ask(self) -> None:
        self._hold.ask(_PAUSE_S)
        self._asked = True

    def _behind(self, query: str, why: str) -> TransientError:
        return TransientError(
            f"silver is changed, but the query {query} {why}: what is made of silver is not recomputed yet",
            remedy="let `pulsebridge stream` with that query catch up, then run this again, which does the rest",
        )

    def _gold(self, days: tuple[date, ...], version: int, rows: dict[str, int]) -> None:
        from pyspark.sql import functions as F

        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("gold"))
        done, _ = batches_of(self.spark, self.tables.checkpoint("gold"))
        known = (checkpoint.begun(batch) for batch in range(done, -1, -1))
        window_s = int(next(recipe for recipe in known if recipe)["window_s"])
        table = self.tables.gold.read(self.spark)
        length = F.unix_seconds("window_end") - F.unix_seconds("window_start")
        lengths = [int(row[0]) for row in table.select(length).distinct().collect()]
        # Windows of every length that there is lie whole in such a stretch, whose beginnings count from the epoch.
        stretch_s = math.lcm(_DAY_S, window_s, *lengths)
        stretches = sorted({(day - _EPOCH).days * _DAY_S // stretch_s for day in days})
        late = self.tables.late.read(self.spark)
        late = late.where(_within("event_time", stretches, stretch_s)).select(*_PLACE).distinct()
        late = (
            late.localCheckpoint()
        )  # as it is now: a batch that begins adds others, which are not in the windows
        readings = self.tables.silver.read_at(self.spark, version)
        readings = readings.where(_within("event_time", stretches, stretch_s))
        new = gold.aggregated(gold.split_by(readings, window_s, 0))
        keys = ("device", "metric", "window_start", "window_end")
        names = [c.name for c in GOLD_COLUMNS]
        same = " AND ".join(f"t.`{n}` <=> s.`{n}`" for n in names if n != "updated_at")
        within = _sql_within("t.window_start", stretches, stretch_s)
        rows["gold"] = rows.get("gold", 0) + self._merge(
            "gold",
            f"MERGE INTO {self.tables.gold.sql} t USING {{rows}} s "
            f"ON {' AND '.join(f't.{k} <=> s.{k}' for k in keys)} AND {within} "
            f"WHEN MATCHED AND NOT ({same}) THEN {update_all(GOLD_COLUMNS)} "
            f"WHEN NOT MATCHED THEN {insert_all(GOLD_COLUMNS)} "
            f"WHEN NOT MATCHED BY SOURCE AND {within} THEN DELETE",
            lambda: new,
        )
        self.after("windows")
        if not late.isEmpty():
            here = " AND ".join(f"t.`{n}` = s.`{n}`" for n in _PLACE)
            statement = (
                f"MERGE INTO {self.tables.late.sql} t USING {{rows}} s ON {here} WHEN MATCHED THEN DELETE"
            )
            rows["late"] = rows.get("late", 0) + self._merge("late", statement, lambda: late)

    def _latest(self, days: tuple[date, ...], rows: dict[str, int]) -> None:
        from pyspark.sql import functions as F

        here = self.tables.device_latest
        readings = self.tables.silver.read(self.spark)
        near = device_changes.of_silver(readings.where(F.col("event_day").isin(list(days))))
        numbers = [(day - _EPOCH).days for day in days]
        table = here.read(self.spark)
        of_days = table.where("metric IS NOT NULL").where(_within("event_time", numbers, _DAY_S))
        still = near.select(*_PAIR, *(F.col(f"reading.{n}").alias(n) for n in _FIELDS))
        equal = [of_days[n].eqNullSafe(still[n]) for n in (*_PAIR, *_FIELDS)]
        # What silver does not say any more: there the newest of all its days counts.
        once = of_days.join(still, equal, "left_anti").select(F.struct(*_PAIR, *_FIELDS).alias("once"))
        once = once.localCheckpoint()
        some = not once.isEmpty()

        def changed() -> DataFrame:
            # The table as it is in the transaction of this very MERGE: what a batch of the query brings meanwhile is
            # another writer's commit, and must not be put back to what was.
            now = here.read(self.spark)
            lost = now.join(
                once, F.struct(*(now[n] for n in (*_PAIR, *_FIELDS))).eqNullSafe(once["once"]), "left_semi"
            ).select(*_PAIR)
            devices = near.select("device").union(lost.select("device")).distinct()
            changes = near.unionByName(latest.known(now.join(devices, "device", "left_semi"), but=lost))
            if some:
                whole = device_changes.of_silver(readings).join(lost, _PAIR, "left_semi")
                changes = changes.unionByName(whole)
            found = latest.newest(changes)
            empty = F.expr("coalesce(metric, command.command_id, receipt.state) IS NULL AND presence IS NULL")
            found = found.withColumn("is_gone", F.col("is_gone") | empty)
            gone = lost.join(found.select(*_PAIR), _PAIR, "left_anti").withColumn("is_gone", F.lit(True))
            return found.unionByName(gone, allowMissingColumns=True)

        usual = self.spark.conf.get(_MATERIALIZE, "auto")
        # The rows are read twice, and in between nothing may change.
        self.spark.conf.set(_MATERIALIZE, "auto")
        try:
            done = self._merge("device_latest", latest.merge_sql(here), changed)
        finally:
            self.spark.conf.set(_MATERIALIZE, str(usual))
        rows["device_latest"] = rows.get("device_latest", 0) + done

    def _merge(self, name: str, statement: str, rows: Callable[[], DataFrame]) -> int:
        """Merge what ``rows`` returns; where another writer was first it is asked again."""

        def write() -> Any:
            with marked(self.spark):
                return self.spark.sql(statement, rows=rows()).first()

        done = write_between(write, getattr(self.tables, name).where, self._hold)
        return 0 if done is None else int(done["num_affected_rows"])


def _within(column: str, stretches: list[int], length_s: int) -> Column:
    from pyspark.sql import functions as F

    return F.expr(_sql_within(column, stretches, length_s))


def _sql_within(column: str, stretches: list[int], length_s: int) -> str:
    """Return SQL of a time in one of these stretches; the bounds as literals let Delta skip the files of all others."""
    begin = _EPOCH + timedelta(seconds=stretches[0] * length_s)
    end = _EPOCH + timedelta(seconds=(stretches[-1] + 1) * length_s)
    numbers = ", ".join(map(str, stretches))
    return (
        f"({column} >= TIMESTAMP '{begin}T00:00:00Z' AND {column} < TIMESTAMP '{end}T00:00:00Z' "
        f"AND floor(unix_seconds({column}) / {length_s}) IN ({numbers}))"
    )

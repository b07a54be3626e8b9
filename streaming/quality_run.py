"""Judges a table, or a span of it, by the suite when somebody asks: ``pulsebridge quality run`` and ``docs``.

The verdicts are those that the watch beside the queries makes (``streaming.quality``), and land in the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from bridge.dead_letters.showing import iso
from bridge.display import printable
from bridge.errors import ConfigError
from streaming.predicates import Rule, Suite
from streaming.quality import append_results
from streaming.tables import SILVER_COLUMNS, Table, Tables, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from rich.table import Table as RichTable

    from streaming.expectations import Verdict

__all__ = ["ALL", "Asked", "Judgement", "judge", "show", "show_rules", "split_words"]

ALL: Final = "silver+quarantine"
"""What the suite judged: the rows of both."""
_TIME: Final = "processed_at"


@dataclass(frozen=True)
class Asked:
    """What to judge: ``silver``, ``quarantine``, both (``ALL``), or any Delta table as the settings name one.

    ``since_us`` and ``until_us``: rows processed at that time or later, and before that; in µs since the epoch, 0 for
    no bound. ``newest``: how many rows at most, 0 for all.
    """

    table: str = "silver"
    since_us: int = 0
    until_us: int = 0
    newest: int = 0


@dataclass(frozen=True)
class Judgement:
    """The verdicts of one run, in the suite's order. ``first_us`` and ``last_us``: when the rows were processed."""

    table: str
    suite: str
    rows: int
    first_us: int
    last_us: int
    verdicts: tuple[Verdict, ...]

    @property
    def success(self) -> bool:
        """Whether every expectation is met."""
        return all(v.success for v in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "success": self.success,
            "table": self.table,
            "suite": self.suite,
            "rows": self.rows,
            "first": iso(self.first_us) if self.first_us else None,
            "last": iso(self.last_us) if self.last_us else None,
            "rules": [
                {
                    "rule": v.rule,
                    "expectation": v.expectation,
                    "columns": list(v.columns),
                    "splits_rows": v.splits_rows,
                    "success": v.success,
                    "evaluated": v.evaluated,
                    "unexpected": v.unexpected,
                    "observed": v.observed,
                }
                for v in self.verdicts
            ],
        }


def judge(
    spark: SparkSession, tables: Tables, suite: Suite, asked: Asked, out: Path | None = None
) -> Judgement:
    """Validate the rows that are meant and append the verdicts to the table of results; with ``out`` the very same
    validation is written there as Data Docs.

    Raises ConfigError when there is no such table, or it lacks what the suite or the span needs.
    """
    from pyspark.sql import functions as F

    from streaming.expectations import validate

    rows = _meant(spark, tables, asked).persist()
    try:
        lacking = sorted({name for rule in suite.rules for name in rule.columns} - set(rows.columns))
        if lacking:
            raise ConfigError(
                f"{asked.table} has no column {', '.join(lacking)}",
                remedy="give the suite that is for this table with --suite",
            )
        timed = _TIME in rows.columns
        at = F.unix_micros(_TIME) if timed else F.lit(None).cast("bigint")
        span = rows.agg(F.count("*").alias("rows"), F.min(at).alias("first"), F.max(at).alias("last")).first()
        assert span is not None  # an aggregate without keys gives one row
        validation = validate(rows, suite)
    finally:
        rows.unpersist()
    first, last = span["first"] or 0, span["last"] or 0
    append_results(
        spark, tables, suite, validation.verdicts, _time(asked.since_us or first), _time(last), asked.table
    )
    if out is not None:
        validation.write_docs(out, f"{asked.table}: {span['rows']} rows")
    return Judgement(asked.table, suite.name, span["rows"], first, last, validation.verdicts)


def _meant(spark: SparkSession, tables: Tables, asked: Asked) -> DataFrame:
    from pyspark.sql import functions as F

    names = [c.name for c in SILVER_COLUMNS]
    if asked.table == ALL:
        silver, quarantine = (_read(spark, t) for t in (tables.silver, tables.quarantine))
        rows = silver.select(*names).unionAll(quarantine.select(*names))
    else:
        own = {"silver": tables.silver, "quarantine": tables.quarantine}
        rows = _read(spark, own.get(asked.table) or table_of(asked.table, tables.root, "--table"))
    if (asked.since_us or asked.until_us or asked.newest) and _TIME not in rows.columns:
        raise ConfigError(
            f"{asked.table} has no column {_TIME}, which says what is new in it",
            remedy="judge the whole table: leave --since, --until and --rows out",
        )
    if asked.since_us:
        rows = rows.where(F.col(_TIME) >= F.timestamp_micros(F.lit(asked.since_us)))
    if asked.until_us:
        rows = rows.where(F.col(_TIME) < F.timestamp_micros(F.lit(asked.until_us)))
    return rows.orderBy(F.desc(_TIME)).limit(asked.newest) if asked.newest else rows


def _read(spark: SparkSession, table: Table) -> DataFrame:
    if not table.exists(spark):
        raise ConfigError(
            f"there is no Delta table {table.where}",
            remedy="see streaming.root and the tables' names in the settings; pulsebridge stream makes the tables",
        )
    return table.read(spark)


def _time(us: int) -> datetime | None:
    return datetime.fromtimestamp(us / 1e6, timezone.utc) if us else None


def split_words(splits_rows: bool) -> str:
    """Return in words what a rule does."""
    return "splits rows" if splits_rows else "verdict only"


def show(found: Judgement) -> RichTable:
    """Return the table of rules for a terminal."""
    from rich.text import Text

    table = _table(
        f"{found.table} by suite {found.suite}: {found.rows} rows", "verdict", "evaluated", "unexpected"
    )
    for v in found.verdicts:
        numbers = ("" if n is None else str(n) for n in (v.evaluated, v.unexpected))
        said = "ok" if v.success else "failed"
        row = (v.rule, split_words(v.splits_rows), said, *numbers, v.observed)
        table.add_row(*(Text(printable(cell, 120)) for cell in row), style=None if v.success else "red")
    return table


def show_rules(rules: Sequence[Rule], name: str) -> RichTable:
    """Return what each rule of a suite is and does."""
    table = _table(f"suite {name}", "expectation", "on")
    table.columns.pop()
    for rule in rules:
        table.add_row(
            rule.name, split_words(rule.predicate is not None), rule.expectation, ", ".join(rule.columns)
        )
    return table


def _table(title: str, *columns: str) -> RichTable:
    from rich import box
    from rich.table import Table as Made

    made = Made(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("rule", "what it does", *columns, "observed"):
        made.add_column(name, justify="right" if name in ("evaluated", "unexpected") else "left")
    return made

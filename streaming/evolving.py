"""Carries out what ``streaming.evolution`` decides, for the query silver: in the table, in the batch's recipe, in the log.

The recipe of a batch names the columns that it fills. What a batch adds is stored there before the table is changed
and before the batch's first write, so that a batch that runs again finds it, whatever the table or the rules file say
by then. What stops a batch does so before its recipe is stored: the next start judges it by the rules of then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.silver_metrics import SilverMetrics
from streaming.decoders.settings import parse_decoders
from streaming.evolution import ADD_COLUMNS, UNFIT, Found, may_name_a_column, new_columns, stop_at
from streaming.readings import WORKING_COLUMNS
from streaming.tables import BRONZE_COLUMNS, QUARANTINE_COLUMNS, Column, Table, add_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Evolving", "FieldNews", "Heard", "found_in", "nobody_hears"]

_NAMES: Final = 10_000
"""Names of fields that are looked at in one batch: devices choose them."""
_TOLD: Final = 1_000
"""Names of fields of one decoder that are logged."""
_SIMPLE: Final = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "date",
    "timestamp",
)
_OURS: Final = frozenset(
    name.lower()
    for name in (*(c.name for c in (*BRONZE_COLUMNS, *QUARANTINE_COLUMNS)), "place", *WORKING_COLUMNS)
)
"""Names that no field of a device gets: columns of the tables, and of the rows on their way there."""
_log = structlog.get_logger("silver")


def found_in(judged: DataFrame) -> list[Found]:
    """Return the unknown fields and unfit values of a batch, in the order of decoder and name, ``_NAMES`` at most."""
    from pyspark.sql import functions as F

    notes = judged.where("notes IS NOT NULL").select(
        "decoder", "mqtt_topic", (F.size("failed_rules") == 0).alias("good"), F.explode("notes").alias("note")
    )
    rows = (
        notes.groupBy("decoder", "note.field", "note.kind")
        .agg(
            F.count("*").alias("count"),
            F.count_if("good").alias("passed"),
            F.coalesce(F.min(F.when(F.col("good"), F.col("mqtt_topic"))), F.min("mqtt_topic")).alias("topic"),
        )
        .orderBy("decoder", "field", "kind")
        .limit(_NAMES)
        .collect()
    )
    return [Found(r["decoder"], r["field"], r["kind"], r["count"], r["passed"], r["topic"]) for r in rows]


Heard = Callable[[Sequence[Found], Sequence[str]], object]
"""Told what a batch that begins holds, where it holds any, with the filters of its decoders."""


def nobody_hears(found: Sequence[Found], filters: Sequence[str]) -> None:
    """Do nothing with it."""


class Evolving:
    """What silver knows of fields beyond those of its decoders."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._there: dict[str, str] | None = None
        """The columns that the table has beyond ours, by name and type; None before the first look."""
        self._sure: set[str] = set()
        """Columns that the table is known to have."""

    def current(self, spark: SparkSession, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe of a batch that begins now, with the columns that silver has beyond ours."""
        if self._there is None:
            self._there = _columns_beyond_ours(spark, self._table)
            self._sure = set(self._there)
        return {**recipe, **({"columns": self._there} if self._there else {})}

    def decided(self, judged: DataFrame, recipe: Mapping[str, Any], heard: Heard) -> dict[str, Any]:
        """Return the recipe by which a batch with unknown fields is to be judged: with the columns that it adds.

        Raises TerminalError where a decoder says ``fail``.
        """
        decoders = parse_decoders(recipe["readings"], "recipe")
        filters = [d.filter for d in decoders]
        usual = str(recipe.get("schema_evolution", "rescue"))
        modes = [d.schema_evolution or usual for d in decoders]
        found = found_in(judged)
        heard(found, filters)
        stop = stop_at(found, modes, filters)
        if stop is not None:
            raise stop
        if ADD_COLUMNS not in modes:
            return dict(recipe)
        there = dict(recipe.get("columns", {}))
        # What the table has by now counts more than what this batch looks like.
        every = {name.lower() for name in self._table.read(judged.sparkSession).columns}
        beyond = _columns_beyond_ours(judged.sparkSession, self._table)
        taken = _OURS | (every - {name.lower() for name in beyond})
        added = new_columns(found, modes, there, taken, int(recipe.get("max_added_columns", 0)))
        columns = there | {name: beyond.get(name, kind) for name, kind in added.items()}
        return {**recipe, "columns": columns} if added else dict(recipe)

    def ready(self, spark: SparkSession, recipe: Mapping[str, Any]) -> None:
        """Give the table the columns that a batch fills; called before it writes."""
        columns: Mapping[str, str] = recipe.get("columns", {})
        lacking = [name for name in columns if name not in self._sure]
        if lacking:
            comment = "field of the payload, added by schema_evolution"
            add_columns(spark, self._table, [Column(name, columns[name], comment) for name in lacking])
            _log.info("silver has new columns", columns={name: columns[name] for name in lacking})
            self._sure.update(lacking)
        self._there = {**(self._there or {}), **columns}


def _columns_beyond_ours(spark: SparkSession, table: Table) -> dict[str, str]:
    """Return the columns of a table that fields of payloads may fill, with their types."""
    fields = table.read(spark).schema.fields
    return {
        f.name: kind
        for f in fields
        if may_name_a_column(f.name, _OURS)
        and ((kind := f.dataType.simpleString()) in _SIMPLE or kind.startswith("decimal"))
    }


class FieldNews:
    """Tells of what was found: counts it, and logs each field's name once, while the driver lives."""

    def __init__(self, metrics: SilverMetrics | None = None) -> None:
        self._metrics = metrics
        self._told: dict[str, set[str]] = {}

    def __call__(self, found: Sequence[Found], filters: Sequence[str]) -> None:
        """Called for each batch in which anything was found, by the query's thread."""
        for one in found:
            decoder = filters[one.decoder]
            if self._metrics is not None:
                of_kind = self._metrics.unfit_values if one.kind == UNFIT else self._metrics.unknown_fields
                of_kind.labels(decoder).inc(one.count)
            told = self._told.setdefault(decoder, set())
            if one.field in told or len(told) > _TOLD:
                continue
            told.add(one.field)
            if len(told) > _TOLD:
                _log.info("so many unknown fields that no more are named", decoder=decoder)
            elif one.kind == UNFIT:
                _log.info(
                    "a value does not fit its type", decoder=decoder, field=one.field, mqtt_topic=one.topic
                )
            else:
                _log.info("unknown field", decoder=decoder, field=one.field, mqtt_topic=one.topic)

"""Adds columns, with their types, for payload fields that a table's declaration does not name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming.sql import literal, quoted
from streaming.tables import struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from streaming.pipelines import Declared

__all__ = ["NewColumns", "column_type", "new_columns"]

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
"""Other names stay in ``_rescued_data``, because a device chooses them."""


@dataclass(frozen=True)
class NewColumns:
    """Top-level fields of ``_rescued_data`` that have or get a column."""

    types: Mapping[str, str]
    """All fields by name, with the type in SQL."""
    lacking: frozenset[str]
    """Columns that the table lacks."""

    def as_schema(self) -> StructType:
        """Return the columns that the table lacks."""
        return struct_of(
            ", ".join(
                f"{quoted(n)} {kind} COMMENT 'field of the payload'"
                for n, kind in self.types.items()
                if n in self.lacking
            )
        )

    def filled(self, rows: DataFrame) -> DataFrame:
        """Return the rows with these columns. Values that do not fit stay in ``_rescued_data``."""
        from pyspark.sql import functions as F

        if not self.types:
            return rows
        rescued = F.from_json("_rescued_data", "map<string,variant>")
        values = {
            n: F.expr(f"try_variant_get(_fields[{literal(n)}], '$', {literal(kind)})") for n, kind in self.types.items()
        }
        found = rows.withColumn("_fields", rescued).withColumns(values)
        moved = F.array_compact(F.array(*(F.when(F.col(quoted(n)).isNotNull(), F.lit(n)) for n in self.types)))
        left = F.map_filter("_fields", lambda name, _value: ~F.array_contains(moved, name))
        return found.withColumn("_rescued_data", F.when(F.size(left) > 0, F.to_json(left))).drop("_fields")


def new_columns(rows: DataFrame, known: StructType, declared: Declared, limit: int) -> NewColumns:
    """Find new fields in ``_rescued_data`` of a batch. Columns that earlier batches added are filled as well."""
    from pyspark.sql import functions as F

    own = {n.lower() for n in rows.columns}
    added = {
        f.name: f.dataType.simpleString() for f in known.fields if f.name.lower() not in own and f.name != "_warnings"
    }
    fields = (
        rows.where("_rescued_data IS NOT NULL")
        .select(F.explode(F.from_json("_rescued_data", "map<string,variant>")).alias("name", "value"))
        .groupBy("name")
        .agg(F.expr("schema_of_variant_agg(value)").alias("kind"))
        .orderBy("name")
        .limit(10 * (limit + 1))
    )
    lacking: dict[str, str] = {}
    names = {n.lower() for n in (*own, *added)}
    for row in fields.collect():
        kind = column_type(row["kind"])
        if kind and _NAME.match(row["name"]) and row["name"].lower() not in names and len(added) + len(lacking) < limit:
            lacking[row["name"]] = kind
            names.add(row["name"].lower())
    return NewColumns({**added, **lacking}, frozenset(lacking))


def column_type(kind: str) -> str | None:
    """Return the column type for a result of ``schema_of_variant_agg``, None for no column."""
    if kind.startswith(("DECIMAL", "DOUBLE", "FLOAT")):
        return "double"
    return {"BIGINT": "bigint", "STRING": "string", "BOOLEAN": "boolean"}.get(kind)

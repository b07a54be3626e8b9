"""Builds pieces of Spark SQL as text: quoted names and values, topic filters, captures.

Columns are written as SQL, because each pyspark function is a call into the JVM, or a message of Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from bridge.routing.patterns import Star
from bridge.routing.templates import Filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["barrier", "by_number", "captured", "ddl_of", "json_path", "literal", "matches", "once", "quoted", "same"]


_PARTITIONS: Final = 1_000_000
"""More than any frame has."""


def literal(text: str) -> str:
    """Return a value as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(name: str) -> str:
    """Return the name of a column or field as SQL."""
    return "`" + name.replace("`", "``") + "`"


def json_path(steps: tuple[str | int, ...]) -> str:
    """Return a path for ``get_json_object`` and ``try_variant_get``, as SQL."""
    return literal(
        "$" + "".join(f"[{s}]" if isinstance(s, int) else f'["{s}"]' if "'" in s else f"['{s}']" for s in steps)
    )


def once(sql: str) -> str:
    """Return an expression that Spark computes once for each row. Spark copies a deterministic expression into later
    conditions, and would parse a payload for each of them.
    """
    return f"IF(spark_partition_id() < 0, NULL, {sql})"


def barrier(rows: DataFrame) -> DataFrame:
    """Return rows after a step that changes nothing, and at which Spark stops merging projections.

    Several of Spark's rules traverse each projection down to the last one, so long chains of them are slow to plan.
    """
    return rows.coalesce(_PARTITIONS)


def matches(of: Filter) -> str:
    """Return whether the filter matches a row's MQTT topic (MQTT 5, 4.7)."""
    if of.levels == (Star.REST,):
        return "coalesce(mqtt_topic NOT LIKE '$%', true)"  # "#" includes messages without an MQTT topic
    parts = [
        "[^/]*" if level is Star.LEVEL else "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in level)
        for level in of.levels
        if level is not Star.REST
    ]
    body = "/".join(parts)
    if of.levels[-1] is Star.REST:  # without a name, a/# matches a itself as well
        body += "/.*" if of.names[-1] is not None else "(/.*)?"
    guard = r"(?!\x24)" if isinstance(of.levels[0], Star) else ""
    return "mqtt_topic RLIKE " + literal(f"(?s)^{guard}{body}" + r"\z")


def captured(of: Filter, name: str) -> str:
    """Return the value of a filter's capture in a row's MQTT topic."""
    number = of.names.index(name) + 1
    levels = "split(mqtt_topic, '/', -1)"
    if of.levels[number - 1] is Star.REST:
        return f"array_join(slice({levels}, {number}, greatest(size({levels}), 1)), '/')"
    return f"try_element_at({levels}, {number})"


def by_number(columns: Sequence[str]) -> str:
    """Return one column, by the number ``_n`` of a row's decoding."""
    if len(set(columns)) == 1:
        return columns[0]
    return "CASE _n " + " ".join(f"WHEN {n} THEN {column}" for n, column in enumerate(columns)) + " END"


def same(keys: Iterable[str], left: str = "t", right: str = "s") -> str:
    """Return the condition that two rows have the same key; null equals null."""
    return " AND ".join(f"{left}.{quoted(k)} <=> {right}.{quoted(k)}" for k in keys)


def ddl_of(kind: Any) -> str:
    """Return a type as DDL; pyspark's own does not quote the names of fields."""
    if kind.typeName() == "struct":
        return "struct<" + ", ".join(f"{quoted(f.name)}: {ddl_of(f.dataType)}" for f in kind.fields) + ">"
    if kind.typeName() == "array":
        return f"array<{ddl_of(kind.elementType)}>"
    if kind.typeName() == "map":
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return str(kind.simpleString())

"""The neutral long form: a row for each field of any message, without a declaration.

A field of JSON is a row. Nested objects are rows by their path (``AM2301.Temperature``), up to four levels; deeper
objects and arrays stay JSON text. For an array of objects at the top, each element is read. A plain text or number is
one row, named by the capture ``metric`` of its route, else by the topic's last level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding
from streaming.decoders.fields import MAP, TextFields
from streaming.decoders.rows import (
    ARRIVAL,
    POSITION,
    Path,
    captures,
    device,
    message_columns,
    metric_of,
    row_id,
    text_of,
    time_columns,
)
from streaming.decoders.times import in_known_zone
from streaming.sql import by_number, json_path, literal, once, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["READINGS", "long_rows"]

READINGS: Final = Decoding(filter="#")
"""Decoding of messages for the table ``readings`` without any setting."""
_LEVELS: Final = 4
_EXACT: Final = 2**53
"""Whole numbers from here on may lose digits as a double, so their text is kept as well."""
_NUMBER: Final = r"r'^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$'"
_BROKEN: Final = r"r'^\s*(\{|\[\s*\{)'"
"""Start of a payload that was meant to be JSON. Other text that is not JSON is plain text."""
_NOT_JSON: Final = (
    "the payload begins like JSON and is not JSON, has two fields of one name, or is beyond Spark's limits: 1,000 levels, "
    "1,000 digits of a number"
)


def long_rows(rows: DataFrame, decodings: Sequence[Decoding], rules: Sequence[TopicRule]) -> DataFrame:
    """Return the rows of ``streaming.decoding.documents`` as readings.

    Besides the columns of each table, they have ``metric``, ``value`` (numbers; booleans as 1 and 0) and ``text`` (all
    else). A null is left out. The MQTT topic replaces a missing device name.
    """
    more = captures(message_columns(rows), decodings)
    rows = rows.selectExpr("*", f"{by_number([_document(one) for one in decodings])} AS _json")
    rows = rows.selectExpr("*", "try_parse_json(concat('[', _json, ']')) AS _list")
    # Text that continues after a value, as `1 2` or `1,2`, is plain text.
    one, two = (f"try_variant_get(_list, '$[{n}]', 'variant')" for n in (0, 1))
    rows = rows.selectExpr("*", f"CASE WHEN {two} IS NULL THEN {one} END AS _root")
    rows = rows.selectExpr(
        "*",
        f"coalesce(_fault, CASE WHEN _root IS NULL AND _json RLIKE {_BROKEN} THEN {literal(_NOT_JSON)} END) AS _wrong",
        f"{by_number([metric_of(one, rules) for one in decodings])} AS _metric",
        f"{by_number([_text_of(one, 'id', rules) for one in decodings])} AS _own_id",
        f"{by_number([_time(one, rules) for one in decodings])} AS _time",
        *(f"{column} AS {quoted(name)}" for name, column in more.items()),
    )
    plain = "array(named_struct('metric', _metric, 'json', CAST(NULL AS VARIANT), 'plain', _json))"
    wanted = f"CASE WHEN _root IS NOT NULL THEN {_of_root()} WHEN length(trim(_json)) > 0 THEN {plain} END"
    rows = rows.selectExpr("*", f"{once(f'CASE WHEN _wrong IS NULL THEN {wanted} END')} AS _fields")
    most = by_number([str(one.max_elements) for one in decodings])
    beyond = f"CASE WHEN size(_fields) > {most} THEN concat('more fields than max_elements, ', {most}) END"
    time, unread = time_columns(decodings)
    rows = rows.selectExpr("* EXCEPT (_wrong)", f"coalesce(_wrong, {beyond}) AS _wrong", f"{time} AS _read")
    rows = rows.where("_wrong IS NOT NULL OR size(_fields) > 0")
    kept = [quoted(name) for name in rows.columns if name not in ("_fields", "_element")]
    rows = rows.selectExpr(
        *kept,
        "_element AS _first",
        "posexplode_outer(CASE WHEN _wrong IS NULL THEN _fields END) AS (_index, _field)",
    )
    rows = rows.where("_wrong IS NOT NULL OR _field.json IS NULL OR NOT is_variant_null(_field.json)")
    rows = rows.selectExpr(
        *kept,
        f"_first * {most} + coalesce(_index, 0) AS _element",
        "_field.metric AS metric",
        "_field.json AS _value",
        "_field.plain AS _plain",
        "schema_of_variant(_field.json) AS _kind",
    )
    untyped = by_number([str(one.format == "csv").lower() for one in decodings])
    rows = rows.selectExpr("*", f"{_number(untyped)} AS value")
    return rows.selectExpr(
        f"{device(decodings, 'mqtt_topic')} AS device",
        *map(quoted, more),
        "metric",
        f"coalesce(_read, {ARRIVAL}) AS event_time",
        "value",
        f"{_text()} AS text",
        "arrival_time",
        "mqtt_topic",
        "command_topic",
        f"{row_id('_own_id', 'true')} AS _id",
        "CAST(NULL AS STRING) AS _rescued_data",
        f"{POSITION} AS _position",
        "payload AS _payload",
        f"coalesce(_wrong, {unread}) AS _fault",
    )


def _text_of(decoding: Decoding, part: Literal["id", "time"], rules: Sequence[TopicRule]) -> str:
    return f"CAST({text_of(decoding, part, rules, _in_row)} AS STRING)"


def _time(decoding: Decoding, rules: Sequence[TopicRule]) -> str:
    return in_known_zone(_text_of(decoding, "time", rules), decoding.time_zone)


def _in_row(path: Path) -> str:
    return f"try_variant_get(_root, {json_path(path)}, 'string')"


def _document(decoding: Decoding) -> str:
    if decoding.format != "csv":
        return "_text"
    from pyspark.sql.types import StructType

    fields = TextFields(StructType([]), decoding.names, decoding.separator)
    return f"to_json({fields.parsed('_text')})"


def _of_root() -> str:
    """Return the fields of an object or of an array's objects, else the document itself."""
    objects = "try_variant_get(_root, '$', 'array<variant>')"
    each = f"flatten(transform({objects}, one -> {_of_object('one', None, 1)}))"
    return f"coalesce({_of_object('_root', None, 1)}, {each}, array({_leaf('_metric', '_root')}))"


def _of_object(value: str, path: str | None, level: int) -> str:
    """Return the fields of an object, null for other values."""
    entry = f"e{level}"
    name = f"{entry}.key" if path is None else f"concat({path}, '.', {entry}.key)"
    own = f"array({_leaf(name, f'{entry}.value')})"
    fields = own
    if level < _LEVELS:
        fields = f"coalesce({_of_object(f'{entry}.value', name, level + 1)}, {own})"
    return f"flatten(transform(map_entries(try_variant_get({value}, '$', '{MAP}')), {entry} -> {fields}))"


def _leaf(name: str, value: str) -> str:
    return f"named_struct('metric', {name}, 'json', {value}, 'plain', CAST(NULL AS STRING))"


def _number(untyped: str) -> str:
    """Return a field's number; ``untyped``: whether the format has only text."""

    def read(text: str) -> str:
        return f"CASE WHEN {text} RLIKE {_NUMBER} THEN try_cast({text} AS DOUBLE) END"

    string = "try_variant_get(_value, '$', 'string')"
    found = (
        f"CASE WHEN _value IS NULL THEN {read('_plain')} "
        "WHEN _kind = 'BOOLEAN' THEN CAST(try_variant_get(_value, '$', 'boolean') AS DOUBLE) "
        f"WHEN _kind = 'STRING' THEN CASE WHEN {untyped} THEN {read(string)} END "
        "WHEN _kind IN ('BIGINT', 'DOUBLE', 'FLOAT') OR _kind LIKE 'DECIMAL%' THEN try_variant_get(_value, '$', 'double') END"
    )
    return f"nullif(nullif({found}, double('infinity')), double('-infinity'))"


def _text() -> str:
    """Return non-numbers, and the digits of numbers that a double does not preserve."""
    return (
        f"CASE WHEN abs(value) < {_EXACT}D AND coalesce(_kind, '') != 'BOOLEAN' THEN NULL "
        "WHEN _value IS NULL THEN _plain "
        "WHEN _kind LIKE 'OBJECT%' OR _kind LIKE 'ARRAY%' THEN to_json(_value) "
        "ELSE try_variant_get(_value, '$', 'string') END"
    )

"""Converts messages of the source to typed rows, as declared, for a table's writer.

Spark parses a payload once. Python decodes only formats that Spark cannot read. No payload raises an error. An
undecodable payload is a row with its reason in ``_fault``, and unknown or unfit fields stay in ``_rescued_data``. The
table's writer decides about such rows. Declarations without ``fields`` give the neutral long form of
``streaming.decoders``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from bridge.errors import ConfigError
from bridge.routing.templates import Filter
from bridge.settings.presets import declared_tables
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding, TableDeclaration, filter_problem, path_steps
from sources.payloads.message import Message
from sources.payloads.unpacking import needs_python, unpack_rows, with_descriptor
from streaming.decoders.fields import MAP, JsonFields, TextFields
from streaming.decoders.rows import (
    ARRIVAL,
    POSITION,
    Path,
    captures,
    device,
    message_columns,
    row_id,
    text_of,
    time_columns,
    top_names,
)
from streaming.decoders.times import in_known_zone
from streaming.readings import long_rows
from streaming.sql import barrier, by_number, ddl_of, json_path, literal, matches, once, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["Decoding", "Message", "TableDeclaration", "declared_tables", "decoded"]

_FIRST: Final = ("device", "event_time", "arrival_time", "mqtt_topic", "command_topic")
_LAST: Final = ("_id", "_rescued_data", "_position", "_payload", "_fault")
_LIST: Final = "array<variant>"
_REPARSED: Final = "try_parse_json(concat('{\"d\":', _text, '}'))"
_NOT_JSON: Final = (
    "the payload is not a JSON object, has two fields of one name, or is beyond Spark's limits: 1,000 levels, 1,000 digits "
    "of a number"
)
_NOT_TEXT: Final = "the payload is not UTF-8"
_NOT_CSV: Final = "the payload is not one line of CSV, or has far more fields than it should"


def decoded(messages: DataFrame, decodings: Sequence[Decoding], rules: Sequence[TopicRule] = ()) -> DataFrame:
    """Return the rows of a table. The first decoding whose filter matches reads a message; others are left out.

    ``messages`` has the source's columns. The rows have ``device``, the captures of the filters as strings,
    ``event_time`` (the payload's time, else that of arrival, else of publishing), ``arrival_time``, ``mqtt_topic``,
    ``command_topic``, the declared columns, and

    - ``_id string``: the payload's id, or ``ledger:entry:index#element``, the message's position in Pulsar;
    - ``_rescued_data string``: JSON of unknown fields and of values that do not fit their type, null without these;
    - ``_position struct<topic, partition, ledger, entry, index, element>``;
    - ``_payload binary``: the message's payload, for an element of an array the element as JSON;
    - ``_fault string``: null, or the reason why the payload did not decode.

    ``rules`` are the topic rules in force: their ``reading_id`` and ``reading_time`` apply if a decoding names no id or
    time. Raises ConfigError for declarations that contradict each other, or that Spark cannot analyse.
    """
    from pyspark.errors import PySparkException

    giving = [with_descriptor(one) for one in decodings if one.format != "none"]
    problem = filter_problem(decodings) if giving else "no decoding is given"
    if problem is None and len({one.fields is None for one in giving}) > 1:
        problem = "decodings with fields and without cannot fill one table"
    if problem is not None:
        raise ConfigError(problem, remedy="correct the table's decoding")
    try:
        rows = barrier(documents(matched(messages, decodings), giving))
        found = (long_rows if giving[0].fields is None else _typed_rows)(rows, giving, rules)
        found = barrier(found)
        found.schema  # noqa: B018 — Spark Connect analyses on request
    except PySparkException as e:
        first = str(e).strip().splitlines()[0]
        what = f"the decoding of {', '.join(one.filter for one in giving)}"
        raise ConfigError(f"Spark rejects {what}: {first}", remedy="correct its fields, columns or paths") from e
    return found


# --- messages into documents ---


def matched(messages: DataFrame, decodings: Sequence[Decoding]) -> DataFrame:
    """Return the messages that give rows. ``_n`` is the index of their decoding among those that give rows."""
    cases, number = "", 0
    for one in decodings:
        reads = one.format != "none"
        cases += f" WHEN {matches(Filter.parse(one.filter))} THEN {number if reads else 'NULL'}"
        number += reads
    return messages.selectExpr("*", f"CASE{cases} END AS _n").where("_n IS NOT NULL")


def documents(rows: DataFrame, decodings: Sequence[Decoding]) -> DataFrame:
    """Return messages with the index ``_n`` of their decoding as one row for each document.

    ``_text`` is the document, ``_whole`` the whole message's, ``_element`` its index, ``_fault`` the error.
    """
    if any(map(needs_python, decodings)):
        rows = unpack_rows(rows, decodings)
    else:
        limit = by_number([str(int(one.max_size)) for one in decodings])
        beyond = f"octet_length(payload) > {limit}"
        words = f"concat(octet_length(payload), ' bytes, max_size is ', {limit})"
        rows = rows.selectExpr(
            "*",
            f"CASE WHEN NOT {beyond} THEN payload END AS _body",
            "CAST(NULL AS STRING) AS _document",
            f"CASE WHEN {beyond} THEN {words} END AS _broken",
        )
    text = "coalesce(_document, try_validate_utf8(CAST(_body AS STRING)))"
    rows = rows.selectExpr("*", f"{text} AS _whole")
    missing = f"CASE WHEN _whole IS NULL AND _body IS NOT NULL THEN {literal(_NOT_TEXT)} END"
    rows = rows.selectExpr("*", f"coalesce(_broken, {missing}) AS _fault").drop("_document", "_broken")
    if not any(one.many for one in decodings):
        return rows.selectExpr("*", "_whole AS _text", "0 AS _element")
    return _elements(rows, decodings)


def _elements(rows: DataFrame, decodings: Sequence[Decoding]) -> DataFrame:
    """Split documents whose elements are rows. An empty array gives no row."""
    many = by_number([str(one.many).lower() for one in decodings])
    items, faults = [], []
    for one in decodings:
        most = f"more elements than max_elements, {one.max_elements}"
        if not one.many:
            items.append("array(_whole)")
            faults.append("CAST(NULL AS STRING)")
            continue
        if one.format == "csv":
            items.append("filter(split(_whole, r'\\r?\\n'), line -> line != '')")
        else:
            path = json_path(path_steps(one.elements or "$"))
            listed = f"try_variant_get(try_parse_json(_whole), {path}, '{_LIST}')"
            items.append(f"transform({listed}, item -> to_json(item))")
        none = literal(f"no array at {one.elements or '$'}")
        faults.append(
            f"CASE WHEN _items IS NULL THEN {none} WHEN size(_items) > {one.max_elements} THEN {literal(most)} END"
        )
    rows = rows.selectExpr("*", f"{once(f'CASE WHEN _fault IS NULL THEN {by_number(items)} END')} AS _items")
    rows = rows.withColumnsRenamed({"_fault": "_before"})
    rows = rows.selectExpr("*", f"coalesce(_before, {by_number(faults)}) AS _fault").drop("_before")
    rows = rows.where("_fault IS NOT NULL OR size(_items) > 0")
    kept = [quoted(name) for name in rows.columns if name not in ("_items", "payload")]
    splits = f"{many} AND _fault IS NULL"
    rows = rows.selectExpr(
        *kept,
        # Elements carry no copy of the whole payload.
        f"CASE WHEN NOT ({splits}) THEN payload END AS payload",
        "posexplode_outer(CASE WHEN _fault IS NULL THEN _items END) AS (_index, _text)",
    )
    return rows.selectExpr(
        *kept, "coalesce(payload, encode(_text, 'UTF-8')) AS payload", "_text", "coalesce(_index, 0) AS _element"
    )


# --- documents into typed rows ---


@dataclass(frozen=True)
class _Typed:
    """One decoding with fields, as SQL over the rows of ``documents``."""

    n: int
    count: int
    decoding: Decoding
    rules: tuple[TopicRule, ...]
    declared: StructType

    @cached_property
    def fields(self) -> JsonFields | TextFields:
        """The reader of the document's fields."""
        one = self.decoding
        if one.format in ("csv", "raw"):
            names = one.names or tuple(self.declared.names)
            return TextFields(self.declared, names, one.separator if one.format == "csv" else None, one.ignored)
        known = {name.lower() for name in self.declared.names}
        hidden = [name for name in top_names(one, self.rules) if name.lower() not in known]
        once = {name.lower(): name for name in reversed(hidden)}
        return JsonFields(self.declared, tuple(name for name in hidden if once[name.lower()] == name), one.ignored)

    @property
    def parsed(self) -> str:
        """The column with the parsed document."""
        return f"_parsed{self.n}"

    @property
    def values(self) -> str:
        """The column with the declared fields."""
        return f"_fields{self.n}"

    @property
    def fault(self) -> str:
        """The error for a document that is not an object."""
        if isinstance(self.fields, TextFields):
            return literal(_NOT_CSV)
        return f"CASE WHEN coalesce(length(_text), 0) = 0 THEN 'the payload is empty' ELSE {literal(_NOT_JSON)} END"

    def here(self, then: str) -> str:
        """Return ``then`` for rows of this decoding, null for others."""
        return then if self.count == 1 else f"CASE WHEN _n = {self.n} THEN {then} END"

    def text_of(self, part: Literal["id", "time"]) -> str:
        """Return the row's id or time as text."""
        return text_of(self.decoding, part, self.rules, self._row)

    def _row(self, path: Path) -> str:
        return self.fields.text_at(path, self.parsed) or f"get_json_object(_text, {json_path(path)})"

    @property
    def shared(self) -> str:
        """Whether several rows of a message share the id."""
        text = self.decoding.id
        return str(self.decoding.many and (text is None or text.startswith("$$"))).lower()

    def columns(self) -> dict[str, str]:
        """Return the declared columns."""
        if self.decoding.columns:
            return self.decoding.columns
        return {name: f"{self.values}.{quoted(name)}" for name in self.declared.names}


def _typed_rows(rows: DataFrame, decodings: Sequence[Decoding], rules: Sequence[TopicRule]) -> DataFrame:
    from pyspark.sql.types import StructType

    message = message_columns(rows)
    count = len(decodings)
    typed = [
        _Typed(n, count, one, tuple(rules), cast("StructType", StructType.fromDDL(one.fields or "")))
        for n, one in enumerate(decodings)
    ]
    rows = rows.selectExpr("*", *(f"{one.here(one.fields.parsed('_text'))} AS {one.parsed}" for one in typed))
    whole = by_number([one.fields.all_read(one.parsed, "_text") for one in typed])
    rows = rows.selectExpr("*", f"{whole} AS _all_read")
    is_text = [isinstance(one.fields, TextFields) for one in typed]
    reparsed = by_number(["CAST(NULL AS VARIANT)" if text else _REPARSED for text in is_text])
    rows = rows.selectExpr("*", f"CASE WHEN NOT _all_read AND _fault IS NULL THEN {reparsed} END AS _reparsed")
    left = [f"CASE WHEN NOT _all_read THEN {one.fields.left('_reparsed', one.parsed)} END" for one in typed]
    if any(is_text) and not all(is_text):
        left = [f"CAST({one} AS {MAP})" if text else one for one, text in zip(left, is_text, strict=True)]
    more = captures(message, decodings)
    rows = rows.selectExpr(
        "* EXCEPT (device)",
        f"{device(decodings)} AS device",
        f"{once(by_number(left))} AS _left",
        *(f"{one.here(one.fields.fields(one.parsed))} AS {one.values}" for one in typed),
        *(f"{column} AS {quoted(name)}" for name, column in more.items()),
    )
    rows = rows.selectExpr(
        "* EXCEPT (_fault)",
        f"coalesce(_fault, CASE WHEN NOT _all_read AND _left IS NULL THEN {by_number([o.fault for o in typed])} END) AS _fault",
    )
    rows = barrier(rows)
    scope = [*message, *more]
    for one in typed:
        rows = _with_columns(rows, one, scope)
    if any(one.where for one in decodings):
        rows = rows.where(f"_fault IS NOT NULL OR {by_number([f'_wanted{one.n}' for one in typed])}")
    return _finished(rows, typed, list(more))


def _with_columns(rows: DataFrame, one: _Typed, scope: Sequence[str]) -> DataFrame:
    """Evaluate a decoding's expressions over its fields as columns."""
    used = {name.lower() for name in (*scope, "fields")}
    names = [name for name in one.declared.names if name.lower() not in used and name[0] != "_"]
    inner = [name for name in rows.columns if name.startswith("_") and not name.startswith("__")]
    fields = [f"{one.values}.{quoted(name)} AS {quoted(name)}" for name in names]
    rows = rows.selectExpr("*", f"{one.values} AS fields", *fields)
    columns = ", ".join(f"{literal(name)}, ({sql})" for name, sql in one.columns().items())
    identity = f"CAST({one.text_of('id')} AS STRING)"
    time = one.text_of("time")
    given, text = "CAST(NULL AS TIMESTAMP_LTZ)", f"CAST({time} AS STRING)"
    if rows.selectExpr(f"{time} AS t").schema[0].dataType.typeName().startswith("timestamp"):
        given, text = f"({time})", "CAST(NULL AS STRING)"
    return rows.selectExpr(
        *map(quoted, (*scope, *inner)),
        f"{one.here(f'named_struct({columns})')} AS _columns{one.n}",
        f"{one.here(one.decoding.where or 'true')} AS _wanted{one.n}",
        f"{one.here(identity)} AS _id{one.n}",
        f"{one.here(text)} AS _time{one.n}",
        f"{one.here(given)} AS _given{one.n}",
    )


def _finished(rows: DataFrame, typed: Sequence[_Typed], more: Sequence[str]) -> DataFrame:
    """Return the columns of the table, merged from all decodings."""
    schema: Any = rows.schema
    kinds: dict[str, DataType] = {}
    for one in typed:
        for field in schema[f"_columns{one.n}"].dataType.fields:
            first = kinds.setdefault(field.name, field.dataType)
            if first != field.dataType:
                raise ConfigError(
                    f"column {field.name} is {first.simpleString()} and {field.dataType.simpleString()} in two decodings "
                    "of one table",
                    remedy="rename one of them, or cast it",
                )
    fixed = {name.lower() for name in (*_FIRST, *_LAST, *more)}
    names = [name.lower() for name in kinds]
    clash = [name for name in kinds if name.lower() in fixed or names.count(name.lower()) > 1]
    if clash:
        raise ConfigError(f"column {clash[0]} exists already", remedy="rename it under columns")

    def column(name: str, kind: DataType) -> str:
        none = f"CAST(NULL AS {ddl_of(kind)})"
        found = []
        for one in typed:
            own = {field.name for field in schema[f"_columns{one.n}"].dataType.fields}
            found.append(f"_columns{one.n}.{quoted(name)}" if name in own else none)
        return f"{by_number(found)} AS {quoted(name)}"

    known = by_number([in_known_zone(f"_time{t.n}", t.decoding.time_zone) for t in typed])
    rows = rows.selectExpr("*", f"{known} AS _time")
    found_time, unread = time_columns([t.decoding for t in typed])
    rows = rows.selectExpr("*", f"coalesce({by_number([f'_given{t.n}' for t in typed])}, {found_time}) AS _read")
    return rows.selectExpr(
        "device",
        *map(quoted, more),
        f"coalesce(_read, {ARRIVAL}) AS event_time",
        "arrival_time",
        "mqtt_topic",
        "command_topic",
        *(column(name, kind) for name, kind in kinds.items()),
        f"{row_id(by_number([f'_id{t.n}' for t in typed]), by_number([t.shared for t in typed]))} AS _id",
        "CASE WHEN size(_left) > 0 THEN to_json(_left) END AS _rescued_data",
        f"{POSITION} AS _position",
        "payload AS _payload",
        f"coalesce(_fault, {unread}) AS _fault",
    )

"""Builds SQL for the columns of all tables: device, captures, id, time, metric and position.

The decoding names the path of id and time, or else the topic rule that received the message. Each message's envelope
names that rule. Its ``reading_id`` and ``reading_time`` are templates (``bridge.routing.templates``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from bridge.contract import P_INGEST
from bridge.routing.patterns import meet
from bridge.routing.templates import Filter, Template
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding, path_steps
from streaming.decoders.times import as_timestamp, words_for
from streaming.sql import by_number, captured, json_path, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ARRIVAL",
    "POSITION",
    "Path",
    "PathText",
    "captures",
    "device",
    "message_columns",
    "metric_of",
    "row_id",
    "text_of",
    "time_columns",
    "top_names",
]

POSITION: Final = (
    "named_struct('topic', __topic, 'partition', partition, 'ledger', ledger_id, 'entry', entry_id, "
    "'index', batch_index, 'element', _element)"
)
ARRIVAL: Final = "arrival_time, __publishTime"
Path = tuple[str | int, ...]
PathText = Callable[[Path], str]
"""The text at a path of the payload, as SQL."""
Part = Literal["id", "time"]
_NONE: Final = "CAST(NULL AS STRING)"


def message_columns(rows: DataFrame) -> list[str]:
    """Return the source's columns. Names with one leading underscore are added during decoding."""
    return [name for name in rows.columns if not name.startswith("_") or name.startswith("__")]


def captures(message: Sequence[str], decodings: Sequence[Decoding]) -> dict[str, str]:
    """Return the captures of the filters as columns, without names of the message's columns."""
    filters = [Filter.parse(one.filter) for one in decodings]
    used = {name.lower() for name in message}
    names = [n for of in filters for n in of.names if n is not None and n.lower() not in used]
    return {
        name: by_number([captured(of, name) if name in of.names else _NONE for of in filters])
        for name in dict.fromkeys(names)
    }


def device(decodings: Sequence[Decoding], fallback: str = _NONE) -> str:
    """Return the message's device, else the device that the filter captures."""
    filters = [Filter.parse(one.filter) for one in decodings]
    found = by_number([captured(of, "device") if "device" in of.names else fallback for of in filters])
    return f"coalesce(device, {found}, {fallback})"


def row_id(given: str, shared: str) -> str:
    """Return the id of a row. ``given`` is by its payload, with the element's number if the id is a whole message's."""
    element = "concat('#', CAST(_element AS STRING))"
    position = f"concat_ws(':', ledger_id, entry_id, batch_index), {element}"
    own = f"concat({given}, CASE WHEN {shared} THEN {element} ELSE '' END)"
    return f"coalesce({own}, concat({position}))"


def time_columns(decodings: Sequence[Decoding]) -> tuple[str, str]:
    """Return the time of ``_time``, and the error if that time, as ``_read``, is null."""
    times = by_number([as_timestamp("_time", one.time_unit, one.time_zone) for one in decodings])
    words = by_number([words_for("_time", one.time_unit) for one in decodings])
    return times, f"CASE WHEN _read IS NULL AND _time IS NOT NULL THEN {words} END"


def text_of(decoding: Decoding, part: Part, rules: Sequence[TopicRule], row: PathText) -> str:
    """Return a row's id or time. Its source is a path in its document or the message, SQL, else its rule."""
    text = getattr(decoding, part)
    if text is None:
        path_text = _in_message if decoding.many else row
        return _by_name((rule, _filled(of, path_text)) for rule, of in _templates(rules, decoding, part))
    if text.startswith("$$"):
        return _in_message(path_steps(text[1:]))
    return row(path_steps(text)) if text.startswith("$") else str(text)


def _in_message(path: Path) -> str:
    return f"get_json_object(_whole, {json_path(path)})"


def top_names(decoding: Decoding, rules: Sequence[TopicRule]) -> tuple[str, ...]:
    """Return the top-level fields of a row's document that contain its id or time."""
    found: list[str] = []
    for part in ("id", "time"):
        text = getattr(decoding, part)
        paths = [path_steps(text)] if text is not None and text[:1] == "$" and text[:2] != "$$" else []
        if text is None and not decoding.many:
            paths = [f.steps for _, of in _templates(rules, decoding, part) for f in of.fields if f.property is None]
        found += [step for path in paths if len(path) == 1 for step in path if isinstance(step, str)]
    return tuple(dict.fromkeys(found))


def metric_of(decoding: Decoding, rules: Sequence[TopicRule]) -> str:
    """Return the capture ``metric`` of the decoding's filter or the rule's, else the last level."""
    own = Filter.parse(decoding.filter)
    last = "element_at(split(mqtt_topic, '/', -1), -1)"
    if "metric" in own.names:
        return f"coalesce(nullif({captured(own, 'metric')}, ''), {last})"
    filters = [(rule.name, Filter.parse(rule.filter)) for rule in rules]
    found = _by_name((name, captured(of, "metric")) for name, of in filters if "metric" in of.names)
    return f"coalesce(nullif({found}, ''), {last})"


def _by_name(columns: Iterable[tuple[str, str]]) -> str:
    rule = f"get_json_object(try_element_at(__messageProperties, {literal(P_INGEST)}), '$.rule')"
    cases = " ".join(f"WHEN {literal(name)} THEN {column}" for name, column in columns)
    return f"CASE {rule} {cases} END" if cases else _NONE


def _templates(rules: Sequence[TopicRule], decoding: Decoding, part: str) -> list[tuple[str, Template]]:
    wanted = Filter.parse(decoding.filter).patterns
    found = []
    for rule in rules:
        text, of = getattr(rule, f"reading_{part}"), Filter.parse(rule.filter)
        if text is not None and any(meet(a, b) for a in wanted for b in of.patterns):
            found.append((rule.name, Template.parse(text, of)))
    return found


def _filled(template: Template, path_text: PathText) -> str:
    fields = {field.name: field for field in template.fields}
    pieces: list[str] = []
    for text, name in template.parts:
        if text:
            pieces.append(literal(text))
        if name in fields:
            field = fields[name]
            found = path_text(field.steps) if field.property is None else _user_property(field.property)
            pieces.append(f"nullif({found}, '')")  # empty means missing, as in ingest
        elif name is not None:
            pieces.append(_of_topic(template.of, name))
    return f"concat({', '.join(pieces)})"


def _user_property(name: str) -> str:
    """Return a user property. Two different values count as none, because either could be meant."""
    named = f"filter(user_properties, one -> one.name <=> {literal(name)})"
    values = f"array_distinct(transform({named}, one -> one.value))"
    return f"CASE WHEN size({values}) = 1 THEN try_element_at({values}, 1) END"


def _of_topic(of: Filter, name: str) -> str:
    if name == "mqtt_topic" or name in of.names:
        return name if name == "mqtt_topic" else captured(of, name)
    return f"try_element_at(split(mqtt_topic, '/', -1), {int(name.removeprefix('level'))})"  # level1, level2, …

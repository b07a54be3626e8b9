"""Fields of the received JSON payloads, in bounded memory, and the typed table for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.routing.templates import Filter
from bridge.settings.tables import Decoding, TableDeclaration

__all__ = ["Fields", "Room", "table_for"]

_MOST: Final = 100
"""Fields of one object that are kept; a table has the other fields in _rescued_data."""
_LEVELS: Final = 4
_LONGEST: Final = 60
"""Characters of the longest field name that is kept."""
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_TIMES: Final = frozenset(
    [
        "at",
        "date",
        "datetime",
        "lastseen",
        "measuredat",
        "receivedat",
        "time",
        "timestamp",
        "ts",
        "utc",
        "when",
    ]
)
_ISO: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_LOCAL: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ][\d:.]+\Z")
_EPOCH: Final = (10**9, 10**19)
"""Range of numbers that may be times since 1970, in seconds up to nanoseconds."""
_TIME_KINDS: Final = frozenset(["string", "bigint", "double"])
_RESERVED: Final = frozenset(["device", "event_time", "arrival_time", "mqtt_topic", "command_topic"])
"""Columns of every table."""


@dataclass(slots=True)
class Room:
    """Number of fields that may still be kept, over all payloads."""

    left: int = 20_000

    def take(self) -> bool:
        """Reserve one field. Return whether one was left."""
        self.left -= self.left > 0
        return self.left > 0


@dataclass(slots=True)
class Fields:
    """Types of the values at one path of the payloads, and the fields below it."""

    kinds: set[str] = field(default_factory=set)
    below: dict[str, Fields] = field(default_factory=dict)
    """Fields of an object; names that differ only in case are one field."""
    element: Fields | None = None
    iso: bool = True
    """Whether each value is a time: ISO 8601, or a number in the range of ``_EPOCH``."""
    local: bool = False

    def add(self, value: Any, room: Room, level: int = 1) -> None:
        """Count one value."""
        if isinstance(value, Mapping) and level <= _LEVELS:
            self.kinds.add("struct")
            known = {name.lower(): name for name in self.below}
            for name, one in list(value.items())[:_MOST]:
                kept = known.get(name.lower())
                if kept is None and _is_kept(name) and len(self.below) < _MOST and room.take():
                    kept = known[name.lower()] = name
                    self.below[name] = Fields()
                if kept == name:
                    self.below[name].add(one, room, level + 1)
        elif isinstance(value, list) and level <= _LEVELS:
            self.kinds.add("array")
            self.element = self.element or Fields()
            for one in value[:10]:
                self.element.add(one, room, level + 1)
        elif value is not None:
            self.kinds.add(_kind(value))
            self._time(value)

    def merge(self, other: Fields) -> None:
        """Add the counts of another one."""
        self.kinds |= other.kinds
        self.iso, self.local = self.iso and other.iso, self.local or other.local
        known = {name.lower(): name for name in self.below}
        for name, one in other.below.items():
            kept = known.setdefault(name.lower(), name)
            if kept == name and len(self.below) < _MOST:
                self.below.setdefault(name, Fields()).merge(one)
        if other.element is not None:
            self.element = self.element or Fields()
            self.element.merge(other.element)

    def ddl(self) -> str | None:
        """Return the Spark type; None if all values were null."""
        kinds = self.kinds
        if kinds and kinds <= {"bigint", "double"}:
            return "double" if "double" in kinds else "bigint"
        if kinds == {"struct"} and self.below and all(map(_PLAIN.match, self.below)):
            inside = [f"{name}: {kind}" for name, one in self.below.items() if (kind := one.ddl())]
            return f"struct<{', '.join(inside)}>" if inside else "string"
        if kinds == {"array"}:
            element = None if self.element is None else self.element.ddl()
            return None if element is None else f"array<{element}>"
        if len(kinds) == 1 and kinds <= {"boolean", "string"}:
            return next(iter(kinds))
        return "string" if kinds else None  # mixed types, as JSON text

    def times(self, path: str = "$") -> Iterator[tuple[str, bool]]:
        """Yield path of each field that looks like a time, and whether it is local."""
        for name, one in self.below.items():
            if not _PLAIN.match(name):
                continue
            if re.sub(r"[_-]", "", name).lower() in _TIMES and one.iso and one.kinds and one.kinds <= _TIME_KINDS:
                yield f"{path}.{name}", one.local
        for name, one in self.below.items():
            if _PLAIN.match(name) and one.kinds == {"struct"}:
                yield from one.times(f"{path}.{name}")

    def _time(self, value: Any) -> None:
        if isinstance(value, str):
            self.iso = self.iso and _ISO.match(value) is not None
            self.local = self.local or _LOCAL.match(value) is not None
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.iso = self.iso and number and _EPOCH[0] <= abs(value) <= _EPOCH[1]


def _is_kept(name: str) -> bool:
    return 0 < len(name) <= _LONGEST and name.isprintable()


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if abs(value) < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def table_for(name: str, filters: str, fields: Fields) -> tuple[TableDeclaration | None, list[str]]:
    """Return the table of a filter's messages, None without fields, and notes for the user."""
    kinds = {one: kind for one, part in fields.below.items() if (kind := part.ddl())}
    if not kinds:
        return None, []
    more: dict[str, Any] = {"fields": ", ".join(f"{_quoted(one)} {kind}" for one, kind in kinds.items())}
    columns = _columns(kinds, {n.lower() for n in Filter.parse(filters).names if n is not None})
    if list(columns) != list(kinds):
        more["columns"] = columns
    notes = []
    time, local = next(fields.times(), (None, False))
    if time is not None:
        more["time"] = time
    if local:
        notes.append(f"table {name}: {time} is a local time: set time_zone, else rows have their arrival time")
    if "bigint" in " ".join(kinds.values()):
        notes.append(f"table {name}: the bigint fields had only whole numbers: write double if fractions can occur")
    return TableDeclaration(name=name, decoding=(Decoding(filter=filters, **more),)), notes


def _columns(kinds: Iterable[str], captures: set[str]) -> dict[str, str]:
    """Return the column of each field; a reserved name, or one that Delta refuses, gets another one."""
    found: dict[str, str] = {}
    reserved = _RESERVED | captures
    for one in kinds:
        name = one if _PLAIN.match(one) else "field_" + re.sub(r"[^A-Za-z0-9]+", "_", one).strip("_")
        name = f"payload_{name}" if name.lower() in reserved else name
        while name.lower() in {other.lower() for other in found}:
            name += "_2"
        found[name] = f"fields.{_quoted(one)}"
    return found


def _quoted(name: str) -> str:
    return name if _PLAIN.match(name) else "`" + name.replace("`", "``") + "`"

"""The fields of JSON payloads that were seen, in bounded memory, and the typed table that would hold them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.settings.tables import Decoding, TableDeclaration
from bridge.topic_templates import Filter

__all__ = ["Fields", "Room", "table_for"]

_MOST: Final = 100
"""Fields of one object that are kept; what is beyond stays in _rescued_data."""
_LEVELS: Final = 4
_LONGEST: Final = 60
"""Characters of a field's name that is kept."""
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
"""Numbers between them may be times since 1970, in seconds at least and in nanoseconds at most."""
_SAYS_TIME: Final = frozenset(["string", "bigint", "double"])
_TAKEN: Final = frozenset(["device", "event_time", "arrival_time", "mqtt_topic", "command_topic"])
"""What each table has."""


@dataclass(slots=True)
class Room:
    """How many fields may still be kept, of all payloads together."""

    left: int = 20_000

    def take(self) -> bool:
        """Take one. Returns whether there was one."""
        self.left -= self.left > 0
        return self.left > 0


@dataclass(slots=True)
class Fields:
    """What one place in payloads held: the types of its values, and what is below it."""

    kinds: set[str] = field(default_factory=set)
    below: dict[str, Fields] = field(default_factory=dict)
    """Of an object, its fields; names that differ in case alone are one."""
    element: Fields | None = None
    iso: bool = True
    """Whether each value is a time: ISO 8601, or a number of that size."""
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
        """Count what another one has counted."""
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
        """Return the type in Spark; None where nothing but null was seen."""
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
        return "string" if kinds else None  # of any form, as JSON has it

    def times(self, path: str = "$") -> Iterator[tuple[str, bool]]:
        """Yield the paths of fields that by name and content are the time, and whether it is a local one."""
        for name, one in self.below.items():
            if not _PLAIN.match(name):
                continue
            if re.sub(r"[_-]", "", name).lower() in _TIMES and one.iso and one.kinds and one.kinds <= _SAYS_TIME:
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
    """Return the table for messages of a filter, None where there are no fields, and what a person should know."""
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
        notes.append(f"table {name}: {time} is a local time: set time_zone, or rows have their time of arrival")
    if "bigint" in " ".join(kinds.values()):
        notes.append(f"table {name}: bigint held whole numbers alone: write double where there may be fractions")
    return TableDeclaration(name=name, decoding=(Decoding(filter=filters, **more),)), notes


def _columns(kinds: Iterable[str], captures: set[str]) -> dict[str, str]:
    """Return the column of each field; names that are taken, or that Delta refuses, get another one."""
    found: dict[str, str] = {}
    taken = _TAKEN | captures
    for one in kinds:
        name = one if _PLAIN.match(one) else "field_" + re.sub(r"[^A-Za-z0-9]+", "_", one).strip("_")
        name = f"payload_{name}" if name.lower() in taken else name
        while name.lower() in {other.lower() for other in found}:
            name += "_2"
        found[name] = f"fields.{_quoted(one)}"
    return found


def _quoted(name: str) -> str:
    return name if _PLAIN.match(name) else "`" + name.replace("`", "``") + "`"

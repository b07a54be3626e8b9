"""Decides what becomes of fields that no decoder knows: kept as JSON, given a column of silver, or a reason to stop.

Pure: what was found in a batch in, columns or an error out. What is found is collected by ``decoders.leftovers``; when
a decision is stored and when the table is changed is the order of ``streaming.silver``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from bridge.errors import TerminalError

__all__ = [
    "ADD_COLUMNS",
    "EXACT",
    "FAIL",
    "NESTED",
    "RESCUED",
    "UNFIT",
    "UNKNOWN",
    "Evolution",
    "Found",
    "Kind",
    "may_name_a_column",
    "new_columns",
    "stop_at",
    "type_of",
]

RESCUED: Final = "_rescued_data"
"""Column of silver with what the decoder does not know, as JSON; the name that Auto Loader gives it."""
Evolution = Literal["rescue", "add_columns", "fail"]
ADD_COLUMNS: Final = "add_columns"
FAIL: Final = "fail"

UNKNOWN: Final = "unknown"
"""Kind of an unknown field at the top of a reading, of a decoder that adds no columns."""
NESTED: Final = "nested"
"""Kind of an unknown field in an object of which others are known, or around the readings: it never has a column."""
UNFIT: Final = "unfit"
"""Kind of a known field whose value does not fit its type."""

EXACT: Final = 2**53
"""Whole numbers up to here are exact as a double."""
_NAME: Final = re.compile(r"[^\W_][\w-]{0,127}")
"""What may become a column; the rest has characters that Delta refuses, or the look of a column of our own."""


class Kind(Enum):
    """What a value is, as far as the type of a column depends on it."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    """Whole, and exact as a double."""
    LONG = "long"
    """Whole, within 64 bits, and not exact as a double."""
    HUGE = "huge"
    """Whole, and beyond 64 bits."""
    NUMBER = "number"
    TEXT = "text"
    DEEP = "deep"
    """An object or an array; as text it is JSON."""


@dataclass(frozen=True)
class Found:
    """A field that a decoder does not know, or a value that does not fit, in one batch."""

    decoder: int
    field: str
    kind: str
    count: int
    """How often."""
    passed: int
    """How often in readings that failed no rule: others never reach silver."""
    topic: str
    """One of the MQTT topics."""


def type_of(kinds: Iterable[Kind]) -> str | None:
    """Return the type of a column that holds values of these kinds without changing them; None where all are null.

    Numbers are doubles, since a field with 21 has 21.5 the next day; what has no type in common is text.
    """
    seen = set(kinds) - {Kind.NULL}
    if not seen:
        return None
    if seen == {Kind.BOOLEAN}:
        return "boolean"
    if seen <= {Kind.INTEGER, Kind.NUMBER}:
        return "double"
    if seen <= {Kind.INTEGER, Kind.LONG}:
        return "bigint"
    return "string"


def may_name_a_column(field: str, taken: Collection[str]) -> bool:
    """Whether a field's name can be a column's. ``taken`` is in lower case, for names are told apart by that."""
    return _NAME.fullmatch(field) is not None and field.lower() not in taken


def new_columns(
    found: Iterable[Found], modes: Sequence[str], there: Mapping[str, str], taken: Collection[str], limit: int
) -> dict[str, str]:
    """Return name and type of the columns that the fields of a batch add, in the order of their names.

    ``modes``: what each decoder does. ``there``: columns that were added before, of which there may be ``limit`` with
    the new ones: devices choose the names. Of names that differ in case alone the first has the column.
    """
    kinds: dict[str, set[Kind]] = {}
    for one in found:
        if modes[one.decoder] == ADD_COLUMNS and one.passed and one.kind in _KINDS:
            kinds.setdefault(one.field, set()).add(Kind(one.kind))
    used = {*taken, *(name.lower() for name in there)}
    added: dict[str, str] = {}
    for name in sorted(kinds):
        kind = type_of(kinds[name])
        if kind is not None and len(there) + len(added) < limit and may_name_a_column(name, used):
            added[name] = kind
            used.add(name.lower())
    return added


_KINDS: Final = frozenset(kind.value for kind in Kind)


def stop_at(found: Iterable[Found], modes: Sequence[str], filters: Sequence[str]) -> TerminalError | None:
    """Return the error that stops the query, None when nothing was found of which a decoder says ``fail``."""
    stopping = [
        one for one in found if modes[one.decoder] == FAIL and one.passed and one.kind in (UNKNOWN, NESTED)
    ]
    if not stopping:
        return None
    first = min(stopping, key=lambda one: (one.decoder, one.field))
    more = len({(one.decoder, one.field) for one in stopping}) - 1
    others = f" and {more} more" if more else ""
    return TerminalError(
        f"the field {first.field!r}{others} on MQTT topic {first.topic!r} is unknown to its decoder "
        f"(readings[{first.decoder}], filter {filters[first.decoder]!r}), and schema_evolution is fail",
        remedy="name it under `ignored` of that decoder, or set its schema_evolution to rescue or add_columns; "
        "the batch then runs again",
    )

"""From the columns of a DataFrame to memberships of groups: what a row must be, and what becomes of one that is not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from bridge.commands import Problem
from bridge.groups import GROUP_MEMBER_COLUMNS, MEMBER, member_key
from sinks.arrow_rows import readable, rows_of
from sinks.messages import BadRow, PulsarMessage, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_schema", "read_rows"]

_NAMES: Final = ("group", "device")
_MOST_BYTES: Final = 65_535
"""As a level of an MQTT topic may have."""


def check_schema(columns: Iterable[tuple[str, str]]) -> None:
    """Check a DataFrame's columns (name, Spark SQL type). Raises ContractError that lists every problem."""
    check_columns("pulsebridge_groups", columns, GROUP_MEMBER_COLUMNS, _NAMES)


def read_rows(batches: Iterable[pa.RecordBatch], topic: str) -> Iterator[PulsarMessage | BadRow]:
    """Yield each row of a task as a membership, or its end, for ``topic``, or as a bad row; in order."""
    for number, row, problem in rows_of(batches):
        yield _read_row(number, row, topic) if problem is None else _bad(number, row, problem, topic)


def _read_row(number: int, row: dict[str, Any], topic: str) -> PulsarMessage | BadRow:
    for name in _NAMES:
        why = _why_not(row[name])
        if why is not None:
            return _bad(number, row, Problem(name, why), topic)
    payload = None if row.get("member") is False else MEMBER
    return PulsarMessage(number, topic, payload, member_key(row["group"], row["device"]), {})


def _bad(number: int, row: dict[str, Any], problem: Problem, topic: str) -> BadRow:
    return BadRow(number, problem, b"", readable(row["device"]), topic, readable(row["group"]))


def _why_not(name: str | None) -> str | None:
    if not name:
        return "is null" if name is None else "is empty"
    if "\0" in name:
        return f"is {name[:80]!r}, and a name has no U+0000"
    size = len(name.encode("utf-8", "replace"))
    return f"has {size} bytes, the limit is {_MOST_BYTES}" if size > _MOST_BYTES else None

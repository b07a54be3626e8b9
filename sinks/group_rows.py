"""Converts rows of a DataFrame to memberships of groups or to bad rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from bridge.contract.commands import Problem
from bridge.contract.groups import MEMBER, member_key
from bridge.contract.names import DEFAULT_MAX_NAME_BYTES, name_problem
from sinks.arrow_rows import readable, rows_of
from sinks.columns import GROUP_MEMBER_COLUMNS
from sinks.messages import BadRow, PulsarMessage, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_schema", "read_rows"]

_NAMES: Final = ("group", "device")


def check_schema(columns: Iterable[tuple[str, str]]) -> None:
    """Check a DataFrame's columns (name, Spark SQL type). Raises ContractError that lists every problem."""
    check_columns("pulsebridge_groups", columns, GROUP_MEMBER_COLUMNS, _NAMES)


def read_rows(
    batches: Iterable[pa.RecordBatch], topic: str, max_name_bytes: int = DEFAULT_MAX_NAME_BYTES
) -> Iterator[PulsarMessage | BadRow]:
    """Yield a task's rows in order: memberships, their removals, or bad rows."""
    for number, row, problem in rows_of(batches):
        if problem is None:
            yield _read_row(number, row, topic, max_name_bytes)
        else:
            yield _bad(number, row, problem, topic)


def _read_row(number: int, row: dict[str, Any], topic: str, max_name_bytes: int) -> PulsarMessage | BadRow:
    for name in _NAMES:
        why = _why_not(row[name], max_name_bytes)
        if why is not None:
            return _bad(number, row, Problem(name, why), topic)
    payload = None if row.get("member") is False else MEMBER
    return PulsarMessage(number, topic, payload, member_key(row["group"], row["device"]), {})


def _bad(number: int, row: dict[str, Any], problem: Problem, topic: str) -> BadRow:
    return BadRow(number, problem, b"", readable(row["device"]), topic, readable(row["group"]))


def _why_not(name: str | None, max_name_bytes: int) -> str | None:
    if name is None:
        return "is null"
    if "\0" in name:
        return f"is {name[:80]!r}, and a name must not contain U+0000"
    return name_problem(name, max_name_bytes)

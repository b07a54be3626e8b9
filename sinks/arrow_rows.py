"""Rows of Spark's Arrow record batches as plain values that cannot fail the task.

``to_pylist`` alone raises for some values that Spark accepts. One is text that is not UTF-8, as ``cast(… as string)``
makes it of any bytes. Others are times outside the years of Python's datetime, or in zones that pyarrow does not know
(``Z``, ``GMT+03:00``, ``PST``). This module decides how to represent such values. Its callers decide about the row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bridge.contract.commands import Problem

__all__ = ["Row", "is_time", "readable", "rows_of"]

_SHOWN: Final = 40


class Row(NamedTuple):
    """One row of a task. Times are µs since the epoch in any time zone of the session."""

    number: int
    """Its number within the task."""
    values: dict[str, Any]
    """By column. Text that is not UTF-8 is represented by its bytes, or escaped within a map, an array or a struct."""
    problem: Problem | None
    """The first column with such text, None without one."""


def rows_of(
    batches: Iterable[pa.RecordBatch], columns: Container[str] | None = None, *, first: int = 0
) -> Iterator[Row]:
    """Yield the rows of a task in order, with these columns or all. ``first`` is the number of the first row."""
    number = first
    for batch in batches:
        names = [name for name in batch.schema.names if columns is None or name in columns]
        read = {name: _values(batch.column(name)) for name in names}
        for at in range(batch.num_rows):
            values = {name: found[at] for name, (found, _) in read.items()}
            broken = next((name for name, (_, raw) in read.items() if at in raw), None)
            problem = None if broken is None else _problem(broken, read[broken][1][at])
            yield Row(number, values, problem)
            number += 1


def is_time(batch: pa.RecordBatch, column: str) -> bool:
    """Whether a column exists and contains times. ``Row.values`` has these as numbers."""
    return column in batch.schema.names and pa.types.is_timestamp(batch.schema.field(column).type)


def readable(value: str | bytes | None) -> str:
    """Return a text column's value for display or as a key; empty for null."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value or ""


def _values(column: pa.Array) -> tuple[list[Any], dict[int, bytes]]:
    """Return a column's values, and by index the text that is not UTF-8."""
    if pa.types.is_timestamp(column.type):  # Spark's times are in µs; their zone affects only the display
        return column.view(pa.int64()).to_pylist(), {}
    try:
        return column.to_pylist(), {}
    except UnicodeDecodeError:
        return _one_by_one(column)


def _one_by_one(column: pa.Array) -> tuple[list[Any], dict[int, bytes]]:
    values: list[Any] = []
    broken: dict[int, bytes] = {}
    for at in range(len(column)):
        one = column.slice(at, 1)
        try:
            values += one.to_pylist()
        except UnicodeDecodeError as e:
            broken[at] = bytes(e.object)
            (raw,) = one.cast(_without_text(column.type)).to_pylist()
            values.append(raw if isinstance(raw, bytes) else _escaped(raw))
    return values, broken


def _without_text(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same layout with bytes for text. A cast to it does not check the text."""
    if pa.types.is_map(kind):
        return pa.map_(_without_text(kind.key_type), _without_text(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_without_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_text(field.type)) for field in kind])
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else kind


def _escaped(value: Any) -> Any:
    if isinstance(value, bytes):
        return readable(value)
    if isinstance(value, dict):
        return {name: _escaped(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_escaped(one) for one in value)
    return value


def _problem(column: str, raw: bytes) -> Problem:
    shown = f"{raw[:_SHOWN]!r}{'…' if len(raw) > _SHOWN else ''}"
    return Problem(
        column,
        f"{shown} is not UTF-8; convert bytes to text with decode(…, its charset), not with a cast to string",
    )

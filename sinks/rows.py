"""From the columns of a DataFrame to commands: what a row must be, and what becomes of a row that is not.

Pure: Arrow record batches in, commands and bad rows out. Where they are written is the writer's business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from bridge.commands import Command, Problem, command_problem
from bridge.contract import COMMAND_COLUMNS
from bridge.errors import ContractError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REQUIRED_COLUMNS", "BadRow", "DeviceOrder", "check_schema", "read_rows"]

REQUIRED_COLUMNS: Final = ("command_id", "device", "mqtt_topic", "payload")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no command: its number within the task, what is wrong, and what is known of it."""

    row: int
    problem: Problem
    command_id: str
    device: str
    payload: bytes

    @property
    def reason(self) -> str:
        """The reason as it stands in the dead letter."""
        return f"row {self.row} of the task, {self.problem}"


def check_schema(columns: Iterable[tuple[str, str]]) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against the contract.

    Raises ContractError that lists every missing, unknown and wrongly typed column with the remedy.
    """
    found = dict(columns)
    wanted = dict(COMMAND_COLUMNS)
    problems = [
        f"column {name} ({wanted[name]}) is missing: add it" for name in REQUIRED_COLUMNS if name not in found
    ]
    for name, kind in found.items():
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, 1, 0.5)
            hint = f"did you mean {near[0]}? Else drop it" if near else "drop it"
            problems.append(f"column {name} is unknown: {hint}")
        elif kind != wanted[name]:
            problems.append(
                f"column {name} is {kind}, wanted {wanted[name]}: .withColumn('{name}', col('{name}').cast('{wanted[name]}'))"
            )
    if problems:
        raise ContractError(
            "pulsebridge_commands: " + "; ".join(problems),
            remedy="columns: " + ", ".join(f"{name} {kind}" for name, kind in COMMAND_COLUMNS),
        )


class DeviceOrder:
    """Sees that ``emitted_at`` never goes back within one device of one task (H22).

    A Python writer cannot ask Spark for a distribution: the job repartitions by device and sorts within. A row
    that comes out of order all the same goes to the dead letters, for the log keeps the order of writing.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def problem(self, command: Command) -> Problem | None:
        """Return why the command breaks its device's order, None when it does not or has no ``emitted_at``."""
        if not command.emitted_at_us:
            return None
        last = self._last.get(command.device, 0)
        if command.emitted_at_us < last:
            return Problem(
                "emitted_at",
                f"is {last - command.emitted_at_us} µs before that of an earlier row of device {command.device!r}; "
                "repartition by device and sortWithinPartitions by device and emitted_at before writing; a stream makes "
                "its commands in order per group of device, or sorts within foreachBatch",
            )
        self._last[command.device] = command.emitted_at_us
        return None


def read_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Command | BadRow]:
    """Yield each row of a task as a valid command or as a bad row, in order."""
    order = DeviceOrder()
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            yield _read_row(number, row, order)
            number += 1


def _read_row(number: int, row: dict[str, Any], order: DeviceOrder) -> Command | BadRow:
    for name in REQUIRED_COLUMNS:
        if row[name] is None:
            return _bad(number, row, Problem(name, "is null"))
    command = Command(
        command_id=row["command_id"],
        device=row["device"],
        mqtt_topic=row["mqtt_topic"],
        payload=row["payload"],
        qos=1 if row.get("qos") is None else row["qos"],
        retain=bool(row.get("retain")),
        expires_at_ms=_micros(row.get("expires_at")) // 1000,
        emitted_at_us=max(_micros(row.get("emitted_at")), 0),
        cause=row.get("cause") or "",
    )
    problem = command_problem(command) or order.problem(command)
    return command if problem is None else _bad(number, row, problem)


def _bad(number: int, row: dict[str, Any], problem: Problem) -> BadRow:
    return BadRow(number, problem, row["command_id"] or "", row["device"] or "", row["payload"] or b"")


def _micros(at: datetime | None) -> int:
    # Spark's timestamps come with a zone; exact integers, since a float of seconds loses microseconds.
    if at is None:
        return 0
    return (at - _EPOCH) // _MICROSECOND

"""From the columns of a DataFrame to commands: what a row must be, and what becomes of a row that is not.

Pure: Arrow record batches in, commands and bad rows out. Where they are written is the writer's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from bridge.commands import Command, Problem, command_problem, encode_command
from bridge.contract import C_ID, COMMAND_COLUMNS
from sinks.messages import BadRow, PulsarMessage, check_columns, microseconds

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REQUIRED_COLUMNS", "DeviceOrder", "check_schema", "message_of", "read_rows"]

REQUIRED_COLUMNS: Final = ("command_id", "device", "mqtt_topic", "payload")


def check_schema(columns: Iterable[tuple[str, str]]) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against the contract.

    Raises ContractError that lists every missing, unknown and wrongly typed column with the remedy.
    """
    wanted = {name: (kind,) for name, kind in COMMAND_COLUMNS}
    check_columns("pulsebridge_commands", columns, wanted, REQUIRED_COLUMNS)


def message_of(row: int, command: Command, topic: str) -> PulsarMessage:
    """Return the message of a command for the commands topic; its key is the device."""
    return PulsarMessage(
        row, topic, command.payload, command.device, encode_command(command), command.emitted_at_us // 1000
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
        expires_at_ms=microseconds(row.get("expires_at")) // 1000,
        emitted_at_us=max(microseconds(row.get("emitted_at")), 0),
        cause=row.get("cause") or "",
    )
    problem = command_problem(command) or order.problem(command)
    return command if problem is None else _bad(number, row, problem)


def _bad(number: int, row: dict[str, Any], problem: Problem) -> BadRow:
    known = {C_ID: row["command_id"] or ""}
    return BadRow(number, problem, row["payload"] or b"", row["device"] or "", properties=known)

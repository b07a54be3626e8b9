"""Converts rows of a DataFrame to commands and alerts, or to bad rows. The writer decides where to write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.contract import (
    C_BROADCAST,
    C_CAUSE,
    C_DEVICE,
    C_EMITTED,
    C_EXPIRES,
    C_GROUP,
    C_ID,
    C_LINK,
    C_QOS,
    C_RETAIN,
    C_TOPIC,
    GROUP_COMMANDS_TOPIC,
)
from bridge.contract.commands import MAX_COMMAND_BYTES, Command, Problem, command_problem
from bridge.contract.groups import GroupCommand, command_message, group_problem
from bridge.contract.names import DEFAULT_MAX_NAME_BYTES
from sinks.arrow_rows import readable, rows_of
from sinks.columns import COMMAND_COLUMNS
from sinks.messages import BadRow, PulsarMessage, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ALERT", "REQUIRED_COLUMNS", "check_schema", "message_of", "messages_of", "read_rows"]

ALERT: Final = "alert"
"""Binary column for the topic of alerts. A row with only this column contains no command."""

REQUIRED_COLUMNS: Final = ("command_id", "payload")
"""Columns that every row needs, besides ``device`` with ``mqtt_topic``, or ``group``."""
_TEXTS: Final = (
    (C_DEVICE, "device"),
    (C_GROUP, "group"),
    (C_TOPIC, "mqtt_topic"),
    (C_CAUSE, "cause"),
    (C_LINK, "link"),
)


def check_schema(columns: Iterable[tuple[str, str]]) -> None:
    """Check a DataFrame's columns (name, Spark SQL type) against the contract.

    Raises ContractError that lists every missing, unknown and wrongly typed column with the remedy.
    """
    columns = list(columns)
    found = dict(columns)
    wanted = {name: (kind,) for name, kind in (*COMMAND_COLUMNS, (ALERT, "binary"))}
    for_one = () if "group" in found and "device" not in found else ("device", "mqtt_topic")
    required = [name for name in wanted if name in REQUIRED_COLUMNS or name in for_one]
    check_columns("pulsebridge_commands", columns, wanted, required)


def message_of(row: int, command: Command | GroupCommand, topic: str, groups: str) -> PulsarMessage:
    """Return the message of a command. Its topic and key are ``topic`` and device, or ``groups`` and group."""
    made = command_message(command)
    name = groups if made.topic == GROUP_COMMANDS_TOPIC else topic
    return PulsarMessage(row, name, command.payload, made.key, made.properties, made.event_ms)


class _DeviceOrder:
    """Checks that ``emitted_at`` never decreases within one device, or one group, of one task (H22).

    A Python writer cannot request a distribution from Spark, so the job repartitions by device and sorts within partitions.
    A row out of order goes to the dead letters, because the log keeps the order of writing.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}

    def problem(self, command: Command | GroupCommand) -> Problem | None:
        """Return the command's violation of its device's order, None without one or without ``emitted_at``."""
        if not command.emitted_at_us:
            return None
        whose = ("group", command.group) if isinstance(command, GroupCommand) else ("device", command.device)
        last = self._last.get(whose, 0)
        if command.emitted_at_us < last:
            return Problem(
                "emitted_at",
                f"is {last - command.emitted_at_us} µs before that of an earlier row of {whose[0]} {whose[1]!r}; "
                f"repartition by {whose[0]} and sortWithinPartitions by {whose[0]} and emitted_at before writing; a stream makes "
                "its commands in order per group of device, or sorts within foreachBatch",
            )
        self._last[whose] = command.emitted_at_us
        return None


def messages_of(
    batches: Iterable[pa.RecordBatch], topic: str, groups: str, alerts: str, max_name_bytes: int
) -> Iterator[PulsarMessage | BadRow]:
    """Yield a task's messages in row order. Alerts are for the topic ``alerts``, commands for the two other topics."""
    for found in read_rows(batches, max_name_bytes):
        if found.alert is not None:
            # A bad command's device name may have any length, and would fail the task as a key.
            key = found.command.device if isinstance(found.command, Command) else None
            yield _limited(PulsarMessage(found.number, alerts, found.alert, key, {}))
        if isinstance(found.command, BadRow):
            yield _with_topic(found.command, groups)
        elif found.command is not None:
            yield message_of(found.number, found.command, topic, groups)


class Read(NamedTuple):
    """Content of a task's row: an alert, a command or bad row, or both."""

    number: int
    """Its number within the task."""
    alert: bytes | None
    command: Command | GroupCommand | BadRow | None


def read_rows(batches: Iterable[pa.RecordBatch], max_name_bytes: int = DEFAULT_MAX_NAME_BYTES) -> Iterator[Read]:
    """Yield the content of each row of a task, in order."""
    order = _DeviceOrder()
    for number, row, problem in rows_of(batches):
        alert = row.get(ALERT)
        command: Command | GroupCommand | BadRow | None = None
        if problem is not None:
            command = _bad(number, row, problem)
        elif alert is None or row.get("device") is not None or row.get("group") is not None:
            command = _read_row(number, row, order, max_name_bytes)
        yield Read(number, alert, command)


def _limited(alert: PulsarMessage) -> PulsarMessage | BadRow:
    size = len(alert.payload or b"")
    if size <= MAX_COMMAND_BYTES:
        return alert
    return alert.refused(Problem(ALERT, f"has {size} bytes, at most {MAX_COMMAND_BYTES} are stored"))


def _read_row(
    number: int, row: dict[str, Any], order: _DeviceOrder, max_name_bytes: int
) -> Command | GroupCommand | BadRow:
    for name in REQUIRED_COLUMNS:
        if row[name] is None:
            return _bad(number, row, Problem(name, "is null"))
    expires_ms = _ms(row.get("expires_at"))
    if expires_ms == 0:  # in a command, 0 means "never"
        why = "is 1970-01-01T00:00Z, which as a command's expiry means never; use null for never, or a later time"
        return _bad(number, row, Problem("expires_at", why))
    command = _group_command(row) if row.get("group") is not None else _command(row)
    if isinstance(command, Problem):
        return _bad(number, row, command)
    if isinstance(command, GroupCommand):
        problem = group_problem(command, max_name_bytes)
    else:
        problem = command_problem(command, max_name_bytes)
    if problem is not None:
        return _bad(number, row, problem)
    problem = order.problem(command)
    return command if problem is None else _out_of_order(number, command, problem)


def _command(row: dict[str, Any]) -> Command | Problem:
    for name in ("device", "mqtt_topic"):
        if row.get(name) is None:
            why = "is null, and so is group" if name == "device" and "group" in row else "is null"
            return Problem(name, why)
    if row.get("broadcast"):
        return Problem("broadcast", "is true, and only a command to a group is broadcast")
    return Command(device=row["device"], mqtt_topic=row["mqtt_topic"], link=row.get("link") or "", **_common(row))


def _group_command(row: dict[str, Any]) -> GroupCommand | Problem:
    if row.get("device") is not None:
        return Problem("group", f"is {row['group']!r} and device {row['device']!r}; set only one of them")
    if row.get("link") is not None:
        return Problem("link", f"is {row['link']!r}; only a command for one device may name a link")
    topic, broadcast = row.get("mqtt_topic") or "", bool(row.get("broadcast"))
    return GroupCommand(group=row["group"], mqtt_topic=topic, broadcast=broadcast, **_common(row))


def _common(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "command_id": row["command_id"],
        "payload": row["payload"],
        "qos": 1 if row.get("qos") is None else row["qos"],
        "retain": bool(row.get("retain")),
        "expires_at_ms": (row.get("expires_at") or 0) // 1000,
        "emitted_at_us": max(row.get("emitted_at") or 0, 0),
        "cause": row.get("cause") or "",
    }


def _bad(number: int, row: dict[str, Any], problem: Problem) -> BadRow:
    """Return a bad row with all readable values, by a command's property names.

    It is not marked as a command, because a replay must not send it as one.
    """
    known = {C_ID: readable(row["command_id"])} | {
        name: readable(row[column]) for name, column in _TEXTS if row.get(column) is not None
    }
    numbers = (
        (C_QOS, row.get("qos")),
        (C_RETAIN, row.get("retain")),
        (C_BROADCAST, row.get("broadcast")),
        (C_EXPIRES, _ms(row.get("expires_at"))),
        (C_EMITTED, row.get("emitted_at")),
    )
    known |= {name: str(int(value)) for name, value in numbers if value is not None}
    key = readable(row.get("device") or row.get("group"))
    return BadRow(number, problem, row["payload"] or b"", key, properties=known)


def _out_of_order(number: int, command: Command | GroupCommand, problem: Problem) -> BadRow:
    """Return a valid command as a bad row. It has the whole message for a replay or resend."""
    message = message_of(number, command, "", "")
    return BadRow(number, problem, command.payload, message.key or "", key=message.key, properties=message.properties)


def _with_topic(row: BadRow, groups: str) -> BadRow:
    """Return a bad row with its topic: ``groups`` for group commands, else unchanged."""
    of_group = C_GROUP in row.properties and C_DEVICE not in row.properties
    return replace(row, topic=groups) if of_group else row


def _ms(at: int | None) -> int | None:
    return None if at is None else at // 1000

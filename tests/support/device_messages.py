"""Messages of the topics that tell of devices, as rows of the source; and the latest state of devices, computed apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.commands import Command, encode_command
from bridge.contract import (
    COMMANDS_TOPIC,
    PRESENCE_TOPIC,
    RECEIPTS_TOPIC,
    SOURCE_COLUMNS,
    Receipt,
    partition_name,
    topic_name,
)
from bridge.presence_record import PresenceRecord
from tests.support.silver_rows import AT, Silver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Commanded", "DeviceTopics", "Seen", "Told", "latest_of"]

_AT_US = int(AT.timestamp()) * 1_000_000


@dataclass(frozen=True)
class Commanded:
    """A command; ``second`` is when it was emitted after ``AT``, None where its writer did not say."""

    entry: int
    id: str
    device: str
    second: int | None

    @property
    def emitted_us(self) -> int:
        return 0 if self.second is None else _AT_US + self.second * 1_000_000

    def row(self) -> dict[str, Any]:
        command = Command(
            self.id, self.device, f"devices/{self.device}/commands", b"{}", emitted_at_us=self.emitted_us
        )
        told = encode_command(command)
        return _row(COMMANDS_TOPIC, self.entry, self.device, b"{}") | {"__messageProperties": told}


@dataclass(frozen=True)
class Told:
    """A receipt."""

    entry: int
    of: Commanded
    state: str

    def row(self) -> dict[str, Any]:
        receipt = Receipt(
            self.of.id, self.of.device, f"devices/{self.of.device}/commands", self.state, attempts=1,
            emitted_at_us=self.of.emitted_us, pushed_at_us=_AT_US + self.entry,
        )  # fmt: skip
        return _row(RECEIPTS_TOPIC, self.entry, self.of.device, receipt.encode())


@dataclass(frozen=True)
class Seen:
    """A sign of life; ``second`` None takes it away."""

    entry: int
    device: str
    second: int | None

    def row(self) -> dict[str, Any]:
        at = self.second
        value = b"" if at is None else PresenceRecord(_AT_US + at * 1_000_000, "mqtt").encode()
        return _row(PRESENCE_TOPIC, self.entry, self.device, value)


def _row(topic: str, entry: int, key: str, value: bytes) -> dict[str, Any]:
    return {
        "value": bytearray(value),
        "__key": key,
        "__topic": partition_name(topic_name("public", "system", topic), 0),
        "__publishTime": AT + timedelta(seconds=entry),
        "__messageProperties": {},
        "ledger_id": 1,
        "entry_id": entry,
        "batch_index": 0,
    }


class DeviceTopics:
    """Stands for the topics in Pulsar: a table to append to and to stream from, with the source's columns."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._where = str(folder)
        self.append([])

    def append(self, messages: Iterable[Commanded | Told | Seen]) -> None:
        self.append_rows(m.row() for m in messages)

    def append_rows(self, messages: Iterable[Mapping[str, Any]]) -> None:
        rows = [tuple(m.get(name) for name, _ in SOURCE_COLUMNS) for m in messages]
        schema = ", ".join(f"`{name}` {kind}" for name, kind in SOURCE_COLUMNS)
        frame = self._spark.createDataFrame(rows, schema)
        frame.coalesce(1).write.format("delta").mode("append").save(self._where)

    def stream(self) -> DataFrame:
        return self._spark.readStream.format("delta").load(self._where)


def latest_of(
    readings: Iterable[Silver], messages: Iterable[Commanded | Told | Seen]
) -> list[tuple[Any, ...]]:
    """Return device, metric, reading id, command id, its receipt's state, seconds of the last sign of life."""
    measured: dict[str, dict[str, Silver]] = {}
    for reading in sorted(readings, key=lambda r: (r.time, r.entry)):
        measured.setdefault(reading.device, {})[reading.metric] = reading
    commands: dict[str, Commanded] = {}
    states: dict[str, str] = {}
    seen: dict[str, int | None] = {}
    for message in sorted(messages, key=lambda m: m.entry):
        if isinstance(message, Commanded):
            commands[message.device] = max(commands.get(message.device, message), message, key=_order)
        elif isinstance(message, Seen):
            seen[message.device] = message.second
        elif message.state != "duplicate" or states.get(message.of.id, "duplicate") == "duplicate":
            states[message.of.id] = message.state
    found = []
    for device in sorted(measured.keys() | commands.keys() | seen.keys()):
        command = commands.get(device)
        last = (None, None) if command is None else (command.id, states.get(command.id))
        for metric, held in sorted(measured.get(device, {}).items()) or [(None, None)]:
            found.append((device, metric, None if held is None else held.id, *last, seen.get(device)))
    return found


def _order(command: Commanded) -> tuple[int, str]:
    return (command.entry if command.second is None else command.second, command.id)

"""Rows of bronze for tests of the jobs, made without Pulsar: the source's columns as the contract names them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from streaming.tables import BRONZE_COLUMNS, Tables, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ARRIVAL", "Message", "append", "frame", "reading"]

ARRIVAL = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Message:
    """A message as bronze holds it; ``entry`` is its place in partition 0."""

    entry: int
    device: str
    payload: bytes
    metric: str = "glucose"
    arrival: datetime = ARRIVAL
    command_topic: str | None = "given"
    fields: dict[str, Any] = field(default_factory=dict)
    """Columns that differ."""

    def row(self) -> dict[str, Any]:
        topic = f"devices/{self.device}/commands" if self.command_topic else None
        return {
            "__key": self.device,
            "__topic": "persistent://public/t/wearables",
            "__publishTime": self.arrival,
            "__messageProperties": {"pb.ingest": "{}"},
            "partition": 0,
            "ledger_id": 1,
            "entry_id": self.entry,
            "batch_index": 0,
            "mqtt_topic": f"wearables/{self.device}/{self.metric}",
            "device": self.device,
            "payload": bytearray(self.payload),
            "qos": 1,
            "retain": False,
            "retained": False,
            "arrival_time": self.arrival,
            "command_topic": topic,
            "stored_at": self.arrival,
        } | self.fields


def reading(
    entry: int, device: str, number: int, value: Any, *, minutes: float | None = None, **fields: Any
) -> Message:
    """Return a glucose reading, five minutes after the one before it unless said otherwise."""
    at = datetime(2010, 3, 24, tzinfo=timezone.utc) + timedelta(
        minutes=5 * number if minutes is None else minutes
    )
    body = {"id": f"{device}-{number}", "ts": at.isoformat().replace("+00:00", "Z"), "glucose": value}
    return Message(entry, device, json.dumps(body).encode(), **fields)


def frame(spark: SparkSession, messages: Iterable[Message]) -> DataFrame:
    """Return the messages as a batch frame with bronze's columns."""
    names = [c.name for c in BRONZE_COLUMNS]
    rows = [tuple(m.row().get(name) for name in names) for m in messages]
    return spark.createDataFrame(rows, schema_of(BRONZE_COLUMNS))


def append(spark: SparkSession, tables: Tables, messages: Iterable[Message]) -> None:
    """Append the messages to bronze in one commit."""
    frame(spark, messages).coalesce(1).write.format("delta").mode("append").save(tables.bronze.where)

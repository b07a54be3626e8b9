"""Messages as the source gives them, made without Pulsar, and what a decoding makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import P_INGEST, SOURCE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ARRIVAL", "COLUMNS", "SentMessage", "frame", "sent"]

ARRIVAL: Final = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
COLUMNS: Final = tuple((name, kind) for name, kind in SOURCE_COLUMNS if name != "value")


@dataclass(frozen=True)
class SentMessage:
    """A message; ``entry`` is its entry in partition 0."""

    entry: int
    payload: bytes | None
    topic: str = "gw/d1"
    device: str | None = "d1"
    rule: str = "r"
    user: Sequence[tuple[str, str]] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """Columns that differ."""

    def row(self) -> dict[str, Any]:
        """Return its columns."""
        return {
            "__topic": "persistent://public/t/gw",
            "__publishTime": ARRIVAL,
            "__messageProperties": {P_INGEST: json.dumps({"v": "1", "rule": self.rule})},
            "partition": 0,
            "ledger_id": 7,
            "entry_id": self.entry,
            "batch_index": 0,
            "mqtt_topic": self.topic,
            "device": self.device,
            "payload": None if self.payload is None else bytearray(self.payload),
            "arrival_time": ARRIVAL,
            "user_properties": [{"name": name, "value": value} for name, value in self.user],
        } | self.more


def sent(*payloads: Any, topic: str = "gw/d1", **more: Any) -> list[SentMessage]:
    """Return messages of these payloads; what is neither bytes nor text is sent as JSON."""
    return [SentMessage(n, _bytes(one), topic, **more) for n, one in enumerate(payloads)]


def _bytes(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else json.dumps(payload)).encode()


def frame(spark: SparkSession, messages: Iterable[SentMessage]) -> DataFrame:
    """Return the messages as a batch frame with the source's columns."""
    rows = [tuple(one.row().get(name) for name, _ in COLUMNS) for one in messages]
    return spark.createDataFrame(rows, ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS))

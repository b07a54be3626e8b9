"""Rows of silver for tests of what reads it, made without bronze; and what gold must hold of them, computed apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from streaming.tables import SILVER_COLUMNS, Tables, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AT", "GoldModel", "Silver", "append"]

AT = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Silver:
    """A reading as silver holds it; ``second`` is its event time after ``AT``."""

    id: str
    device: str
    second: float
    value: float | None
    metric: str = "glucose"
    entry: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    """Columns that differ."""

    @property
    def time(self) -> datetime:
        return AT + timedelta(seconds=self.second)

    def row(self) -> dict[str, Any]:
        later = {n: self.time + timedelta(seconds=k) for k, n in enumerate(_TIMES, 1)}
        return {
            "reading_id": self.id,
            "device": self.device,
            "metric": self.metric,
            "value": self.value,
            "unit": "mg/dL",
            "event_time": self.time,
            "event_day": self.time.date(),
            "mqtt_topic": f"wearables/{self.device}/{self.metric}",
            "retained": False,
            "__topic": "persistent://public/t/wearables-partition-0",
            "partition": 0,
            "ledger_id": 1,
            "entry_id": self.entry,
            "batch_index": 0,
            "element": 0,
        } | later | self.fields  # fmt: skip


_TIMES = ("sent_at", "arrival_time", "publish_time", "processed_at")


def append(spark: SparkSession, tables: Tables, readings: Iterable[Silver]) -> None:
    """Append the readings to silver in one commit."""
    names = [c.name for c in SILVER_COLUMNS]
    rows = [tuple(r.row().get(name) for name in names) for r in readings]
    frame = spark.createDataFrame(rows, schema_of(SILVER_COLUMNS))
    frame.coalesce(1).write.format("delta").mode("append").save(tables.silver.where)


class GoldModel:
    """Gold and its late table, batch by batch, in plain Python."""

    def __init__(self, window_s: int, delay_s: float) -> None:
        self.window_s = window_s
        self._delay = timedelta(seconds=delay_s)
        self._watermark = _EPOCH
        self._windows: dict[tuple[str, str, int], list[Silver]] = {}
        self.late: list[str] = []

    def batch(self, readings: Iterable[Silver]) -> None:
        """Take a batch; only after it the watermark moves."""
        latest = self._watermark
        for reading in readings:
            latest = max(latest, reading.time - self._delay)
            start = int((reading.time - _EPOCH).total_seconds()) // self.window_s * self.window_s
            if _EPOCH + timedelta(seconds=start + self.window_s) <= self._watermark:
                self.late.append(reading.id)
            else:
                self._windows.setdefault((reading.device, reading.metric, start), []).append(reading)
        self._watermark = latest

    def windows(self) -> Iterator[tuple[Any, ...]]:
        """Return device, metric, start, readings, lowest, highest, sum, first and last id, in order."""
        for (device, metric, start), held in sorted(self._windows.items()):
            values = [r.value for r in held if r.value is not None]
            order = sorted(held, key=lambda r: (r.time, r.id))
            total = round(sum(values), 6) if values else None
            yield (
                device, metric, start, len(held), min(values, default=None), max(values, default=None), total,
                order[0].id, order[-1].id,
            )  # fmt: skip

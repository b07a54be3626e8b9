"""What the pages show of the pipeline's tables: the last reading of each device, alerts, verdicts, a device's readings.

A table is read if its version has changed, and then only its newest rows.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.errors import TransientError
from bridge.settings import StreamingSettings
from pulsebridge.delta_tables import DeltaTables
from pulsebridge.ui.rows import clip, value_text
from streaming.tables import resolve_root

__all__ = ["Lakehouse", "Reading", "Tables", "device_readings", "lakehouse_problem", "sql_text"]

_SLACK_US: Final = 600_000_000
"""Rows this much older than the newest one are re-read: commits of a table may overlap."""
_WHOLE_S: Final = 3600.0
"""After this time the rows are read as at the start, so that deleted ones disappear."""
_MOST_ROWS: Final = 2_000_000
"""Rows of one read."""
_ALERTS: Final = 1000
_VERDICTS: Final = 1000
_DAY_US: Final = 86_400_000_000
_READINGS: Final = 5000
_TEXT: Final = 300

Row = dict[str, Any]


class Reading(NamedTuple):
    """One reading of a device."""

    us: int
    """Its time, in µs since the epoch."""
    metric: str
    value: float | None
    text: str | None


@dataclass
class _Newest:
    """The newest row of each key of a table, at most ``most`` of them."""

    table: str
    columns: Sequence[str]
    key: Sequence[str]
    order: str
    """Column of the time by which a row is newer than another."""
    arrived: str
    """Column of the time since which rows are read."""
    most: int
    days: int | None
    """Age of the oldest rows that are read, in days; None: all."""
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    version: int = -1
    _until_us: int | None = None
    _whole_at: float = 0.0

    def read(self, tables: DeltaTables) -> bool:
        """Read new rows. Returns whether the table exists. Raises TransientError if it cannot be read."""
        version = tables.version(self.table)
        if version is None:
            self.rows, self.version, self._until_us = {}, -1, None
            return False
        if version == self.version:
            return True
        now = time.monotonic()
        if self._until_us is None or version < self.version or now - self._whole_at > _WHOLE_S:
            self.rows, self._whole_at = {}, now
            since = None if self.days is None else time.time_ns() // 1000 - self.days * _DAY_US
        else:
            since = self._until_us - _SLACK_US
        where = "true" if since is None else f"{self.arrived} >= '{_moment(since)}'"
        found = tables.batches(self.table, [*self.columns, self.arrived], where)
        for row in _rows(found or (), _MOST_ROWS):
            self._take(row)
        if len(self.rows) > self.most:
            kept = heapq.nlargest(self.most, self.rows.items(), key=lambda item: item[1][self.order])
            self.rows = dict(kept)
        self.version = version
        return True

    def _take(self, row: Row) -> None:
        self._until_us = max(self._until_us or 0, _us(row.get(self.arrived)))
        key = tuple(row.get(name) for name in self.key)
        if row.get(self.order) is None:
            return
        known = self.rows.get(key)
        if known is None or row[self.order] >= known[self.order]:
            # Names of devices are bounded at ingest, and must stay as they are.
            exact = ("device", *self.key)
            self.rows[key] = {n: clip(v, _TEXT) if isinstance(v, str) and n not in exact else v for n, v in row.items()}


@dataclass(frozen=True)
class Tables:
    """The rows that the pages show. Times are µs since the epoch."""

    latest: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Time and text of the last reading of each device."""
    alerts: list[Row] = field(default_factory=list)
    """The newest alerts, the newest first. ``open`` means that no later row of its rule and device clears it."""
    verdicts: list[Row] = field(default_factory=list)
    """The last verdict of each expectation, failures first."""
    missing: tuple[str, ...] = ()
    """Tables that do not exist."""


class Lakehouse:
    """Reads the tables again and again, on one thread. Raises TransientError if one cannot be read."""

    def __init__(self, settings: StreamingSettings, max_devices: int) -> None:
        self._tables = DeltaTables(resolve_root(settings.root))
        columns: tuple[str, ...] = ("device", "metric", "event_time", "value", "text")
        self._latest = _Newest("device_latest", columns, ("device",), "event_time", "arrival_time", max_devices, None)
        self._readings = _Newest("readings", columns, ("device",), "event_time", "arrival_time", max_devices, 1)
        columns = ("command_id", "rule", "state", "device", "table", "event_time", "value", "message", "to_device")
        self._alerts = _Newest("alerts", columns, ("command_id",), "created_at", "created_at", _ALERTS, 30)
        columns = (
            "table",
            "suite",
            "rule",
            "expectation",
            "severity",
            "success",
            "evaluated",
            "unexpected",
            "observed",
        )
        key = ("table", "suite", "rule")
        self._verdicts = _Newest("quality_results", columns, key, "run_at", "run_at", _VERDICTS, 30)

    def read(self) -> Tables:
        """Return the current rows."""
        latest, missing = self._latest, []
        if not latest.read(self._tables):
            latest = self._readings
            missing += [] if latest.read(self._tables) else [latest.table]
        missing += [one.table for one in (self._alerts, self._verdicts) if not one.read(self._tables)]
        return Tables(
            {
                str(row["device"]): (
                    _us(row["event_time"]),
                    f"{clip(row.get('metric'), 60)} {value_text(row.get('value'), row.get('text'))}",
                )
                for row in latest.rows.values()
                if row.get("device") is not None
            },
            _alerts(self._alerts.rows.values()),
            [
                {**row, "run_at": _us(row["run_at"])}
                for row in sorted(self._verdicts.rows.values(), key=lambda r: (bool(r.get("success")), str(r["table"])))
            ],
            tuple(missing),
        )


def _alerts(rows: Iterable[Row]) -> list[Row]:
    found: list[Row] = []
    seen: set[tuple[Any, Any]] = set()
    for row in sorted(rows, key=lambda row: row["created_at"], reverse=True):
        of = row.get("rule"), row.get("device")
        last = of not in seen
        seen.add(of)
        times = {name: _us(row.get(name)) for name in ("created_at", "event_time")}
        found.append({**row, **times, "open": last and row.get("state") == "raised"})
    return found


def device_readings(settings: StreamingSettings, device: str, since_us: int) -> list[Reading]:
    """Return the newest readings of a device since a time, the oldest first, at most 5,000.

    Raises TransientError if the table cannot be read.
    """
    tables = DeltaTables(resolve_root(settings.root))
    where = f"device = {sql_text(device)} AND event_time >= '{_moment(since_us)}'"
    found = tables.batches("readings", ("metric", "event_time", "value", "text"), where)
    rows = (
        Reading(_us(row.get("event_time")), clip(row.get("metric"), 60), row.get("value"), row.get("text"))
        for row in _rows(found or (), _MOST_ROWS)
    )
    return sorted(heapq.nlargest(_READINGS, rows, key=lambda one: one.us), key=lambda one: one.us)


def lakehouse_problem(settings: StreamingSettings) -> str:
    """Return why no table can be shown, empty if some can."""
    if settings.schema_name:
        return (
            f"the tables are in the schema {settings.schema_name}, which only Spark can look up: the live view reads "
            "tables below streaming.root"
        )
    root = resolve_root(settings.root)
    if "://" not in root and not Path(root).is_dir():
        return f"the folder {root} of the tables does not exist: check streaming.root, or start `pulsebridge stream`"
    return ""


def sql_text(text: str) -> str:
    """Return a text as a literal of DataFusion's SQL, in which only quotes are special."""
    return "'" + text.replace("'", "''") + "'"


def _rows(batches: Iterable[Any], most: int) -> Iterator[Row]:
    """Yield at most ``most`` rows. Raises TransientError if a file cannot be read, for example after a VACUUM."""
    left = most
    try:
        for batch in batches:
            yield from batch.slice(0, left).to_pylist()
            left -= min(left, batch.num_rows)
            if not left:
                return
    except (OSError, ValueError) as e:  # pyarrow's errors are subclasses
        raise TransientError(f"a table cannot be read: {clip(e, 300)}") from e


def _us(moment: Any) -> int:
    return round(moment.timestamp() * 1e6) if isinstance(moment, datetime) else 0


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).isoformat()

"""The stateful processor of alerts. Spark calls it for each device of a micro-batch and for due timers.

It passes rows to ``streaming.evaluation``, stores the device's state and its one timer, and returns alert rows. It is
imported only if alerts run. Spark before 4.1 cannot run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType

from streaming.alert_rules import AlertRule
from streaming.evaluation import Alert, DeviceState, Found, Reading, due_us, evaluate, forgotten, silent

__all__ = ["OUTPUT", "STATE", "AlertProcessor"]

STATE: Final = "device"
"""The state variable: a row for each device. It is text, so its content can change without a new Spark schema."""
_SCHEMA: Final = StructType([StructField("state", StringType())])
OUTPUT: Final[tuple[tuple[str, str], ...]] = (
    ("rule", "string"),
    ("state", "string"),
    ("device", "string"),
    ("table", "string"),
    ("event_us", "bigint"),
    ("value", "double"),
    ("message", "string"),
    ("payload", "binary"),
    ("to_device", "string"),
    ("command_topic", "string"),
    ("reading_id", "string"),
    ("position", "string"),
    ("expires_s", "double"),
)
"""Columns of an alert that the rules create, with SQL types. ``payload`` is null for the default payload."""
_FOUND: Final = ("matches", "message", "payload", "to_device", "command_topic")
_Row: Final = Row(*(name for name, _ in OUTPUT))


class AlertProcessor(StatefulProcessor):
    """Evaluates the rules on each device's rows. It deletes a state after ``forget_us`` without a row."""

    def __init__(self, rules: tuple[AlertRule, ...], forget_us: int) -> None:
        self._rules = rules
        self._forget_us = forget_us
        self._handle: Any = None
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first for each partition of a batch. Spark also calls it once on the driver for the state's schema."""
        self._handle = handle
        self._state = handle.getValueState(STATE, _SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Called for each device with rows in the batch, before the timers. An exception fails the query."""
        device = str(key[0])
        readings = [reading for row in rows for reading in _readings(device, row)]
        alerts, state = evaluate(self._rules, self._read(device), readings)
        self._write(state)
        return _rows(alerts)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Called when the watermark has passed the device's timer. Spark deletes that timer afterwards."""
        device = str(key[0])
        now_us = timerValues.getCurrentWatermarkInMs() * 1000
        state = replace(self._read(device), timer_ms=None)
        alerts, state = silent(self._rules, state, device, now_us)
        if forgotten(state, now_us, self._forget_us):
            self._state.clear()
        else:
            self._write(state)
        return _rows(alerts)

    def close(self) -> None:
        """Called last. It has nothing to close."""

    def _read(self, device: str) -> DeviceState:
        found = self._state.get()
        return DeviceState() if found is None else DeviceState.of_json(found[0], device)

    def _write(self, state: DeviceState) -> None:
        """Store the state, with a timer. A timer that is due too early stays until it fires and sets the next one, so a
        reading sets no timer.
        """
        due = due_us(self._rules, state, self._forget_us)
        if due is not None:
            due_ms = -(-due // 1000)
            if state.timer_ms is not None and due_ms < state.timer_ms:
                self._handle.deleteTimer(state.timer_ms)
                state = replace(state, timer_ms=None)
            if state.timer_ms is None:
                self._handle.registerTimer(due_ms)
                state = replace(state, timer_ms=due_ms)
        self._state.update((state.to_json(),))


def _readings(device: str, row: Row) -> Iterator[Reading]:
    """Return a reading for each value of a row that rules evaluate."""
    for one in row.seen:  # structs arrive as mappings
        found = {f["rule"]: Found(*map(f.get, _FOUND)) for f in row.found if f["series"] == one["series"]}
        yield Reading(
            device, one["metric"] or "", row.reading_id, row.event_us, one["value"], row.unit, row.arrived_us,
            row.command_topic, row.position, one["series"], found,
        )  # fmt: skip


def _rows(alerts: Iterable[Alert]) -> Iterator[Row]:
    """Return a row for each alert, in order."""
    for alert in alerts:
        rule, reading = alert.rule, alert.reading
        expires_s = None if rule.expires is None else float(rule.expires)
        yield _Row(
            rule.name, alert.state, reading.device, rule.table, reading.event_us, reading.value, alert.message,
            *alert.command(), reading.reading_id, reading.position, expires_s,
        )  # fmt: skip

"""The stateful processor of the query alerts: Spark calls it for each device of a micro-batch, and when a timer is due.

It only carries: rows in, the decisions of ``streaming.judging``, the device's state and its one timer, command rows
out. Imported where alerts run; Spark before 4.1 cannot run it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType

from bridge.contract import COMMAND_COLUMNS
from streaming.judging import DeviceState, due_us, forgotten, judge, silent
from streaming.rules import Alert, AlertRule, Reading, command_payload

__all__ = ["STATE", "AlertProcessor"]

STATE: Final = "device"
"""The state variable: a row for each device. Text, so that what it holds can change without Spark's schema of it."""
_SCHEMA: Final = StructType([StructField("state", StringType())])
_EPOCH: Final = datetime(1970, 1, 1)
_Command: Final = Row(*(name for name, _ in COMMAND_COLUMNS))


class AlertProcessor(StatefulProcessor):
    """Judges the readings of each device. ``forget_us``: after so long without a reading its state is deleted."""

    def __init__(self, rules: tuple[AlertRule, ...], forget_us: int) -> None:
        self._rules = rules
        self._forget_us = forget_us
        self._handle: Any = None
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first, for each partition of a batch, and once on the driver for the state's schema."""
        self._handle = handle
        self._state = handle.getValueState(STATE, _SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Called for each device with rows in the batch, before the timers; what it raises fails the query."""
        device = str(key[0])
        alerts, state = judge(self._rules, self._read(device), [_reading(device, row) for row in rows])
        self._write(state)
        return _commands(alerts)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Called when the watermark has passed the device's timer; Spark deletes that timer afterwards."""
        device = str(key[0])
        now_us = timerValues.getCurrentWatermarkInMs() * 1000
        state = replace(self._read(device), timer_ms=None)
        alerts, state = silent(self._rules, state, device, now_us)
        if forgotten(state, now_us, self._forget_us):
            self._state.clear()
        else:
            self._write(state)
        return _commands(alerts)

    def close(self) -> None:
        """Called last; there is nothing to close."""

    def _read(self, device: str) -> DeviceState:
        found = self._state.get()
        return DeviceState() if found is None else DeviceState.of_json(found[0], device)

    def _write(self, state: DeviceState) -> None:
        """Store the state, with a timer. One that is due too early stays: when it fires, the next is set, so that a
        reading costs none.
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


def _reading(device: str, row: Row) -> Reading:
    return Reading(
        device,
        row.metric,
        row.reading_id,
        _EPOCH + timedelta(microseconds=row.event_us),
        row.value,
        row.unit,
        row.arrived_us,
        row.command_topic,
    )


def _commands(alerts: Iterable[Alert]) -> Iterator[Row]:
    """Give a row for each alert in its order; a device without a command topic takes no commands."""
    for alert in alerts:
        reading, rule = alert.reading, alert.rule
        if not reading.command_topic:
            continue
        now_us = time.time_ns() // 1000
        yield _Command(
            alert.command_id,
            reading.device,
            reading.command_topic,
            command_payload(alert),
            1,
            False,
            None if rule.expires_s is None else now_us + int(rule.expires_s * 1e6),
            now_us,
            f"{rule.name}/{reading.reading_id}",
            None,
        )

"""Decides which readings raise alerts, and which state of a device to keep. Without Spark and without a clock.

Everything is a fold: rules, state and new readings (or the current lateness) in; alerts and new state out.

* Thresholds and rates follow the device's own time. A reading that arrives after a newer one of its metric is not
  evaluated, because the newer one was evaluated before. So neither the order of arrival within a batch nor a
  repetition makes a command.
* Silence follows arrival, because a device's clock may be wrong and its buffered messages are no sign of life. The time
  comes from outside: the latest arrival of all devices, less a grace. So a repeated batch gives the same result, and a
  pipeline that stopped or lags reports no device as silent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bridge.errors import ContractError
from streaming.alert_rules import FIELD, WHOLE, AlertRule, Sql

__all__ = [
    "Alert", "DeviceState", "Found", "Reading", "Watch", "command_id", "due_us", "evaluate", "forgotten", "message_of",
    "silent",
]  # fmt: skip

MINUTE_US: Final = 60_000_000
_EPOCH: Final = datetime(1970, 1, 1)
_VERSION: Final = 2
_POINTS: Final = 32
"""Parts of a rate's time; the first reading of each part is kept."""


@dataclass(frozen=True)
class Found:
    """Result of a stateful rule of kind sql for one row."""

    matches: bool | None
    message: str
    payload: bytes | None
    to_device: str | None
    command_topic: str | None


@dataclass(frozen=True)
class Reading:
    """A value of a row, or the row itself. Times are in µs since the epoch."""

    device: str
    metric: str
    """Metric or column, for people."""
    reading_id: str
    event_us: int
    value: float | None
    unit: str | None = None
    arrived_us: int = 0
    """Time at which ingest received it."""
    command_topic: str | None = None
    """MQTT topic of its device's commands."""
    position: str | None = None
    """Position of the message in Pulsar, as JSON."""
    series: str | None = None
    """Name of its series, if that is not the metric."""
    found: Mapping[str, Found] = field(default_factory=dict)
    """By the names of rules of kind sql."""

    @property
    def key(self) -> str:
        """Its series, as ``AlertRule.series`` names it."""
        return self.metric if self.series is None else self.series

    @property
    def order(self) -> tuple[int, str]:
        """The order of a device's readings: device time, then id. It does not depend on arrival."""
        return (self.event_us, self.reading_id)


@dataclass(frozen=True)
class Alert:
    """A rule that fired on a reading, or whose alert the reading clears. For silence, it is the last reading."""

    rule: AlertRule
    reading: Reading
    message: str
    cleared: bool = False

    @property
    def command_id(self) -> str:
        """Identity of the command, the same for the same reading and rule (H19)."""
        return command_id(self.rule.name, self.reading.device, self.reading.reading_id, cleared=self.cleared)

    @property
    def state(self) -> str:
        """``raised`` or ``cleared``."""
        return "cleared" if self.cleared else "raised"

    def command(self) -> tuple[bytes | None, str | None, str | None]:
        """Return payload (None: the default), device and MQTT topic of the command. A command needs a device and a
        topic.
        """
        reading, rule = self.reading, self.rule
        found = reading.found.get(rule.name)
        if found is not None:
            return found.payload, found.to_device, found.command_topic
        payload = self._filled(rule.payload)
        to = reading.device if rule.to is None else None if rule.to == "none" else self._filled(rule.to)
        topic = reading.command_topic if rule.command_topic is None else self._filled(rule.command_topic)
        return (None if payload is None else payload.encode()), to, topic

    def _filled(self, text: str | Sql | None) -> str | None:
        if not isinstance(text, str):
            return None
        reading = self.reading
        fields = {
            "rule": self.rule.name,
            "state": self.state,
            "device": reading.device,
            "metric": reading.metric,
            "value": _number(reading.value),
            "unit": reading.unit or "",
            "limit": _number(self.rule.limit),
            "message": self.message,
            "reading_id": reading.reading_id,
            "event_time": (_EPOCH + timedelta(microseconds=reading.event_us)).isoformat() + "Z",
            "command_id": self.command_id,
        }
        return FIELD.sub(lambda found: fields[found[1]], text)


@dataclass(frozen=True)
class Watch:
    """State of one rule for a device."""

    raised: bool = False
    since_us: int | None = None
    """Event time of the first reading beyond the limit, while readings are."""
    points: tuple[tuple[int, float], ...] = ()
    """Event time and value of earlier readings, oldest first."""


@dataclass(frozen=True)
class DeviceState:
    """State of a device between batches."""

    newest: Mapping[str, Reading] = field(default_factory=dict)
    """The newest reading of each series, by the device's time."""
    watches: Mapping[str, Watch] = field(default_factory=dict)
    """By the rule's name; rules without state are left out."""
    last: Mapping[str, Reading] = field(default_factory=dict)
    """The last reading to arrive, of any series and of those that a silence rule names."""
    timer_ms: int | None = None
    """Time of Spark's next call for this device, if set."""

    def to_json(self) -> str:
        """Return the state as text of version 2, without empty parts."""
        body: dict[str, Any] = {"v": _VERSION}
        for name, of in (("newest", self.newest), ("last", self.last)):
            if of:
                body[name] = {series: _reading_body(reading) for series, reading in of.items()}
        if self.watches:
            body["watches"] = {name: _watch_body(watch) for name, watch in self.watches.items()}
        if self.timer_ms is not None:
            body["timer"] = self.timer_ms
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def of_json(cls, text: str, device: str) -> DeviceState:
        """Read a state. Raises ContractError for an unknown version."""
        body = json.loads(text)
        if body.get("v") != _VERSION:
            raise ContractError(
                f"the state of alerts for {device} has version {body.get('v')!r}, this release reads {_VERSION}",
                remedy="run the release that wrote it, or a later one",
            )
        return cls(
            {series: Reading(device, *one) for series, one in body.get("newest", {}).items()},
            {
                name: Watch(bool(w.get("raised")), w.get("since"), tuple((t, v) for t, v in w.get("points", ())))
                for name, w in body.get("watches", {}).items()
            },
            {series: Reading(device, *one) for series, one in body.get("last", {}).items()},
            body.get("timer"),
        )


def evaluate(
    rules: Sequence[AlertRule], state: DeviceState, readings: Iterable[Reading]
) -> tuple[list[Alert], DeviceState]:
    """Evaluate new readings of one device. Returns the alerts in the order of the device's time, and the new state.

    State of removed rules is dropped.
    """
    readings = list(readings)
    names = {rule.name for rule in rules}
    watches = {name: watch for name, watch in state.watches.items() if name in names}
    newest = dict(state.newest)
    alerts = _cleared_silences(rules, state, readings, watches)
    for reading in sorted(readings, key=lambda r: r.order):
        previous = newest.get(reading.key)
        if (reading.value is None and not reading.found) or (previous and reading.order <= previous.order):
            continue
        for rule in rules:
            if rule.kind == "silence" or rule.series != reading.key:
                continue
            fired, watch = _evaluated(rule, watches.get(rule.name, Watch()), previous, reading)
            alerts += fired
            _keep(watches, rule.name, watch)
        newest[reading.key] = reading
    alerts.sort(key=lambda a: (*a.reading.order, a.rule.name))
    wanted = {rule.series for rule in rules if rule.kind != "silence"}
    return alerts, replace(
        state,
        newest={series: reading for series, reading in newest.items() if series in wanted},
        watches=watches,
        last=_last_readings(rules, state, readings),
    )


def silent(rules: Iterable[AlertRule], state: DeviceState, device: str, now_us: int) -> tuple[list[Alert], DeviceState]:
    """Return an alert for each rule with silence at ``now_us``, once, and the new state."""
    watches = dict(state.watches)
    alerts = []
    for rule in rules:
        last = _last_reading_for(rule, state)
        if last is None or _raised(state, rule) or now_us < last.arrived_us + _after_us(rule):
            continue
        watches[rule.name] = Watch(raised=True)
        alerts.append(Alert(rule, last, message_of(rule, last, None, minutes=(rule.after or 0.0) / 60)))
    return alerts, replace(state, watches=watches)


def due_us(rules: Iterable[AlertRule], state: DeviceState, forget_us: int) -> int | None:
    """Return the time of the device's next timer: for silence, or to delete its state."""
    last = state.last.get(WHOLE)
    if last is None:
        return None
    due = last.arrived_us + forget_us
    for rule in rules:
        last = _last_reading_for(rule, state)
        if last is not None and not _raised(state, rule):
            due = min(due, last.arrived_us + _after_us(rule))
    return due


def forgotten(state: DeviceState, now_us: int, forget_us: int) -> bool:
    """Whether the device was offline for so long that its state is deleted."""
    last = state.last.get(WHOLE)
    return last is not None and now_us >= last.arrived_us + forget_us


def _cleared_silences(
    rules: Iterable[AlertRule], state: DeviceState, readings: Sequence[Reading], watches: dict[str, Watch]
) -> list[Alert]:
    """Return the alerts that the first reading after the silence clears; earlier readings clear none."""
    alerts = []
    for rule in rules:
        last = _last_reading_for(rule, state)
        if last is None or not _raised(state, rule):
            continue
        later = [r for r in readings if rule.series in (WHOLE, r.key) and r.arrived_us > last.arrived_us]
        if not later:
            continue
        first = min(later, key=_arrival)
        del watches[rule.name]
        if rule.notifies_cleared:
            minutes = (first.arrived_us - last.arrived_us) / MINUTE_US
            alerts.append(
                Alert(rule, first, message_of(rule, first, None, minutes=minutes, cleared=True), cleared=True)
            )
    return alerts


def _last_readings(rules: Iterable[AlertRule], state: DeviceState, readings: Iterable[Reading]) -> dict[str, Reading]:
    wanted = {WHOLE} | {rule.series for rule in rules if rule.kind == "silence"}
    last = {series: found for series, found in state.last.items() if series in wanted}
    for reading in sorted(readings, key=_arrival):
        for series in (WHOLE, reading.key):
            known = last.get(series)
            if series in wanted and (known is None or _arrival(reading) > _arrival(known)):
                last[series] = reading
    return last


def _arrival(reading: Reading) -> tuple[int, int, str]:
    return (reading.arrived_us, reading.event_us, reading.reading_id)


def _last_reading_for(rule: AlertRule, state: DeviceState) -> Reading | None:
    return state.last.get(rule.series) if rule.kind == "silence" else None


def _raised(state: DeviceState, rule: AlertRule) -> bool:
    return state.watches.get(rule.name, Watch()).raised


def _after_us(rule: AlertRule) -> int:
    return round((rule.after or 0.0) * 1e6)


def _keep(watches: dict[str, Watch], name: str, watch: Watch) -> None:
    if watch == Watch():
        watches.pop(name, None)
    else:
        watches[name] = watch


def _evaluated(rule: AlertRule, was: Watch, previous: Reading | None, reading: Reading) -> tuple[list[Alert], Watch]:
    """Return the alerts of a rule for a series' next reading, and its new state."""
    rate: float | None = None
    found = reading.found.get(rule.name)
    if rule.kind == "sql" or reading.value is None:
        if found is None or found.matches is None:
            return [], was
        watch = Watch(raised=found.matches)
    elif rule.limit is not None:
        watch = _threshold(rule, was, reading)
    elif rule.over is not None:
        rate, watch = _over_time(rule, was, reading)
    else:
        fast = _changes_fast(rule, previous, reading)
        return ([Alert(rule, reading, message_of(rule, reading, previous))] if fast else []), Watch()
    if watch.raised == was.raised or (was.raised and not rule.notifies_cleared):
        return [], watch
    text = found.message if found else message_of(rule, reading, previous, rate=rate, cleared=was.raised)
    return [Alert(rule, reading, text, cleared=was.raised)], watch


def _threshold(rule: AlertRule, was: Watch, reading: Reading) -> Watch:
    """Return the new state. Between limit and clear a raised alert stays raised, and a pending alert restarts."""
    limit, value = rule.limit or 0.0, reading.value or 0.0
    if was.raised:
        clear = limit if rule.clear is None else rule.clear
        return Watch() if (clear - value) * rule.sign >= 0 else was
    if not (value - limit) * rule.sign > 0:
        return Watch()
    at_us = reading.event_us
    since = at_us if was.since_us is None else was.since_us
    if at_us - since >= rule.for_ * 1e6:
        return Watch(raised=True)
    return Watch(since_us=since)


def _over_time(rule: AlertRule, was: Watch, reading: Reading) -> tuple[float | None, Watch]:
    """Return the change per minute and the new state. The change is measured since the oldest stored reading within the
    rule's time. It is None if the stored readings span less than half of that time.
    """
    at_us, value = reading.event_us, reading.value or 0.0
    over_us = (rule.over or 0.0) * 1e6
    points = tuple(point for point in was.points if at_us - point[0] <= over_us)
    rate = None
    if points and at_us - points[0][0] >= over_us / 2:
        rate = (value - points[0][1]) * rule.sign / ((at_us - points[0][0]) / MINUTE_US)
    part = over_us / _POINTS
    if not points or at_us // part != points[-1][0] // part:
        points = (*points, (at_us, value))
    limit = rule.per_minute or 0.0
    raised = was.raised
    if rate is not None:
        raised = rate > (limit if rule.clear is None or not was.raised else rule.clear)
    return rate, Watch(raised, None, points)


def _changes_fast(rule: AlertRule, previous: Reading | None, reading: Reading) -> bool:
    if previous is None or reading.event_us - previous.event_us > rule.within * 1e6:
        return False
    return per_minute(previous, reading) * rule.sign > (rule.per_minute or 0.0)


def _reading_body(of: Reading) -> tuple[Any, ...]:
    return (
        of.metric, of.reading_id, of.event_us, of.value, of.unit, of.arrived_us, of.command_topic, of.position
    )  # fmt: skip


def _watch_body(watch: Watch) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if watch.raised:
        body["raised"] = True
    if watch.since_us is not None:
        body["since"] = watch.since_us
    if watch.points:
        body["points"] = watch.points
    return body


def command_id(rule: str, device: str, reading_id: str, *, cleared: bool = False) -> str:
    """Return the id of a rule's command for a reading, or for its alert's clearing."""
    # A rule's name is not empty and contains no bar, so the two kinds of ids differ.
    text = f"|cleared|{rule}|{device}|{reading_id}" if cleared else f"{rule}|{device}|{reading_id}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def per_minute(previous: Reading, reading: Reading) -> float:
    """Return the change of the value per minute. It is 0 if no time has passed, or without a value."""
    if reading.event_us <= previous.event_us or reading.value is None or previous.value is None:
        return 0.0
    return (reading.value - previous.value) / ((reading.event_us - previous.event_us) / MINUTE_US)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def message_of(
    rule: AlertRule,
    reading: Reading,
    previous: Reading | None,
    *,
    rate: float | None = None,
    minutes: float = 0.0,
    cleared: bool = False,
) -> str:
    """Return the message for a reading. ``rate`` is per minute, over the rule's time; ``minutes`` are of silence."""
    if rate is None:
        rate = 0.0 if previous is None else per_minute(previous, reading)
        rate = rate if rule.kind == "rising" else -rate
    return rule.template(cleared).format(
        device=reading.device,
        metric=reading.metric,
        value=_number(reading.value),
        unit=reading.unit or "",
        limit=_number(rule.limit),
        clear=_number(rule.limit or 0.0 if rule.clear is None else rule.clear),
        rate=_number(round(rate, 2) + 0.0),
        previous="" if previous is None else _number(previous.value),
        minutes=_number(round(minutes, 1)),
    )

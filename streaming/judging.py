"""Which readings make an alert, and what is kept of a device for that: free of Spark and of any clock of its own.

Everything is a fold: rules, what was kept, new readings (or how late it is) in; alerts and what is to be kept out.

* Thresholds and rates follow the device's own time. A reading that comes later than a newer one of its metric is not
  evaluated: the newer one was evaluated before it. So neither the order of arrival
  within a batch nor a repetition makes a command.
* Silence follows arrival, as a device's clock may be wrong and what it buffered is no sign of now. What time it is
  comes from outside: the latest arrival of all devices, less a grace. So a batch that is run again says the same, and
  a pipeline that stood still, or is behind, reports no device as silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bridge.errors import ContractError
from streaming.rules import MINUTE_US, WHOLE, Alert, AlertRule, Reading, per_minute

__all__ = ["DeviceState", "Watch", "due_us", "forgotten", "judge", "silent"]

_VERSION: Final = 2
_POINTS: Final = 32
"""A rate's time is cut into so many parts; the first reading of each is kept."""


@dataclass(frozen=True)
class Watch:
    """What one rule keeps of a device."""

    raised: bool = False
    since_us: int | None = None
    """Event time of the first reading beyond the limit, while readings are."""
    points: tuple[tuple[int, float], ...] = ()
    """Event time and value of earlier readings, oldest first."""


@dataclass(frozen=True)
class DeviceState:
    """What is kept of a device between batches."""

    newest: Mapping[str, Reading] = field(default_factory=dict)
    """The newest reading of each series, by the device's time."""
    watches: Mapping[str, Watch] = field(default_factory=dict)
    """By the rule's name; a rule that has nothing to keep is not there."""
    last: Mapping[str, Reading] = field(default_factory=dict)
    """The last reading that came, of any series and of those that a rule of silence names."""
    timer_ms: int | None = None
    """When Spark is to call for this device, where that is set."""

    def to_json(self) -> str:
        """Return the state as text of version 2, with what is empty left out."""
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
        """Read a state. Raises ContractError for one of a version that is not known here."""
        body = json.loads(text)
        if body.get("v") != _VERSION:
            raise ContractError(
                f"the state of alerts for {device} has version {body.get('v')!r}, this release knows {_VERSION}",
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


def judge(
    rules: Sequence[AlertRule], state: DeviceState, readings: Iterable[Reading]
) -> tuple[list[Alert], DeviceState]:
    """Judge new readings of one device; return the alerts in the order of its time, and what to keep.

    What was kept for rules that are no more is left out.
    """
    readings = list(readings)
    names = {rule.name for rule in rules}
    watches = {name: watch for name, watch in state.watches.items() if name in names}
    newest = dict(state.newest)
    alerts = _speaks_again(rules, state, readings, watches)
    for reading in sorted(readings, key=lambda r: r.order):
        previous = newest.get(reading.key)
        if (reading.value is None and not reading.found) or (previous and reading.order <= previous.order):
            continue
        for rule in rules:
            if rule.kind == "silence" or rule.series != reading.key:
                continue
            fired, watch = _looked_at(rule, watches.get(rule.name, Watch()), previous, reading)
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
    """Return an alert for each rule whose time without a reading is over at ``now_us``, once, and the new state."""
    watches = dict(state.watches)
    alerts = []
    for rule in rules:
        last = _last_reading_for(rule, state)
        if last is None or _raised(state, rule) or now_us < last.arrived_us + _after_us(rule):
            continue
        watches[rule.name] = Watch(raised=True)
        alerts.append(Alert(rule, last, rule.text(last, None, minutes=rule.after_minutes or 0.0)))
    return alerts, replace(state, watches=watches)


def due_us(rules: Iterable[AlertRule], state: DeviceState, forget_us: int) -> int | None:
    """Return when the next timer of the device is due: for silence, or to delete its state."""
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


def _speaks_again(
    rules: Iterable[AlertRule], state: DeviceState, readings: Sequence[Reading], watches: dict[str, Watch]
) -> list[Alert]:
    """Return what is over with the first reading that came after the silence; what came before it says nothing."""
    alerts = []
    for rule in rules:
        last = _last_reading_for(rule, state)
        if last is None or not _raised(state, rule):
            continue
        later = [r for r in readings if rule.looks_at(r) and r.arrived_us > last.arrived_us]
        if not later:
            continue
        first = min(later, key=_arrival)
        del watches[rule.name]
        if rule.tells_cleared:
            minutes = (first.arrived_us - last.arrived_us) / MINUTE_US
            alerts.append(Alert(rule, first, rule.text(first, None, minutes=minutes, cleared=True), cleared=True))
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
    return round((rule.after_minutes or 0.0) * MINUTE_US)


def _keep(watches: dict[str, Watch], name: str, watch: Watch) -> None:
    if watch == Watch():
        watches.pop(name, None)
    else:
        watches[name] = watch


def _looked_at(rule: AlertRule, was: Watch, previous: Reading | None, reading: Reading) -> tuple[list[Alert], Watch]:
    """Return what a rule says of a series' next reading, and what it keeps."""
    rate: float | None = None
    found = reading.found.get(rule.name)
    if rule.kind == "sql" or reading.value is None:
        if found is None or found.holds is None:
            return [], was
        watch = Watch(raised=found.holds)
    elif rule.limit is not None:
        watch = _threshold(rule, was, reading)
    elif rule.over_minutes is not None:
        rate, watch = _over_time(rule, was, reading)
    else:
        fast = _from_one_to_the_next(rule, previous, reading)
        return ([Alert(rule, reading, rule.text(reading, previous))] if fast else []), Watch()
    if watch.raised == was.raised or (was.raised and not rule.tells_cleared):
        return [], watch
    text = found.message if found else rule.text(reading, previous, rate=rate, cleared=was.raised)
    return [Alert(rule, reading, text, cleared=was.raised)], watch


def _threshold(rule: AlertRule, was: Watch, reading: Reading) -> Watch:
    """Between limit and clear nothing changes for what is raised, and a pending alert restarts."""
    limit, value = rule.limit or 0.0, reading.value or 0.0
    if was.raised:
        clear = limit if rule.clear is None else rule.clear
        return Watch() if (clear - value) * rule.sign >= 0 else was
    if not (value - limit) * rule.sign > 0:
        return Watch()
    at_us = reading.event_us
    since = at_us if was.since_us is None else was.since_us
    if at_us - since >= rule.for_minutes * MINUTE_US:
        return Watch(raised=True)
    return Watch(since_us=since)


def _over_time(rule: AlertRule, was: Watch, reading: Reading) -> tuple[float | None, Watch]:
    """Return the change per minute since the oldest reading kept within the rule's time, None where those kept reach
    back less than half of it, and what to keep.
    """
    at_us, value = reading.event_us, reading.value or 0.0
    over_us = (rule.over_minutes or 0.0) * MINUTE_US
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


def _from_one_to_the_next(rule: AlertRule, previous: Reading | None, reading: Reading) -> bool:
    if previous is None or reading.event_us - previous.event_us > rule.within_minutes * MINUTE_US:
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

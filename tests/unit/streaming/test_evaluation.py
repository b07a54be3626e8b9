"""Which readings make an alert: thresholds, rates and silence as folds, whatever the order and the batches are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ContractError
from streaming.alert_rules import AlertRule
from streaming.evaluation import Alert, DeviceState, Reading, command_id, due_us, evaluate, forgotten, silent

LOW = AlertRule(name="low", metric="glucose", kind="below", limit=70, message="{value} {unit} under {limit}")
HIGH = AlertRule(
    name="high", metric="glucose", kind="above", limit=180, clear=160, **{"for": "10m"}, notify_cleared=True
)
FALL = AlertRule(name="fall", metric="glucose", kind="falling", per_minute=3, message="{rate} from {previous}")
STEEP = AlertRule(
    name="steep", metric="glucose", kind="rising", per_minute=2, over="20m", clear=1,
    notify_cleared=True, message="{rate} a minute", cleared_message="{rate} only",
)  # fmt: skip
QUIET = AlertRule(name="quiet", kind="silence", after="10m")
ALL = (LOW, HIGH, FALL, STEEP, QUIET)
MINUTE = 60_000_000
START = 21_156_480 * MINUTE  # 2010-03-24


def at(
    minute: float,
    value: float | None,
    name: str | None = None,
    *,
    arrived: float = 0.0,
    metric: str = "glucose",
) -> Reading:
    moment = START + round(minute * MINUTE)
    return Reading("d", metric, name or f"d-{minute:g}", moment, value, "mg/dL", round(arrived * MINUTE), "t")


def reported(alerts: Iterable[Alert]) -> list[str]:
    return [f"{a.rule.name} {a.state} {a.reading.reading_id}" for a in alerts]


def fired(values: Sequence[tuple[float, float]], *rules: AlertRule) -> list[str]:
    return reported(evaluate(rules, DeviceState(), [at(m, v) for m, v in values])[0])


def kept(state: DeviceState) -> DeviceState:
    """As the next batch finds it."""
    return DeviceState.of_json(state.to_json(), "d")


class TestThreshold:
    def test_below_fires_when_crossing_and_not_again_until_it_was_above(self) -> None:
        values = [(0, 80.0), (5, 69.0), (10, 60.0), (15, 70.0), (20, 69.9)]
        assert fired(values, LOW) == ["low raised d-5", "low raised d-20"]

    def test_below_fires_on_a_first_reading_that_is_low(self) -> None:
        assert fired([(0, 50.0)], LOW) == ["low raised d-0"]

    def test_it_is_over_only_at_the_clear_level(self) -> None:
        rule = LOW.model_copy(update={"clear": 80.0, "notify_cleared": True})
        values = [(0, 69.0), (5, 75.0), (10, 69.0), (15, 80.0), (20, 75.0), (25, 69.0)]
        assert fired(values, rule) == ["low raised d-0", "low cleared d-15", "low raised d-25"]

    def test_above_must_last_and_a_dip_restarts_the_time(self) -> None:
        values = [(0, 181.0), (5, 170.0), (10, 200.0), (15, 200.0), (20, 200.0), (25, 170.0), (30, 160.0)]
        assert fired(values, HIGH) == ["high raised d-20", "high cleared d-30"]

    def test_a_value_that_is_none_says_nothing(self) -> None:
        alerts, state = evaluate((LOW,), DeviceState(), [at(0, None), at(1, float("nan")), at(2, 60.0)])
        assert reported(alerts) == ["low raised d-2"]
        assert state.newest["glucose"].reading_id == "d-2"


class TestRate:
    def test_falling_compares_with_the_reading_before_in_the_devices_time(self) -> None:
        assert fired([(0, 200.0), (5, 184.0), (10, 169.0)], FALL) == ["fall raised d-5"]

    def test_falling_does_not_compare_over_a_long_gap(self) -> None:
        assert fired([(0, 400.0), (16, 100.0)], FALL) == []

    def test_over_a_time_it_is_reported_once_until_it_is_slower_than_clear(self) -> None:
        values = [(0, 100.0), (5, 130.0), (10, 125.0), (15, 140.0), (20, 150.0), (25, 155.0), (30, 145.0)]
        alerts, _ = evaluate((STEEP,), DeviceState(), [at(m, v) for m, v in values])
        # after 5 minutes less than half of the 20 is known; after 10 it rises by 2.5, at the end since 10 by 1
        assert [(a.reading.reading_id, a.message) for a in alerts] == [
            ("d-10", "2.5 a minute"),
            ("d-30", "1 only"),
        ]

    def test_what_is_kept_for_it_is_bounded(self) -> None:
        _, state = evaluate((STEEP,), DeviceState(), [at(n / 60, 100.0) for n in range(3600)])
        assert len(state.watches["steep"].points) <= 34
        assert len(state.to_json()) < 2000


class TestSilence:
    def test_it_is_reported_once_and_again_when_the_device_publishes(self) -> None:
        _, state = evaluate((QUIET,), DeviceState(), [at(0, 1.0, arrived=100)])
        assert due_us((QUIET,), state, 1000 * MINUTE) == 110 * MINUTE
        assert silent((QUIET,), state, "d", 110 * MINUTE - 1)[0] == []
        alerts, state = silent((QUIET,), state, "d", 110 * MINUTE)
        assert reported(alerts) == ["quiet raised d-0"]
        assert (alerts[0].message, alerts[0].reading.command_topic) == ("d: nothing for 10 minutes", "t")
        assert silent((QUIET,), kept(state), "d", 500 * MINUTE)[0] == []
        assert due_us((QUIET,), state, 1000 * MINUTE) == 1100 * MINUTE, "then it is forgotten"
        alerts, state = evaluate(
            (QUIET,), kept(state), [at(90, 1.0, "new", arrived=130), at(91, 1.0, "b", arrived=131)]
        )
        assert reported(alerts) == ["quiet cleared new"]
        assert alerts[0].message == "d: messages after 30 minutes"
        assert reported(silent((QUIET,), state, "d", 141 * MINUTE)[0]) == ["quiet raised b"]

    def test_what_came_before_it_does_not_end_it_and_an_old_time_of_the_device_does(self) -> None:
        _, state = evaluate((QUIET,), DeviceState(), [at(50, 1.0, "a", arrived=100)])
        _, state = silent((QUIET,), state, "d", 110 * MINUTE)
        assert evaluate((QUIET,), state, [at(49, 1.0, "older", arrived=99)])[0] == []
        assert reported(evaluate((QUIET,), state, [at(0, 1.0, "buffered", arrived=120)])[0]) == [
            "quiet cleared buffered"
        ]

    def test_one_metric_can_be_silent_while_others_come(self) -> None:
        rule = QUIET.model_copy(update={"metric": "temperature", "notify_cleared": False})
        rows = [at(0, 1.0, "t", arrived=100, metric="temperature"), at(0, 1.0, "g", arrived=109)]
        _, state = evaluate((rule, QUIET), DeviceState(), rows)
        alerts, state = silent((rule, QUIET), state, "d", 110 * MINUTE)
        assert [(a.reading.reading_id, a.message) for a in alerts] == [
            ("t", "temperature of d: nothing for 10 minutes")
        ]
        assert evaluate((rule,), state, [at(1, 1.0, arrived=120, metric="temperature")])[0] == []

    def test_a_device_that_is_long_gone_is_forgotten(self) -> None:
        _, state = evaluate((LOW,), DeviceState(), [at(0, 100.0, arrived=5)])
        assert due_us((LOW,), state, 60 * MINUTE) == 65 * MINUTE
        assert [forgotten(state, minute * MINUTE, 60 * MINUTE) for minute in (64, 65)] == [False, True]


def test_what_comes_late_is_not_evaluated_and_moves_no_state() -> None:
    _, before = evaluate((LOW,), DeviceState(), [at(10, 90.0)])
    alerts, after = evaluate((LOW,), before, [at(5, 40.0)])
    assert alerts == []
    assert after.newest == before.newest


def test_the_message_names_what_the_rule_saw() -> None:
    alerts, _ = evaluate((LOW, FALL), DeviceState(), [at(0, 90.0), at(5, 65.5)])
    assert [a.message for a in alerts] == ["4.9 from 90", "65.5 mg/dL under 70"]


def test_what_was_kept_for_a_rule_that_is_no_more_goes() -> None:
    _, state = evaluate((LOW, STEEP, QUIET), DeviceState(), [at(0, 60.0, arrived=1)])
    _, state = evaluate((QUIET,), state, [at(1, 60.0, arrived=2)])
    assert (state.watches, state.newest) == ({}, {})


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ContractError, match="version 3, this release reads 2 — run the release"):
        DeviceState.of_json('{"v":3}', "d")


def test_h19_the_command_of_a_reading_is_the_same_whenever_it_is_made() -> None:
    first, second = (evaluate((LOW,), DeviceState(), [at(0, 90.0), at(5, 60.0)])[0][0] for _ in range(2))
    assert first.command_id == second.command_id == command_id("low", "d", "d-5")
    assert first.command_id != replace(first, cleared=True).command_id
    assert first == second


readings = st.lists(
    st.tuples(st.integers(0, 200), st.integers(40, 260).map(float)),
    max_size=30,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: [at(m, v, arrived=m) for m, v in pairs])


@given(readings, st.randoms(use_true_random=False))
def test_h19_the_order_of_arrival_within_a_batch_changes_nothing(rows: list[Reading], random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert evaluate(ALL, DeviceState(), rows) == evaluate(ALL, DeviceState(), shuffled)


@given(readings, st.lists(st.integers(0, 30), max_size=4))
def test_cutting_ordered_readings_into_batches_changes_nothing(rows: list[Reading], cuts: list[int]) -> None:
    rows = sorted(rows, key=lambda r: r.order)
    whole, last = evaluate(ALL, DeviceState(), rows)
    alerts, state = [], DeviceState()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        more, state = evaluate(ALL, kept(state), rows[begin:end])
        alerts += more
    assert reported(alerts) == reported(whole)
    assert kept(state) == kept(last)


@given(readings, readings)
def test_what_comes_again_makes_no_command_and_changes_nothing(rows: list[Reading], more: list[Reading]) -> None:
    rules = (LOW, HIGH, FALL, STEEP, QUIET)
    _, state = evaluate(rules, DeviceState(), rows)
    _, state = evaluate(rules, state, more)
    alerts, again = evaluate(rules, kept(state), rows + more)
    assert alerts == []
    assert kept(again) == kept(state)


@given(readings)
def test_a_lasting_alert_is_raised_and_over_in_turn(rows: list[Reading]) -> None:
    alerts, _ = evaluate((HIGH, STEEP), DeviceState(), rows)
    for rule in (HIGH, STEEP):
        states = [a.state for a in alerts if a.rule is rule]
        assert states == ["raised", "cleared"] * (len(states) // 2) + ["raised"] * (len(states) % 2)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(0, 100))
def test_silence_is_reported_once_for_each_gap_that_is_long_enough(gaps: list[int], after: int) -> None:
    state, now, alerts = DeviceState(), 0, []
    expected = []
    for n, gap in enumerate([*gaps, after]):
        more, state = evaluate((QUIET,), kept(state), [at(n, 1.0, str(n), arrived=now)])
        alerts += more
        for minute in range(now, now + gap):  # the fleet's clock goes on with any device
            more, state = silent((QUIET,), state, "d", minute * MINUTE)
            alerts += more
        now += gap
        if gap > 10:
            expected += [f"quiet raised {n}", f"quiet cleared {n + 1}"]
    if after > 10:
        expected.pop()
    assert reported(alerts) == expected

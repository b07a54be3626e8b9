from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from bridge.errors import ConfigError
from bridge.settings import PulsarSettings
from bridge.settings.loading import conf_path
from sinks.options import read_options
from streaming.alerts import sink_options
from streaming.rules import AlertRule, Reading, command_id, command_payload, judge, load_rules

LOW = AlertRule(name="low", metric="glucose", kind="below", limit=70, message="{value} {unit} under {limit}")
FALL = AlertRule(
    name="fall", metric="glucose", kind="falling", per_minute=3, message="{rate} from {previous}"
)
START = datetime(2010, 3, 24)


def at(minute: float, value: float, name: str | None = None) -> Reading:
    return Reading("d", "glucose", name or f"d-{minute}", START + timedelta(minutes=minute), value, "mg/dL")


def fired(values: list[tuple[float, float]], *rules: AlertRule) -> list[tuple[str, str]]:
    alerts, _ = judge(rules or (LOW, FALL), None, [at(m, v) for m, v in values])
    return [(a.rule.name, a.reading.reading_id) for a in alerts]


def test_below_fires_when_crossing_and_not_again_until_it_was_above() -> None:
    values = [(0, 80.0), (5, 69.0), (10, 60.0), (15, 70.0), (20, 69.9)]
    assert fired(values, LOW) == [("low", "d-5"), ("low", "d-20")]


def test_below_fires_on_a_first_reading_that_is_low() -> None:
    assert fired([(0, 50.0)], LOW) == [("low", "d-0")]


def test_falling_compares_with_the_reading_before_in_the_devices_time() -> None:
    assert fired([(0, 200.0), (5, 184.0), (10, 169.0)], FALL) == [("fall", "d-5")]


def test_falling_does_not_compare_over_a_long_gap() -> None:
    assert fired([(0, 400.0), (16, 100.0)], FALL) == []


def test_what_comes_late_is_not_judged_and_moves_no_state() -> None:
    _, newest = judge((LOW,), None, [at(10, 90.0)])
    alerts, after = judge((LOW,), newest, [at(5, 40.0)])
    assert alerts == []
    assert after == newest


def test_the_message_names_what_the_rule_saw() -> None:
    alerts, _ = judge((LOW, FALL), None, [at(0, 90.0), at(5, 65.5)])
    assert [a.message for a in alerts] == ["65.5 mg/dL under 70", "4.9 from 90"]


def test_h19_the_command_of_a_reading_is_the_same_whenever_it_is_made() -> None:
    first, second = (judge((LOW,), at(0, 90.0), [at(5, 60.0)])[0][0] for _ in range(2))
    assert first.command_id == second.command_id == command_id("low", "d", "d-5")
    assert command_payload(first) == command_payload(second)
    assert json.loads(command_payload(first))["ts"] == "2010-03-24T00:05:00Z"


readings = st.lists(
    st.tuples(st.integers(0, 200), st.floats(0, 400)), max_size=30, unique_by=lambda pair: pair[0]
).map(lambda pairs: [at(m, v) for m, v in pairs])


@given(readings, st.randoms(use_true_random=False))
def test_h19_the_order_of_arrival_within_a_batch_changes_nothing(rows: list[Reading], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judge((LOW, FALL), None, rows) == judge((LOW, FALL), None, shuffled)


@given(readings, st.data())
def test_cutting_ordered_readings_into_batches_changes_nothing(
    rows: list[Reading], data: st.DataObject
) -> None:
    rows = sorted(rows, key=lambda r: r.order)
    cut = data.draw(st.integers(0, len(rows)))
    first, newest = judge((LOW, FALL), None, rows[:cut])
    second, last = judge((LOW, FALL), newest, rows[cut:])
    assert (first + second, last) == judge((LOW, FALL), None, rows)


def test_the_rules_that_are_shipped_load() -> None:
    assert [r.name for r in load_rules(conf_path("rules.yaml"))] == ["glucose-low", "glucose-falling"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("alerts: [{name: a, metric: m, kind: below}]", "needs limit"),
        ("alerts: [{name: a, metric: m, kind: falling}]", "needs per_minute"),
        ("alerts: [{name: a, metric: m, kind: below, limit: 1, message: '{nothing}'}]", "nothing"),
        ("alerts: [{name: a, metric: m, kind: below, limit: 1, colour: red}]", "alerts[0].colour"),
        ("alerts: [{name: a|b, metric: m, kind: below, limit: 1}]", "alerts[0].name"),
        ("alerts: [", "rules file"),
    ],
)
def test_a_wrong_rules_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rules(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_the_sink_takes_the_connection_that_the_source_takes() -> None:
    pulsar = PulsarSettings(
        service_url="pulsar+ssl://p:6651",
        admin_url="https://p:8443",
        token=SecretStr("secret"),
        tls_ca=Path("/ca.pem"),
        tls_certificate=Path("/c.pem"),
        tls_private_key=Path("/k.pem"),
        tls_validate_hostname=False,
        system_namespace="s",
    )
    assert read_options(sink_options(pulsar)).pulsar == pulsar

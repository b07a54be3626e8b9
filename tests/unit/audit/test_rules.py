from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.settings.loading import conf_path
from pulsebridge.audit.records import Published
from pulsebridge.audit.rules import Rule, calls_of, command_id, load_rules, read_rules

LOW = Rule("low", "glucose", "below", limit=70)
FALLING = Rule("falling", "glucose", "falling", per_minute=3, within_s=900)
START = datetime(2010, 3, 24, 9, 51)


def samples(*values: float, step: float = 5, metric: str = "glucose") -> list[Published]:
    times = [(START + timedelta(minutes=step * i)).isoformat() for i in range(len(values))]
    return [
        Published(f"r{i:03d}", "d", metric, i, ts, float(value), "", i)
        for i, (ts, value) in enumerate(zip(times, values, strict=True))
    ]


def fired(rule: Rule, found: list[Published]) -> list[str]:
    return sorted(call.reading_id for call in calls_of([rule], found).values())


def test_below_fires_when_a_reading_goes_under_the_limit_and_not_while_it_stays() -> None:
    assert fired(LOW, samples(100, 69, 60, 70, 69.9)) == ["r001", "r004"]


def test_below_fires_on_a_first_reading_under_the_limit() -> None:
    assert fired(LOW, samples(60, 100)) == ["r000"]


def test_falling_needs_more_than_the_rate() -> None:
    assert fired(FALLING, samples(100, 85, 69)) == ["r002"]


def test_falling_forgets_a_reading_from_too_long_ago() -> None:
    assert fired(FALLING, samples(200, 100, step=16)) == []
    assert fired(FALLING, samples(200, 100, step=15)) == ["r001"]


def test_two_readings_of_one_time_have_no_rate() -> None:
    assert fired(FALLING, samples(200, 100, step=0)) == []


@settings(deadline=None)
@given(st.lists(st.integers(min_value=40, max_value=400), max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(values: list[int], chance) -> None:
    ordered = samples(*values)
    mixed = list(ordered)
    chance.shuffle(mixed)
    rules = [LOW, FALLING]
    assert calls_of(rules, mixed) == calls_of(rules, ordered)


def test_other_metrics_call_for_nothing() -> None:
    assert calls_of([LOW], samples(1, 2, 3, metric="temperature")) == {}


def test_the_id_is_the_jobs_own() -> None:
    from streaming.evaluation import command_id as of_the_job

    assert of_the_job("low", "cgm-001", "cgm-001-00007") == command_id("low", "cgm-001", "cgm-001-00007")


def test_the_rules_of_the_demo_are_all_known_here() -> None:
    assert [r.kind for r in load_rules(conf_path("demo/rules.yaml"))] == ["below", "falling"]


def test_a_rule_that_cannot_be_computed_again_is_refused() -> None:
    with pytest.raises(ConfigError, match="rising"):
        read_rules({"alerts": [{"name": "x", "metric": "m", "kind": "rising"}]}, "rules.yaml")
    with pytest.raises(ConfigError, match="clear, for"):
        read_rules(
            {"alerts": [{"name": "x", "metric": "m", "kind": "below", "clear": 1, "for": "5m"}]},
            "rules.yaml",
        )

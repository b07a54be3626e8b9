"""The share of bad rows: what is in the window, when it is over the limit, and what is done then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from streaming.bad_share import BadShare, Judged
from streaming.quality_gate import BadShareGate
from structlog.testing import capture_logs

from bridge.errors import TerminalError
from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from bridge.silver_metrics import SilverMetrics

batches = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 50), st.integers(0, 50)), max_size=30
)  # seconds since the one before, good, bad


@given(batches, st.integers(1, 100), st.integers(1, 200), st.data())
def test_the_window_holds_what_was_judged_within_it_each_batch_once(
    given_batches: list[tuple[int, int, int]], window_s: int, min_rows: int, data: st.DataObject
) -> None:
    share, at, seen = BadShare(0.25, window_s, min_rows), 0, {}
    for number, (gap, good, bad) in enumerate(given_batches):
        at += gap
        share.saw(number, at, good, bad)
        seen[number] = (at, good, bad)
    if seen and data.draw(st.booleans(), label="the last batch runs again"):
        last = max(seen)
        share.saw(last, at, *seen[last][1:])
    now = at + data.draw(st.integers(0, 50))
    inside = [(good, bad) for when, good, bad in seen.values() if now - when <= window_s]
    assert share.window(now) == Judged(sum(g for g, _ in inside), sum(b for _, b in inside))
    rows, bad = sum(map(sum, inside)), sum(b for _, b in inside)
    assert share.over(now) == (rows >= min_rows and bad > 0.25 * rows)
    assert 0 <= share.share(now) <= 1


def gate(clock: list[float], metrics: SilverMetrics | None = None, **settings: Any) -> BadShareGate:
    given = {"bad_share_limit": 0.2, "bad_share_window_s": 60, "bad_share_min_rows": 10} | settings
    return BadShareGate(StreamingSettings.model_validate(given), metrics, lambda: clock[0])


def rules() -> Mapping[str, int]:
    return {"range": 5, "unit": 3, "id": 2, "time": 1}


def alert_fires(registry: CollectorRegistry) -> bool:
    """Evaluate the shipped alert on what the process shows: one series is more than the other."""
    groups = yaml.safe_load(conf_path("prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    (rule,) = (r for g in groups for r in g["rules"] if r["alert"] == "PulsebridgeBadReadings")
    found = re.fullmatch(r"(\w+) > on \(job, instance\) (\w+)", rule["expr"])
    assert found is not None
    share, limit = (registry.get_sample_value(name) for name in found.groups())
    assert share is not None
    assert limit is not None
    return share > limit


def test_over_the_limit_there_is_one_warning_until_it_was_under_it_again() -> None:
    clock, registry = [0.0], CollectorRegistry()
    watched = gate(clock, SilverMetrics(registry))
    with capture_logs() as lines:
        watched(1, 8, 1, rules)  # too few rows for a share
        watched(2, 0, 3, rules)
        watched(3, 0, 3, rules)
        over = registry.get_sample_value("pulsebridge_silver_bad_share")
        assert alert_fires(registry)
        clock[0] = 61
        under = registry.get_sample_value("pulsebridge_silver_bad_share")
        assert not alert_fires(registry)
        watched(4, 10, 0, rules)
        watched(5, 0, 10, rules)
    assert [line["log_level"] for line in lines] == ["warning", "warning"]
    assert "33.3% of 12 rows within 60 s failed a rule (range 5, unit 3, id 2, …)" in lines[0]["why"]
    assert (over, under) == (7 / 15, 0)
    assert registry.get_sample_value("pulsebridge_silver_bad_share_limit") == 0.2
    held = registry.get_sample_value("pulsebridge_silver_judged_total", {"result": "held"})
    assert held == 17


def test_a_limit_may_stop_the_query_with_one_line_that_names_rules_and_remedy() -> None:
    watched = gate([0.0], on_bad_share="stop")
    watched(1, 9, 1, rules)
    with pytest.raises(TerminalError) as caught:
        watched(2, 4, 6, rules)
    text = str(caught.value)
    assert "\n" not in text
    for named in ("batch 2", "35.0% of 20 rows", "range 5", "limit is 20.0%", "streaming.on_bad_share=alert"):
        assert named in text


def test_a_limit_of_one_is_none() -> None:
    watched = gate([0.0], on_bad_share="stop", bad_share_limit=1)
    watched(1, 0, 1000, rules)

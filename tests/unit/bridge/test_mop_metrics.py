"""Rates under the MoP proxy's names: over the last minute, for any number of scrapers at any interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from bridge.mop_metrics import MopCollector, Rates, Traffic


def test_the_first_scrape_sees_the_mean_since_the_start() -> None:
    assert Rates(100.0).add(110.0, 500, 5000) == (50.0, 500.0)
    assert Rates(100.0).add(100.0, 0, 0) == (0.0, 0.0)


def test_a_rate_is_of_the_last_minute_and_falls_to_nothing() -> None:
    rates = Rates(0.0)
    for second in range(0, 601, 10):
        found = rates.add(float(second), 10.0 * second, 100.0 * second)
    assert found == (10.0, 100.0)
    for second in range(610, 681, 10):
        found = rates.add(float(second), 6000.0, 60_000.0)
    assert found == (0.0, 0.0)


def test_scrapes_rarer_than_a_minute_see_the_time_between_two() -> None:
    rates = Rates(0.0)
    rates.add(300.0, 0, 0)
    assert rates.add(600.0, 3000, 300) == (10.0, 1.0)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 200), st.integers(0, 10_000), st.integers(0, 10_000)),
        min_size=1,
        max_size=60,
    )
)
def test_a_rate_never_leaves_the_bounds_of_what_came(steps: list[tuple[float, int, int]]) -> None:
    rates, now, requests, size = Rates(0.0), 0.0, 0, 0
    highest = 0.0
    for seconds, more, bytes_more in steps:
        now, requests, size = now + seconds, requests + more, size + bytes_more
        highest = max(highest, more / seconds)
        found, found_bytes = rates.add(now, requests, size)
        assert 0 <= found <= highest * (1 + 1e-9)
        assert found_bytes >= 0
        assert len(rates._points) < 2 + 60 / 0.01


def test_traffic_is_shown_by_the_addresses_of_both_ends() -> None:
    now, traffic, registry = 0.0, Traffic(), CollectorRegistry()
    registry.register(MopCollector(lambda: {"mqtt:1883": 7.0, "http": 2}, traffic, lambda: now))
    traffic.add("plant", "mqtt:1883", "p1:6650", 0, 0)
    now = 10.0
    assert registry.get_sample_value("active_connections", {"client_address": "mqtt:1883"}) == 7
    assert registry.get_sample_value("active_connections", {"client_address": "http"}) == 2
    traffic.add("plant", "mqtt:1883", "p1:6650", 60, 600)
    traffic.add("yard", "mqtt:1883", "p1:6650", 40, 400)
    traffic.add("plant", "mqtt:1883", "p2:6650", 10, 10)
    now = 20.0
    ends = {"client_address": "mqtt:1883", "broker_address": "p1:6650"}
    rate = registry.get_sample_value("connection_stats", ends | {"stat": "request_rate"})
    assert rate == pytest.approx(5.0)
    now = 30.0
    size = registry.get_sample_value("connection_stats", ends | {"stat": "byte_rate"})
    assert size == pytest.approx(1000 / 30)
    other = {"client_address": "mqtt:1883", "broker_address": "p2:6650", "stat": "byte_rate"}
    assert registry.get_sample_value("connection_stats", other) == pytest.approx(10 / 30)


def test_an_unknown_number_of_connections_is_left_out() -> None:
    connections, stats = MopCollector(dict, Traffic()).collect()
    assert connections.samples == stats.samples == []

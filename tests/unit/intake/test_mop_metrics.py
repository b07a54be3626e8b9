"""Rates under the MoP proxy's names: over the last minute, for any number of scrapers at any interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from bridge.intake.metrics import IngestMetrics, LinkMetrics, SessionMetrics
from bridge.intake.mop_metrics import MopCollector, Rates


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


def test_links_are_shown_with_pulsar_s_address_and_those_connected_counted() -> None:
    now = 0.0
    of, registry = IngestMetrics(CollectorRegistry()), CollectorRegistry()
    plant = LinkMetrics("plant", of)
    SessionMetrics("plant", of).connected.set(1)
    SessionMetrics("yard", of).connected.set(0)
    registry.register(MopCollector("pulsar://p:6650", of, lambda: now))
    now = 10.0
    plant.counters["received"].inc(100)
    plant.counters["received_bytes"].inc(1000)
    about = {"client_address": "plant", "broker_address": "pulsar://p:6650"}
    assert registry.get_sample_value("active_connections") == 1
    now = 20.0
    rate = registry.get_sample_value("connection_stats", about | {"stat": "request_rate"})
    assert rate == pytest.approx(5.0)
    size = registry.get_sample_value("connection_stats", about | {"stat": "byte_rate"})
    assert size == pytest.approx(50.0)


def test_traffic_is_that_of_the_mqtt_links_alone() -> None:
    of = IngestMetrics(CollectorRegistry())
    LinkMetrics("http", of).counters["received"].inc(7)
    SessionMetrics("plant", of).connected.set(1)
    connections, stats = MopCollector("pulsar", of).collect()
    assert [s.value for s in connections.samples] == [1]
    assert {s.labels["client_address"] for s in stats.samples} == {"plant"}

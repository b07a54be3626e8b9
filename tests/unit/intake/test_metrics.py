from __future__ import annotations

from prometheus_client import CollectorRegistry

from bridge.intake.metrics import IngestMetrics, LinkMetrics, SessionMetrics


def test_a_link_that_is_handed_over_leaves_its_counters_alone() -> None:
    """Gauges would let PulsebridgeLinkDown and PulsebridgeIngestNotReady fire at a standby."""
    registry = CollectorRegistry()
    of = IngestMetrics(registry)

    def shown(link: str) -> dict[str, float]:
        return {
            sample.name.removeprefix("pulsebridge_ingest_"): sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.labels.get("link") == link and metric.type == "gauge"
        }

    north, south = LinkMetrics("north", of), LinkMetrics("south", of)
    session = SessionMetrics("north", of)
    north.counters["stored"].inc(3)
    for link in (north, south):
        link.gauges["in_flight_limit"].set(1000)
    north.end()
    session.connected.set(0)  # the connection ends after that
    assert shown("north") == {}
    assert shown("south")["in_flight_limit"] == 1000
    assert registry.get_sample_value("pulsebridge_ingest_stored_total", {"link": "north"}) == 3
    LinkMetrics("north", of).gauges["in_flight_limit"].set(500)
    assert shown("north")["in_flight_limit"] == 500, "it is here again"

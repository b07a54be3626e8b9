"""The metrics of the ingest tier, per link, with names that begin with ``pulsebridge_ingest_``.

No topic and no device is a label. The loop threads write sums once a turn and gauges once a second, so that a message
costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from bridge.intake.mop_metrics import Traffic

__all__ = ["INGEST", "IngestMetrics", "LinkMetrics", "SessionMetrics", "traffic"]

_NAME: Final = "pulsebridge_ingest"
_LINK: Final = "link"
LEFT_OUT: Final = ("command", "broker", "retained", "move")
PRESENCE: Final = ("stored", "lost")
RECEIPTS: Final = ("stored", "retired", "refused", "late")


class IngestMetrics:
    """The metrics of one ingest process; see the help of each."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._count(registry)
        self._measure(registry)

    def _count(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_NAME}_{name}_total", text, (_LINK, *labels), registry=registry)

        self.received = counter("received", "Messages received from the link.")
        self.received_bytes = counter("received_bytes", "Payload bytes received from the link.")
        self.stored = counter("stored", "Messages that Pulsar has confirmed, dead letters included.")
        self.acked = counter("acked", "Acknowledgements sent to the MQTT broker.")
        self.dead_letters = counter("dead_letters", "Messages stored as dead letters.")
        self.cut = counter("cut", "Payloads too large for a dead letter: only their head is kept, the rest is lost.")
        self.malformed = counter("malformed", "Messages malformed in terms of MQTT; their packets are dead letters.")
        self.left_out = counter(
            "left_out",
            "Messages acknowledged and not written: command (would loop), broker ($ topics), retained (skipped), move "
            "(markers of a session that is drained).",
            "reason",
        )
        self.receipts = counter(
            "receipts",
            "Receipts of Pulsar: stored, retired (the producer failed, its messages are resent), refused (one message, "
            "now a dead letter), late (from a former producer).",
            "result",
        )
        self.presence = counter(
            "presence",
            "Presence records of devices: stored, or lost because too many waited.",
            "result",
        )
        self.connections = counter(
            "connections", "Connections that the MQTT broker accepted; all but the first are reconnects."
        )
        self.cache_misses = counter(
            "topic_cache_misses",
            "Messages without a cached route for their topic; all other received messages had one.",
        )

    def _measure(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, (_LINK,), registry=registry)

        self.producers = gauge("producers", "Open producers, one for each partition written to.")
        self.connected = gauge("connected", "1 while the link is connected to its MQTT broker.")
        self.in_flight = gauge("in_flight", "Messages received from the link and not yet stored.")
        self.in_flight_limit = gauge("in_flight_limit", "Reading stops at this many messages in flight.")
        self.in_flight_bytes = gauge("in_flight_bytes", "Bytes received from the link and not yet stored.")
        self.in_flight_limit_bytes = gauge("in_flight_limit_bytes", "Reading stops at this many bytes in flight.")
        self.oldest_unacked = gauge(
            "oldest_unacked_seconds", "Age of the oldest message that is not acknowledged, 0 without one."
        )
        self.store = Histogram(
            f"{_NAME}_store_seconds",
            "Time from a message's arrival to Pulsar's receipt, one sample for each turn with receipts.",
            (_LINK,),
            registry=registry,
            buckets=(
                0.001,
                0.0025,
                0.005,
                0.01,
                0.025,
                0.05,
                0.1,
                0.25,
                0.5,
                1.0,
                2.5,
                5.0,
                10.0,
                30.0,
                60.0,
            ),
        )
        self.blocked = gauge(
            "blocked_partitions", "Partitions that store nothing, so that their messages go to the dead letters."
        )
        self.topics = gauge("topics", "Pulsar topics that the mapping knows.")
        self.cache_entries = gauge("topic_cache_entries", "MQTT topics with a cached route.")

    def link(self, name: str) -> tuple[LinkMetrics, SessionMetrics]:
        """Return the metrics of one MQTT link."""
        return LinkMetrics(name, self), SessionMetrics(name, self)


INGEST: Final = IngestMetrics()
"""The metrics of this process."""


class LinkMetrics:
    """The metrics of one link of any protocol; only its loop thread writes them."""

    def __init__(self, link: str, of: IngestMetrics = INGEST) -> None:
        self.received = of.received.labels(link)
        self.received_bytes = of.received_bytes.labels(link)
        self.stored = of.stored.labels(link)
        self.dead_letters = of.dead_letters.labels(link)
        self.cut = of.cut.labels(link)
        self.malformed = of.malformed.labels(link)
        self.left_out = {reason: of.left_out.labels(link, reason) for reason in LEFT_OUT}
        self.receipts = {result: of.receipts.labels(link, result) for result in RECEIPTS}
        self.presence = {result: of.presence.labels(link, result) for result in PRESENCE}
        self.producers = of.producers.labels(link)
        self.in_flight = of.in_flight.labels(link)
        self.in_flight_limit = of.in_flight_limit.labels(link)
        self.in_flight_bytes = of.in_flight_bytes.labels(link)
        self.in_flight_limit_bytes = of.in_flight_limit_bytes.labels(link)
        self.oldest_unacked = of.oldest_unacked.labels(link)
        self.store = of.store.labels(link)
        self.blocked = of.blocked.labels(link)
        self.topics = of.topics.labels(link)
        self._cache_misses = of.cache_misses.labels(link)
        self._cache_entries = of.cache_entries.labels(link)
        self._misses = 0

    def cache(self, misses: int, entries: int) -> None:
        """Set the metrics of the route cache: its misses since its creation, and its entries."""
        self._cache_misses.inc(misses - self._misses)
        self._cache_entries.set(entries)
        self._misses = misses


class SessionMetrics:
    """Further metrics of an MQTT link: its connection, and acknowledgements to its broker."""

    def __init__(self, link: str, of: IngestMetrics = INGEST) -> None:
        self.acked = of.acked.labels(link)
        self.connections = of.connections.labels(link)
        self.connected = of.connected.labels(link)


def traffic(broker_address: str, of: IngestMetrics = INGEST) -> Iterator[Traffic]:
    """Yield each link's traffic to Pulsar at ``broker_address``, for the MoP proxy's names."""
    received = _by_link(of.received)
    received_bytes = _by_link(of.received_bytes)
    for link, connected in _by_link(of.connected).items():
        yield Traffic(link, broker_address, bool(connected), received.get(link, 0.0), received_bytes.get(link, 0.0))


def _by_link(family: Counter | Gauge) -> dict[str, float]:
    return {
        s.labels[_LINK]: s.value
        for metric in family.collect()
        for s in metric.samples
        if not s.name.endswith("_created")
    }

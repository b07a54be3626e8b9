"""What the ingest tier counts, per link. Names begin with ``pulsebridge_ingest_``; no topic and no device as label.

The loop threads count: sums once a turn, gauges once a second, so that a message costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from bridge.mop_metrics import Traffic

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

        self.received = counter("received", "Messages taken from the link.")
        self.received_bytes = counter("received_bytes", "Payload bytes taken from the link.")
        self.stored = counter("stored", "Messages that Pulsar has confirmed, dead letters included.")
        self.acked = counter("acked", "Acknowledgements sent to the MQTT broker.")
        self.dead_letters = counter("dead_letters", "Messages stored as dead letters.")
        self.cut = counter("cut", "Dead letters too large even for that: only their head is kept, the rest is lost.")
        self.malformed = counter("malformed", "Messages that MQTT calls malformed; their packets are dead letters.")
        self.left_out = counter(
            "left_out",
            "Messages acknowledged and not written: command (would have looped back), broker ($ topics), retained "
            "(skipped), move (markers of a session that is drained).",
            "reason",
        )
        self.receipts = counter(
            "receipts",
            "Receipts of Pulsar: stored, retired (a producer given up, its messages sent again), refused (one message, "
            "now a dead letter), late (of a producer given up before).",
            "result",
        )
        self.presence = counter(
            "presence",
            "Signs of life of devices for the presence topic: stored, or lost because too many waited.",
            "result",
        )
        self.connections = counter(
            "connections", "Connections that the MQTT broker accepted; all but the first are reconnects."
        )
        self.cache_misses = counter(
            "topic_cache_misses",
            "Messages whose topic had no remembered route; the others of all received had one.",
        )

    def _measure(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, (_LINK,), registry=registry)

        self.producers = gauge("producers", "Open producers, one for each partition written to.")
        self.connected = gauge("connected", "1 while the link is connected to its MQTT broker.")
        self.in_flight = gauge("in_flight", "Messages taken from the link and not yet stored.")
        self.in_flight_limit = gauge("in_flight_limit", "At this many messages in flight reading stops.")
        self.in_flight_bytes = gauge("in_flight_bytes", "Bytes taken from the link and not yet stored.")
        self.in_flight_limit_bytes = gauge("in_flight_limit_bytes", "At this many bytes in flight reading stops.")
        self.oldest_unacked = gauge(
            "oldest_unacked_seconds", "Age of the oldest message that is not acknowledged, 0 without one."
        )
        self.store = Histogram(
            f"{_NAME}_store_seconds",
            "Time from a message's arrival to Pulsar's receipt, one sample for each turn that brought receipts.",
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
            "blocked_partitions", "Partitions that take nothing, whose messages go to the dead letters."
        )
        self.topics = gauge("topics", "Pulsar topics that the mapping knows.")
        self.cache_entries = gauge("topic_cache_entries", "MQTT topics whose route is remembered.")

    def link(self, name: str) -> tuple[LinkMetrics, SessionMetrics]:
        """Return the metrics of one MQTT link."""
        return LinkMetrics(name, self), SessionMetrics(name, self)


INGEST: Final = IngestMetrics()
"""Those of this process."""


class LinkMetrics:
    """The metrics of one way into Pulsar, whatever its protocol; its loop thread alone writes them."""

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
        """Show the route cache: the misses since it was made, and what it holds now."""
        self._cache_misses.inc(misses - self._misses)
        self._cache_entries.set(entries)
        self._misses = misses


class SessionMetrics:
    """What an MQTT link has beside them: a connection that we dial, and acknowledgements to its broker."""

    def __init__(self, link: str, of: IngestMetrics = INGEST) -> None:
        self.acked = of.acked.labels(link)
        self.connections = of.connections.labels(link)
        self.connected = of.connected.labels(link)


def traffic(broker_address: str, of: IngestMetrics = INGEST) -> Iterator[Traffic]:
    """Yield what each link has carried to Pulsar at ``broker_address``, for the names of the MoP proxy."""
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

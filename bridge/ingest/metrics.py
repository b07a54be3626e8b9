"""What the ingest tier counts, per link. Names begin with ``pulsebridge_ingest_``; no topic and no device as label.

The loop threads count: sums once a turn, gauges once a second, so that a message costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from bridge.mop_metrics import Traffic

__all__ = ["LinkMetrics", "traffic"]

_LINK: Final = ("link",)
_PREFIX: Final = "pulsebridge_ingest"

_RECEIVED: Final = Counter(f"{_PREFIX}_received_total", "Messages taken from the link.", _LINK)
_RECEIVED_BYTES: Final = Counter(
    f"{_PREFIX}_received_bytes_total", "Payload bytes taken from the link.", _LINK
)
_STORED: Final = Counter(
    f"{_PREFIX}_stored_total", "Messages that Pulsar has confirmed, dead letters included.", _LINK
)
_ACKED: Final = Counter(f"{_PREFIX}_acked_total", "Acknowledgements sent to the MQTT broker.", _LINK)
_DEAD_LETTERS: Final = Counter(f"{_PREFIX}_dead_letters_total", "Messages stored as dead letters.", _LINK)
_CUT: Final = Counter(
    f"{_PREFIX}_cut_total",
    "Dead letters too large even for that: only their head is kept, the rest lost.",
    _LINK,
)
_LEFT_OUT: Final = Counter(
    f"{_PREFIX}_left_out_total",
    "Messages acknowledged and not written: command (would have looped back), broker ($ topics), retained (skipped).",
    ("link", "reason"),
)
_RECEIPTS: Final = Counter(
    f"{_PREFIX}_receipts_total",
    "Receipts of Pulsar: stored, retired (a producer given up, its messages sent again), refused (one message, now a "
    "dead letter), late (of a producer given up before).",
    ("link", "result"),
)
_PRODUCERS: Final = Gauge(f"{_PREFIX}_producers", "Open producers, one for each partition written to.", _LINK)
_CONNECTIONS: Final = Counter(
    f"{_PREFIX}_connections_total",
    "Connections that the MQTT broker accepted; all but the first are reconnects.",
    _LINK,
)
_CONNECTED: Final = Gauge(f"{_PREFIX}_connected", "1 while the link is connected to its MQTT broker.", _LINK)
_IN_FLIGHT: Final = Gauge(f"{_PREFIX}_in_flight", "Messages taken from the link and not yet stored.", _LINK)
_IN_FLIGHT_LIMIT: Final = Gauge(
    f"{_PREFIX}_in_flight_limit", "At this many messages in flight reading stops.", _LINK
)
_IN_FLIGHT_BYTES: Final = Gauge(
    f"{_PREFIX}_in_flight_bytes", "Bytes taken from the link and not yet stored.", _LINK
)
_IN_FLIGHT_BYTES_LIMIT: Final = Gauge(
    f"{_PREFIX}_in_flight_limit_bytes", "At this many bytes in flight reading stops.", _LINK
)
_OLDEST_UNACKED: Final = Gauge(
    f"{_PREFIX}_oldest_unacked_seconds",
    "Age of the oldest message that is not acknowledged, 0 without one.",
    _LINK,
)
_STORE: Final = Histogram(
    f"{_PREFIX}_store_seconds",
    "Time from a message's arrival to Pulsar's receipt, one sample for each turn that brought receipts.",
    _LINK,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_TOPICS: Final = Gauge(f"{_PREFIX}_topics", "Pulsar topics that the mapping knows.", _LINK)
_CACHE_MISSES: Final = Counter(
    f"{_PREFIX}_topic_cache_misses_total",
    "Messages whose topic had no remembered route, of all received.",
    _LINK,
)
_CACHE_ENTRIES: Final = Gauge(f"{_PREFIX}_topic_cache_entries", "Topics whose route is remembered.", _LINK)


class LinkMetrics:
    """The metrics of one link; its loop thread alone writes them."""

    def __init__(self, link: str) -> None:
        self.received = _RECEIVED.labels(link)
        self.received_bytes = _RECEIVED_BYTES.labels(link)
        self.stored = _STORED.labels(link)
        self.acked = _ACKED.labels(link)
        self.dead_letters = _DEAD_LETTERS.labels(link)
        self.cut = _CUT.labels(link)
        self.left_out = {r: _LEFT_OUT.labels(link, r) for r in ("command", "broker", "retained")}
        self.receipts = {r: _RECEIPTS.labels(link, r) for r in ("stored", "retired", "refused", "late")}
        self.producers = _PRODUCERS.labels(link)
        self.connections = _CONNECTIONS.labels(link)
        self.connected = _CONNECTED.labels(link)
        self.in_flight = _IN_FLIGHT.labels(link)
        self.in_flight_limit = _IN_FLIGHT_LIMIT.labels(link)
        self.in_flight_bytes = _IN_FLIGHT_BYTES.labels(link)
        self.in_flight_limit_bytes = _IN_FLIGHT_BYTES_LIMIT.labels(link)
        self.oldest_unacked = _OLDEST_UNACKED.labels(link)
        self.store = _STORE.labels(link)
        self.topics = _TOPICS.labels(link)
        self._cache_misses = _CACHE_MISSES.labels(link)
        self._cache_entries = _CACHE_ENTRIES.labels(link)
        self._misses = 0

    def cache(self, misses: int, entries: int) -> None:
        """Show the route cache: the misses since it was made, and what it holds now."""
        self._cache_misses.inc(misses - self._misses)
        self._cache_entries.set(entries)
        self._misses = misses


def traffic(broker_address: str) -> Iterator[Traffic]:
    """Yield what each link has carried to Pulsar at ``broker_address``, for the names of the MoP proxy."""
    received = _by_link(_RECEIVED)
    received_bytes = _by_link(_RECEIVED_BYTES)
    for link, connected in _by_link(_CONNECTED).items():
        yield Traffic(
            link, broker_address, bool(connected), received.get(link, 0.0), received_bytes.get(link, 0.0)
        )


def _by_link(family: Counter | Gauge) -> dict[str, float]:
    return {s.labels["link"]: s.value for metric in family.collect() for s in metric.samples}

"""The metrics of the ingest tier, per link, with names that begin with ``pulsebridge_ingest_``.

No topic and no device is a label. The loop threads write sums once a turn and gauges once a second, so that a message
costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from bridge.intake.flow import Reading
from bridge.mop_metrics import TRAFFIC

__all__ = ["INGEST", "IngestMetrics", "LinkMetrics", "SessionMetrics"]

_NAME: Final = "pulsebridge_ingest"
_LINK: Final = "link"

_COUNTERS: Final = {
    "received": "Messages received from the link.",
    "received_bytes": "Payload bytes received from the link.",
    "stored": "Messages that Pulsar has confirmed, dead letters included.",
    "dead_letters": "Messages stored as dead letters.",
    "cut": "Payloads too large for a dead letter: only their head is kept, the rest is lost.",
    "malformed": "Messages malformed in terms of MQTT; their packets are dead letters.",
    "topic_cache_misses": "Messages without a cached route for their topic; all other received messages had one.",
}
_SESSION_COUNTERS: Final = {
    "acked": "Acknowledgements sent to the MQTT broker.",
    "connections": "Connections that the MQTT broker accepted; all but the first are reconnects after a loss.",
}
_COUNTERS_BY: Final = {
    "left_out": (
        "Messages acknowledged and not written: command (would loop), broker ($ topics), retained (skipped), move "
        "(markers of a session that is drained).",
        "reason",
        ("command", "broker", "retained", "move"),
    ),
    "receipts": (
        "Receipts of Pulsar: stored, retired (the producer failed, its messages are resent), refused (one message, "
        "now a dead letter), late (from a former producer).",
        "result",
        ("stored", "retired", "refused", "late"),
    ),
    "presence": (
        "Presence records of devices: stored, or lost because too many waited.",
        "result",
        ("stored", "lost"),
    ),
}
"""Counters with a second label: their help, the label and its values."""
_GAUGES: Final = {
    "producers": "Open producers, one for each partition written to.",
    "in_flight": "Messages received from the link and not yet stored.",
    "in_flight_limit": "Reading stops at this many messages in flight.",
    "in_flight_bytes": "Bytes received from the link and not yet stored.",
    "in_flight_limit_bytes": "Reading stops at this many bytes in flight.",
    "oldest_unacked_seconds": "Age of the oldest message that is not acknowledged, 0 without one.",
    "blocked_partitions": "Partitions that store nothing, so that their messages go to the dead letters.",
    "topics": "Pulsar topics that the mapping knows.",
    "topic_cache_entries": "MQTT topics with a cached route.",
}
_STORE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class IngestMetrics:
    """The metrics of one ingest process, by name without prefix and suffix."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_NAME}_{name}_total", text, (_LINK, *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, (_LINK,), registry=registry)

        self.counters = {name: counter(name, text) for name, text in (_COUNTERS | _SESSION_COUNTERS).items()}
        self.counters |= {name: counter(name, text, label) for name, (text, label, _) in _COUNTERS_BY.items()}
        self.gauges = {name: gauge(name, text) for name, text in _GAUGES.items()}
        self.connected = gauge("connected", "1 while the link is connected to its MQTT broker.")
        self.store = Histogram(
            f"{_NAME}_store_seconds",
            "Time from a message's arrival to Pulsar's receipt, one sample for each turn with receipts.",
            (_LINK,),
            registry=registry,
            buckets=_STORE_BUCKETS,
        )


INGEST: Final = IngestMetrics()
"""The metrics of this process."""


class LinkMetrics:
    """The metrics of one link of any protocol, by name; only its loop thread writes them."""

    def __init__(self, link: str, of: IngestMetrics = INGEST) -> None:
        self.counters = {name: of.counters[name].labels(link) for name in _COUNTERS}
        self.by = {
            (name, value): of.counters[name].labels(link, value)
            for name, (_, _, values) in _COUNTERS_BY.items()
            for value in values
        }
        """Counters with a second label, by name and its value."""
        self.gauges = {name: of.gauges[name].labels(link) for name in _GAUGES}
        self.store = of.store.labels(link)
        self._of = of
        self.link = self.client_address = link
        """``client_address`` is the MQTT broker of the link, as host:port; of another protocol its name."""

    def end(self) -> None:
        """Remove the gauges of the link, because this process does not serve it any more. Counters stay."""
        for gauge in (*self._of.gauges.values(), self._of.connected):
            gauge.remove(self.link)

    def stored_at(self, broker: str, messages: Sequence[Reading]) -> None:
        """Count messages that a Pulsar broker has stored."""
        size = sum(len(message.payload) for message in messages)
        TRAFFIC.add(self.link, self.client_address, broker, len(messages), size)


class SessionMetrics:
    """Further metrics of an MQTT link: its connection, and acknowledgements to its broker."""

    def __init__(self, link: str, of: IngestMetrics = INGEST) -> None:
        self.acked = of.counters["acked"].labels(link)
        self.connections = of.counters["connections"].labels(link)
        self.connected = of.connected.labels(link)

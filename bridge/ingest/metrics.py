"""The ingest tier's counters and gauges. Names begin with ``pulsebridge_ingest_``; no topic and no device as label."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

__all__ = [
    "ACKED",
    "CONNECTED",
    "CONNECTIONS",
    "DEAD_LETTERS",
    "IN_FLIGHT",
    "IN_FLIGHT_BYTES",
    "IN_FLIGHT_LIMIT",
    "LEFT_OUT",
    "OLDEST_UNACKED",
    "PRODUCERS",
    "RECEIVED",
    "RECEIVED_BYTES",
    "RETIRED",
    "STORED",
    "TOPICS",
]

RECEIVED: Final = Counter("pulsebridge_ingest_received_total", "Messages taken from MQTT.")
RECEIVED_BYTES: Final = Counter("pulsebridge_ingest_received_bytes_total", "Payload bytes taken from MQTT.")
STORED: Final = Counter("pulsebridge_ingest_stored_total", "Messages that Pulsar has confirmed.")
ACKED: Final = Counter("pulsebridge_ingest_acked_total", "Acknowledgements sent to the MQTT broker.")
DEAD_LETTERS: Final = Counter("pulsebridge_ingest_dead_letters_total", "Messages stored as dead letters.")
LEFT_OUT: Final = Counter(
    "pulsebridge_ingest_left_out_total",
    "Messages acknowledged and not written: command (would have looped back), broker ($ topics), retained (skipped).",
    ["reason"],
)
RETIRED: Final = Counter(
    "pulsebridge_ingest_producers_retired_total",
    "Producers given up after an error, their messages sent again.",
)
CONNECTIONS: Final = Counter(
    "pulsebridge_ingest_connections_total", "MQTT connections that the broker accepted."
)
CONNECTED: Final = Gauge("pulsebridge_ingest_connected", "1 while the MQTT link is up.")
IN_FLIGHT: Final = Gauge("pulsebridge_ingest_in_flight", "Messages taken from MQTT and not yet stored.")
IN_FLIGHT_LIMIT: Final = Gauge("pulsebridge_ingest_in_flight_limit", "At this many in flight, reading stops.")
IN_FLIGHT_BYTES: Final = Gauge(
    "pulsebridge_ingest_in_flight_bytes", "Bytes taken from MQTT and not yet stored."
)
OLDEST_UNACKED: Final = Gauge(
    "pulsebridge_ingest_oldest_unacked_seconds",
    "Age of the oldest message that is not acknowledged, 0 without one.",
)
TOPICS: Final = Gauge("pulsebridge_ingest_topics", "Pulsar topics that mapping knows.")
PRODUCERS: Final = Gauge("pulsebridge_ingest_producers", "Open producers, one for each partition written to.")

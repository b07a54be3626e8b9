"""Prometheus metrics of the push tier: counters in base units, no device or topic as a label."""

from __future__ import annotations

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

__all__ = ["PushMetrics"]

_NAME: Final = "pulsebridge_push"


class PushMetrics:
    """The metrics of one push process; gauges carry the partition."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.pushed = Counter(
            f"{_NAME}_pushed", "Commands handed to the MQTT link, repeats included", registry=registry
        )
        self.repeated = Counter(f"{_NAME}_repeated", "Commands pushed with repeat=1", registry=registry)
        self.refused = Counter(f"{_NAME}_refused", "PUBACKs that were no success", registry=registry)
        self.receipts = Counter(
            f"{_NAME}_receipts", "Receipts stored, by the command's state", ["state"], registry=registry
        )
        self.dead_letters = Counter(
            f"{_NAME}_dead_letters", "Commands written to the dead letters", registry=registry
        )
        self.takeovers = Counter(
            f"{_NAME}_takeovers", "Partitions that this process became owner of", registry=registry
        )
        self.lost = Counter(
            f"{_NAME}_partitions_lost", "Partitions given up: fenced, or Pulsar was away", registry=registry
        )
        self.pending = Gauge(
            f"{_NAME}_pending", "Commands taken and not acknowledged", ["partition"], registry=registry
        )
        self.in_flight = Gauge(
            f"{_NAME}_in_flight", "Commands pushed and not confirmed", ["partition"], registry=registry
        )

"""What a Spark driver shows of silver. Names begin with ``pulsebridge_silver_``."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter

__all__ = ["SilverMetrics"]


class SilverMetrics:
    """The metrics of the query silver; see the help of each."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.suspects = Counter(
            "pulsebridge_silver_suspects_total",
            "Readings without an id of their own that equal an earlier one of their device: perhaps the same, delivered "
            "twice.",
            registry=registry,
        )

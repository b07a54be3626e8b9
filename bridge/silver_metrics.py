"""What a Spark driver shows of silver. Names begin with ``pulsebridge_silver_``."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

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
        self.judged = Counter(
            "pulsebridge_silver_judged_total",
            "Readings that silver judged, by result: passed, or held in quarantine.",
            ["result"],
            registry=registry,
        )
        self.bad_share = Gauge(
            "pulsebridge_silver_bad_share",
            "Share of readings that failed a rule among those judged within streaming.bad_share_window_s, 0 while they "
            "are fewer than streaming.bad_share_min_rows.",
            registry=registry,
        )
        self.bad_share_limit = Gauge(
            "pulsebridge_silver_bad_share_limit",
            "Share of bad readings beyond which streaming.on_bad_share says what happens; 1 is none.",
            registry=registry,
        )
        self.bad_share_limit.set(1)
        self.unknown_fields = Counter(
            "pulsebridge_silver_unknown_fields_total",
            "Fields of readings that their decoder, named by its filter, does not know.",
            ["decoder"],
            registry=registry,
        )
        self.unfit_values = Counter(
            "pulsebridge_silver_unfit_values_total",
            "Values of readings that do not fit their type and are kept in _rescued_data, by decoder.",
            ["decoder"],
            registry=registry,
        )

"""Metrics of the queries of a Spark driver that read Pulsar. Names begin with ``pulsebridge_source_``.

The label is the query's name, which its author chose. Figures of single partitions are in the query's progress and
in the log: as series they would grow with the topics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from sources.lag import Behind

__all__ = ["QueryMetrics", "SourceMetrics"]

_NAME: Final = "pulsebridge_source"
_QUERY: Final = ("query",)


class SourceMetrics:
    """The metrics of the queries of one driver; see the help of each."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"{_NAME}_{name}_total", text, _QUERY, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, _QUERY, registry=registry)

        self.rows = counter("rows", "Rows that a query took from Pulsar.")
        self.batches = counter("batches", "Micro-batches of a query that took rows from Pulsar.")
        self.partitions = gauge("partitions", "Partitions that a query reads.")
        self.behind_partitions = gauge("behind_partitions", "Partitions of which the last batch leaves entries unread.")
        self.behind_entries = gauge(
            "behind_entries", "Entries that the last batch leaves unread; a producer's batch is one entry."
        )
        self.behind_bytes = gauge("behind_bytes", "Bytes, as stored, that the last batch leaves unread.")
        self.behind_seconds = gauge(
            "behind_seconds",
            "Age of the oldest entry that the last batch leaves unread, by its publish time, 0 without one.",
        )

    def query(self, name: str) -> QueryMetrics:
        """Return the metrics of one query."""
        return QueryMetrics(self, name)


class QueryMetrics:
    """The metrics of one query. Only the thread that receives its batches writes them."""

    def __init__(self, of: SourceMetrics, name: str) -> None:
        self._all = of
        self._name = name
        self.rows = of.rows.labels(name)
        self.batches = of.batches.labels(name)
        self._partitions = of.partitions.labels(name)
        self._behind_partitions = of.behind_partitions.labels(name)
        self._entries = of.behind_entries.labels(name)
        self._bytes = of.behind_bytes.labels(name)
        self._seconds = of.behind_seconds.labels(name)

    def behind(self, partitions: Collection[Behind]) -> None:
        """Set the lag after the last batch, one item for each partition."""
        self._partitions.set(len(partitions))
        self._behind_partitions.set(sum(1 for of in partitions if of.entries))
        self._entries.set(sum(of.entries for of in partitions))
        self._bytes.set(sum(of.size for of in partitions))
        self._seconds.set(max((of.seconds for of in partitions if of.seconds is not None), default=0.0))

    def ended(self) -> None:
        """Remove the lag, because it is not measured after the query has stopped."""
        for gauge in (
            self._all.partitions,
            self._all.behind_partitions,
            self._all.behind_entries,
            self._all.behind_bytes,
            self._all.behind_seconds,
        ):
            gauge.remove(self._name)

"""Metrics of the streaming queries of a Spark driver. Names begin with ``pulsebridge_stream_``.

The label is the query's name, or the table's. ``sources.metrics`` has the lag of queries that read Pulsar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Figures", "StreamMetrics"]

_NAME: Final = "pulsebridge_stream"
_QUERY: Final = ("query",)
_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 60.0, 300.0)


class Figures(NamedTuple):
    """The figures of one micro-batch."""

    rows: int
    """Rows read from its sources."""
    seconds: float
    """From the start of the trigger to its end."""
    phases: Mapping[str, float]
    """Seconds by Spark's names of the steps of a trigger."""
    state_rows: int
    state_bytes: int
    watermark_delay_s: float | None
    """How far the watermark was behind the start of the trigger, None without one."""
    late: int
    """Rows that operators with state dropped because the watermark had passed them."""


class StreamMetrics:
    """The metrics of the queries of one driver; see the help of each."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_NAME}_{name}_total", text, (*_QUERY, *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, _QUERY, registry=registry)

        self._rows = counter("rows", "Rows that a query's micro-batches took from its sources.")
        self._validated = Counter(
            f"{_NAME}_validated_rows_total",
            "Rows that a table's batches validated, by result: good, or bad and written to quarantine.",
            ("table", "result"),
            registry=registry,
        )
        self._late = counter("late_rows", "Rows that arrived after the watermark had passed them.")
        self._phases = counter("phase_seconds", "Time that triggers spent, by Spark's phase.", "phase")
        self._seconds = Histogram(
            f"{_NAME}_batch_seconds",
            "Time from the start of a trigger that had rows to its end.",
            _QUERY,
            buckets=_BUCKETS,
            registry=registry,
        )
        self._state_rows = gauge("state_rows", "Rows of state that a query's last batch left.")
        self._state_bytes = gauge("state_bytes", "Memory that the state of a query uses.")
        self._watermark = gauge(
            "watermark_delay_seconds", "How far the watermark of the last batch was behind the clock."
        )
        self._age = gauge("progress_age_seconds", "Time since a query last finished a batch or found no new data.")

    def began(self, query: str) -> None:
        """Show a query from its start on, even if it never finishes a batch."""
        self.alive(query)

    def progressed(self, query: str, batch: Figures) -> None:
        """Show the figures of a batch."""
        self._rows.labels(query).inc(batch.rows)
        self._late.labels(query).inc(batch.late)
        for phase, seconds in batch.phases.items():
            self._phases.labels(query, phase).inc(seconds)
        if batch.rows:
            self._seconds.labels(query).observe(batch.seconds)
        self._state_rows.labels(query).set(batch.state_rows)
        self._state_bytes.labels(query).set(batch.state_bytes)
        if batch.watermark_delay_s is not None:
            self._watermark.labels(query).set(batch.watermark_delay_s)
        self.alive(query)

    def alive(self, query: str) -> None:
        """Note that a query finished a batch or found no new data."""
        at = self._clock()
        self._age.labels(query).set_function(lambda: self._clock() - at)

    def validated(self, table: str, good: int, bad: int) -> None:
        """Count the rows that a batch wrote to a table and to quarantine."""
        self._validated.labels(table, "good").inc(good)
        self._validated.labels(table, "bad").inc(bad)

    def ended(self, query: str) -> None:
        """Remove the state of a query that has stopped; its counters stay."""
        for gauge in (self._state_rows, self._state_bytes, self._watermark, self._age):
            gauge.remove(query)

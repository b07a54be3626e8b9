"""Traffic metrics with the names of the MoP proxy's design, for dashboards that use them.

``active_connections`` counts open connections. ``connection_stats`` has two values for each link, by the label
``stat``: ``request_rate`` (messages per second) and ``byte_rate`` (payload bytes per second). Both are from the
client's side, as in Pulsar's own proxy. They are rates over the last minute between scrapes, because the design
requires rates. ``client_address`` is the link, never a device; ``broker_address`` is Pulsar.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.intake.metrics import INGEST, IngestMetrics

__all__ = ["MopCollector", "Rates"]

_WINDOW_S: Final = 60.0


class Rates:
    """Rates of two sums over the last minute. The caller of ``add`` provides the time in seconds."""

    def __init__(self, began: float) -> None:
        self._points: deque[tuple[float, float, float]] = deque([(began, 0.0, 0.0)])

    def add(self, now: float, requests: float, size: float) -> tuple[float, float]:
        """Add both sums at ``now``; return their rates per second since the oldest point.

        The newest point that is at least a minute old is kept, so that rarer scrapes cover the time between two.
        """
        points = self._points
        while len(points) > 1 and now - points[1][0] >= _WINDOW_S:
            points.popleft()
        since, requests_then, size_then = points[0]
        points.append((now, requests, size))
        span = now - since
        if span <= 0:
            return 0.0, 0.0
        return (requests - requests_then) / span, (size - size_then) / span


class MopCollector(Collector):
    """A collector that exports the traffic of the MQTT links of ``of`` to Pulsar at ``broker_address``."""

    def __init__(
        self, broker_address: str, of: IngestMetrics = INGEST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker_address = broker_address
        self._of = of
        self._clock = clock
        self._began = clock()
        self._rates: dict[str, Rates] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield both families."""
        now = self._clock()
        connections = GaugeMetricFamily("active_connections", "Links that are connected.")
        stats = GaugeMetricFamily(
            "connection_stats",
            "Messages (request_rate) and payload bytes (byte_rate) per second over the last minute.",
            labels=("client_address", "broker_address", "stat"),
        )
        connected = _by_link(self._of.connected)
        requests, sizes = (_by_link(self._of.counters[name]) for name in ("received", "received_bytes"))
        connections.add_metric((), sum(connected.values()))
        for link in connected:
            rates = self._rates.setdefault(link, Rates(self._began))
            found = rates.add(now, requests.get(link, 0.0), sizes.get(link, 0.0))
            for name, rate in zip(("request_rate", "byte_rate"), found, strict=True):
                stats.add_metric((link, self._broker_address, name), rate)
        yield connections
        yield stats


def _by_link(family: Counter | Gauge) -> dict[str, float]:
    samples = (s for metric in family.collect() for s in metric.samples if not s.name.endswith("_created"))
    return {s.labels["link"]: s.value for s in samples}

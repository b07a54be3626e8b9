"""Metrics with the names of the MoP proxy's design, for dashboards that use them.

``active_connections`` is the number of connections of devices, as the MQTT brokers and our own listeners count them.
``connection_stats`` has two values for each connection to Pulsar, by the label ``stat``: ``request_rate`` (messages
per second) and ``byte_rate`` (payload bytes per second), over the last minute between scrapes, because the design
requires rates.

``client_address`` is the MQTT broker that devices are connected to, or the protocol of our own listeners, never a
device. ``broker_address`` is the Pulsar broker that owns the topic.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["TRAFFIC", "MopCollector", "Rates", "Traffic"]

_WINDOW_S: Final = 60.0


class Traffic:
    """Sums of messages and payload bytes, by the addresses at both ends."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, writer: str, client_address: str, broker_address: str, messages: int, size: int) -> None:
        """Add to the sums. ``writer`` names a link or partition; one thread calls it for each."""
        sums = self._sums[writer, client_address, broker_address]
        sums[0] += messages
        sums[1] += size

    def sums(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return messages and bytes by ``client_address`` and ``broker_address``. Any thread may call it."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for (_, *ends), (messages, size) in list(self._sums.items()):
            before = found.get((ends[0], ends[1]), (0, 0))
            found[ends[0], ends[1]] = before[0] + messages, before[1] + size
        return found


TRAFFIC: Final = Traffic()
"""The traffic of this process."""


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
    """Exports both families. ``connections`` returns the known numbers of connections, by ``client_address``."""

    def __init__(
        self,
        connections: Callable[[], Mapping[str, float]] = dict,
        traffic: Traffic = TRAFFIC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._traffic = traffic
        self._clock = clock
        self._began = clock()
        self._rates: dict[tuple[str, str], Rates] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield both families."""
        now = self._clock()
        connections = GaugeMetricFamily(
            "active_connections",
            "Connections of devices, as this broker or listener counts them.",
            None,
            ("client_address",),
        )
        stats = GaugeMetricFamily(
            "connection_stats",
            "Messages (request_rate) and payload bytes (byte_rate) per second over the last minute.",
            labels=("client_address", "broker_address", "stat"),
        )
        for address, count in self._connections().items():
            connections.add_metric((address,), count)
        for ends, sums in self._traffic.sums().items():
            rates = self._rates.setdefault(ends, Rates(self._began)).add(now, *sums)
            for name, rate in zip(("request_rate", "byte_rate"), rates, strict=True):
                stats.add_metric((*ends, name), rate)
        yield connections
        yield stats

"""Exports figures of a driver's micro-batches to Prometheus, and reports running queries to its health.

``spark.streams.addListener(QueryProgress(StreamMetrics()))``; ``bridge.metrics.serving`` serves them. The figures are
rows, time, state and watermark, from Spark's progress of each batch. ``sources.progress`` exports the lag to Pulsar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bridge.health import Health, Part
from sources.batch_figures import figures_of
from sources.spark_internals import JsonListener
from sources.stream_metrics import StreamMetrics

__all__ = ["QueryProgress"]

_UNNAMED: Final = "unnamed"


class QueryProgress(JsonListener):
    """Follows every query of its session.

    Called by Spark on the thread of py4j's callbacks. Spark logs its errors, which stop nothing.
    """

    def __init__(self, metrics: StreamMetrics, health: Health | None = None, expected: Sequence[str] = ()) -> None:
        """``health`` gets a part for each query, which is ready after its first trigger.

        Queries named in ``expected`` have a part from the beginning.
        """
        self._metrics = metrics
        self._health = health or Health()
        self._parts = {name: self._health.part(f"query {name}") for name in expected}
        self._names: dict[str, str] = {}
        """Id of a running run to the name of its query."""

    def onQueryStarted(self, event: Any) -> None:
        """Triggered when a query has started."""
        name = self._name(str(event.runId), event.name)
        self._metrics.began(name)
        self._part(name).waits("its first trigger has not ended")

    def onQueryProgress(self, event: Any) -> None:
        """Triggered after each micro-batch."""
        progress = json.loads(event.progress.json)
        name = self._name(str(progress["runId"]), progress.get("name"))
        self._metrics.progressed(name, figures_of(progress))
        self._part(name).ready()

    def onQueryIdle(self, event: Any) -> None:
        """Triggered periodically while a query finds no new data."""
        name = self._names.get(str(event.runId))
        if name is not None:
            self._metrics.alive(name)
            self._part(name).ready()

    def onQueryTerminated(self, event: Any) -> None:
        """Triggered when a query has ended."""
        name = self._names.pop(str(event.runId), None)
        if name is not None and name not in self._names.values():
            self._metrics.ended(name)
            self._part(name).waits("it failed" if event.exception else "it was stopped")

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            self._parts[name] = self._health.part(f"query {name}")
        return self._parts[name]

    def _name(self, run: str, name: str | None) -> str:
        return self._names.setdefault(run, name or _UNNAMED)

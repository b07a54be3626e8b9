"""Exports to Prometheus what the micro-batches of a driver's queries are, rows, time, state and watermark, and the
driver's health which of them run.

``spark.streams.addListener(QueryProgress(StreamMetrics()))``, beside ``bridge.metrics.serving``. The figures are read
from the progress that Spark makes of each batch. How far a query is behind Pulsar is left to ``sources.progress``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bridge.health import Health, Part
from bridge.stream_metrics import StreamMetrics
from sources.batch_figures import figures_of
from sources.spark_internals import JsonListener

__all__ = ["QueryProgress"]

_UNNAMED: Final = "unnamed"


class QueryProgress(JsonListener):
    """Follows every query of its session. Called by Spark on the thread of py4j's callbacks; what it raises is logged
    by Spark and stops nothing.
    """

    def __init__(self, metrics: StreamMetrics, health: Health | None = None, expected: Sequence[str] = ()) -> None:
        """``health`` gets a part for each query, which is ready from the end of its first trigger on; those of the
        names ``expected`` are missing from the beginning.
        """
        self._metrics = metrics
        self._health = health or Health()
        self._parts = {name: self._health.part(f"query {name}") for name in expected}
        self._names: dict[str, str] = {}
        """Id of a run that goes on to the name of its query."""

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
        """Triggered now and then while a query finds nothing new."""
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

"""Tells Prometheus what the micro-batches of a driver's queries are: rows, time, lag, state and watermark.

``spark.streams.addListener(QueryProgress(StreamMetrics()))``, beside ``bridge.metrics.serving``. The figures are read
from the progress that Spark makes of each batch. How far a query is behind Pulsar is left to ``sources.progress``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.streaming import StreamingQueryListener

from bridge.stream_metrics import StreamMetrics
from streaming.batch_figures import figures_of

__all__ = ["QueryProgress"]

_UNNAMED: Final = "unnamed"


class QueryProgress(StreamingQueryListener):
    """Follows every query of its session. Called by Spark on the thread of py4j's callbacks; what it raises is logged
    by Spark and stops nothing.
    """

    def __init__(self, metrics: StreamMetrics) -> None:
        self._metrics = metrics
        self._names: dict[str, str] = {}
        """Id of a run that goes on to the name of its query."""

    def onQueryStarted(self, event: Any) -> None:
        """Triggered when a query has started."""
        self._metrics.began(self._name(str(event.runId), event.name))

    def onQueryProgress(self, event: Any) -> None:
        """Triggered after each micro-batch."""
        progress = json.loads(event.progress.json)
        name = self._name(str(progress["runId"]), progress.get("name"))
        self._metrics.progressed(name, figures_of(progress))

    def onQueryIdle(self, event: Any) -> None:
        """Triggered now and then while a query finds nothing new."""
        name = self._names.get(str(event.runId))
        if name is not None:
            self._metrics.idle(name)

    def onQueryTerminated(self, event: Any) -> None:
        """Triggered when a query has ended."""
        name = self._names.pop(str(event.runId), None)
        if name is not None and name not in self._names.values():
            self._metrics.ended(name)

    def _name(self, run: str, name: str | None) -> str:
        return self._names.setdefault(run, name or _UNNAMED)

"""Reports the lag of a driver's queries: in the log, and to Prometheus.

``spark.streams.addListener(SourceProgress())``; ``bridge.metrics.serving`` serves it to scrapers. The figures are
those of the query's own progress (``latestOffset.behind``), made by ``sources.lag``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry

from bridge.loggers import get_logger
from sources.lag import BEHIND, Behind
from sources.metrics import QueryMetrics, SourceMetrics
from sources.spark_internals import JsonListener

__all__ = ["SourceProgress", "lag_of"]

_log = get_logger("source")
_LOG_EVERY_S: Final = 60.0
"""How often the lag of a query is logged above DEBUG."""
_NAMED: Final = 5
"""Partitions named in a log line, those with the most bytes first."""
_UNNAMED: Final = "unnamed"


def lag_of(source: Mapping[str, Any]) -> dict[str, Behind] | None:
    """Return the lag of one source in a progress, by partition. None for another kind of source."""
    latest = source.get("latestOffset")
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return None
    if not isinstance(latest, dict) or not isinstance(latest.get(BEHIND), dict):
        return None
    return {
        str(name): Behind(int(of["entries"]), int(of["bytes"]), of["seconds"]) for name, of in latest[BEHIND].items()
    }


class SourceProgress(JsonListener):
    """Follows every query of its session that reads this source.

    Called by Spark on the thread of py4j's callbacks. Spark logs its errors, which stop nothing.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = SourceMetrics(registry)
        self._queries: dict[str, tuple[str, QueryMetrics]] = {}
        """Id of a run to the name and the metrics of its query."""
        self._logged_at: dict[str, float] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Triggered when a query has started; its first batch shows whether it reads this source."""

    def onQueryProgress(self, event: Any) -> None:
        """Triggered after each micro-batch."""
        progress = json.loads(event.progress.json)
        found: dict[str, Behind] = {}
        rows = 0
        ours = False
        for source in progress.get("sources", ()):
            behind = lag_of(source)
            if behind is not None:
                ours = True
                found |= behind
                rows += max(0, int(source.get("numInputRows") or 0))
        if ours:
            self._report(str(progress["runId"]), progress.get("name") or _UNNAMED, found, rows)

    def onQueryIdle(self, event: Any) -> None:
        """Triggered when a query found no new data; the last figures stay valid."""

    def onQueryTerminated(self, event: Any) -> None:
        """Triggered when a query has ended."""
        run = str(event.runId)
        self._logged_at.pop(run, None)
        name, metrics = self._queries.pop(run, (None, None))
        if metrics is not None and all(name != other for other, _ in self._queries.values()):
            metrics.ended()

    def _report(self, run: str, name: str, behind: Mapping[str, Behind], rows: int) -> None:
        if run not in self._queries:
            self._queries[run] = (name, self._metrics.query(name))
        metrics = self._queries[run][1]
        metrics.behind(behind.values())
        metrics.rows.inc(rows)
        metrics.batches.inc(1 if rows else 0)
        late = {of: waiting for of, waiting in behind.items() if waiting.entries}
        now = time.monotonic()
        log = _log.debug
        if late and now - self._logged_at.get(run, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_at[run] = now
            log = _log.info
        worst = sorted(late.items(), key=lambda item: -item[1].size)[:_NAMED]
        log(
            "lag of the query",
            query=name,
            rows=rows,
            entries=sum(of.entries for of in late.values()),
            bytes=sum(of.size for of in late.values()),
            seconds=max((of.seconds for of in late.values() if of.seconds is not None), default=0.0),
            partitions=len(late),
            most={of: waiting._asdict() for of, waiting in worst},
        )

"""Tells of the queries of a driver how far they are behind: in the log, and to Prometheus.

``spark.streams.addListener(SourceProgress())``, beside ``bridge.metrics.serving`` for who wants to scrape it. The
figures are those of the query's own progress (``latestOffset.behind``), which ``sources.lag`` makes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry

from bridge.contract import Behind
from bridge.loggers import get_logger
from bridge.source_metrics import QueryMetrics, SourceMetrics
from sources.lag import BEHIND
from sources.spark_internals import JsonListener

__all__ = ["SourceProgress", "behind_of"]

_log = get_logger("source")
_SAY_S: Final = 60.0
"""How often a query that is behind says so above DEBUG."""
_NAMED: Final = 5
"""Partitions that a line of the log names, those with the most bytes first."""
_UNNAMED: Final = "unnamed"


def behind_of(source: Mapping[str, Any]) -> dict[str, Behind] | None:
    """Return what one source of a query's progress leaves unread, by partition; None when it is not this source."""
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
    """Follows every query of its session that reads this source. Called by Spark on the thread of py4j's callbacks;
    what it raises is logged by Spark and stops nothing.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = SourceMetrics(registry)
        self._queries: dict[str, tuple[str, QueryMetrics]] = {}
        """Id of a run to the name and the metrics of its query."""
        self._said: dict[str, float] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Triggered when a query has started; what it reads is seen with its first batch."""

    def onQueryProgress(self, event: Any) -> None:
        """Triggered after each micro-batch."""
        progress = json.loads(event.progress.json)
        found: dict[str, Behind] = {}
        rows = 0
        ours = False
        for source in progress.get("sources", ()):
            behind = behind_of(source)
            if behind is not None:
                ours = True
                found |= behind
                rows += max(0, int(source.get("numInputRows") or 0))
        if ours:
            self._tell(str(progress["runId"]), progress.get("name") or _UNNAMED, found, rows)

    def onQueryIdle(self, event: Any) -> None:
        """Triggered when a query found nothing new; the last figures hold."""

    def onQueryTerminated(self, event: Any) -> None:
        """Triggered when a query has ended."""
        run = str(event.runId)
        self._said.pop(run, None)
        name, metrics = self._queries.pop(run, (None, None))
        if metrics is not None and all(name != other for other, _ in self._queries.values()):
            metrics.ended()

    def _tell(self, run: str, name: str, behind: Mapping[str, Behind], rows: int) -> None:
        if run not in self._queries:
            self._queries[run] = (name, self._metrics.query(name))
        metrics = self._queries[run][1]
        metrics.behind(behind.values())
        metrics.rows.inc(rows)
        metrics.batches.inc(1 if rows else 0)
        late = {of: waiting for of, waiting in behind.items() if waiting.entries}
        now = time.monotonic()
        say = _log.debug
        if late and now - self._said.get(run, -_SAY_S) >= _SAY_S:
            self._said[run] = now
            say = _log.info
        worst = sorted(late.items(), key=lambda item: -item[1].size)[:_NAMED]
        say(
            "behind",
            query=name,
            rows=rows,
            entries=sum(of.entries for of in late.values()),
            bytes=sum(of.size for of in late.values()),
            seconds=max((of.seconds for of in late.values() if of.seconds is not None), default=0.0),
            partitions=len(late),
            most={of: waiting._asdict() for of, waiting in worst},
        )

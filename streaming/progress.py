"""Writes each micro-batch's figures to ``<root>/progress.jsonl``, one JSON line a batch, for reports and notebooks.

Only where the root is a local folder. What the figures are used for is left to the reader of the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sources.listening import JsonListener

__all__ = ["ProgressFile", "progress_file"]


def progress_file(root: str) -> Path | None:
    """Return the file's path, None when the root is not a local folder."""
    return None if "://" in root else Path(root) / "progress.jsonl"


class ProgressFile(JsonListener):
    """Appends a line for each micro-batch that had rows. Called by Spark on the thread of py4j's callbacks."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def onQueryStarted(self, event: Any) -> None:
        """Triggered when a query has started; nothing to write yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Triggered after each micro-batch. What it raises is logged by Spark and stops nothing."""
        progress = json.loads(event.progress.json)
        if not progress.get("numInputRows"):
            return
        line = {
            "query": progress["name"],
            "batch": progress["batchId"],
            "started": progress["timestamp"],
            "rows": progress["numInputRows"],
            "duration_ms": progress["durationMs"],
            "sources": [
                {k: s.get(k) for k in ("description", "numInputRows", "metrics")}
                for s in progress.get("sources", ())
            ],
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def onQueryIdle(self, event: Any) -> None:
        """Triggered when a query found nothing new; an idle query writes nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Triggered when a query has ended; the job says so itself."""

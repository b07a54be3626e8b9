"""What Spark 4.2 can do more with a streaming query: limits per trigger, Trigger.AvailableNow in several batches, the
source's own part of the progress. Imported only there: older Sparks lack the classes.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sources.offsets import Offset
from sources.planning import Limits
from sources.stream_reader import PulsebridgeStreamReader

__all__ = ["AdmissionStreamReader"]


class AdmissionStreamReader(PulsebridgeStreamReader, SupportsTriggerAvailableNow):
    """A streaming query whose triggers are bounded."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Called before each trigger: one of Spark's limits stands for all those of the options."""
        limits = self._options.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.size is not None:
            return ReadMaxBytes(limits.size)
        if limits.entries is not None:
            # the one of Spark's own kinds that counts neither rows nor bytes
            return ReadMaxFiles(limits.entries)
        if limits.least_rows is not None:
            return ReadMinRows(limits.least_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        """Called for each trigger with the last offset; returns it unchanged when there is nothing new."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self.planner.latest_offset(Offset.from_json(start), limits).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Called for the query's progress: the end as the last trigger saw it, and what it leaves unread."""
        return None if self._planner is None else self._planner.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Called once, first, with Trigger.AvailableNow."""
        self.planner.note_ceiling()

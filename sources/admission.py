"""Streaming features of Spark 4.2: limits per trigger, and lag in a query's progress.

``Trigger.AvailableNow`` runs several batches. Only Spark 4.2 imports this module: older Sparks lack the classes.
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
        """Called before each trigger. Returns one of Spark's limits, which replaces those of the options."""
        limits = self._options.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.size is not None:
            return ReadMaxBytes(limits.size)
        if limits.entries is not None:
            # the only limit of Spark's that counts neither rows nor bytes
            return ReadMaxFiles(limits.entries)
        if limits.least_rows is not None:
            return ReadMinRows(limits.least_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        """Called for each trigger with the last offset. Returns it unchanged if there is no new data."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self.planner.latest_offset(Offset.from_json(start), limits).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Called for the query's progress. Returns the end at the last trigger, and the unread entries."""
        return None if self._planner is None else self._planner.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Called once, first, with Trigger.AvailableNow."""
        self.planner.note_ceiling()

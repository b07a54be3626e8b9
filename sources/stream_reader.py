"""The reader of a streaming query for Spark 4.0 and 4.1. ``sources.admission`` adds the features of 4.2.

Except ``read``, Spark calls all methods in the planner process of the query, on the query's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bridge.errors import PulsebridgeError
from sources import partitions
from sources.notes import log_notes
from sources.offsets import Offset
from sources.spark_features import lacking_in_stream, spark_features
from sources.spark_internals import prefetching

if TYPE_CHECKING:
    from sources.options import SourceOptions
    from sources.stream import StreamPlanner

__all__ = ["PulsebridgeStreamReader"]


class PulsebridgeStreamReader(DataSourceStreamReader):
    """A streaming query, if Spark requests the latest offset without passing the last one."""

    def __init__(self, options: SourceOptions | PulsebridgeError) -> None:
        self._checked = options
        self._planner: StreamPlanner | None = None
        self._at_hand: list[list[Any]] | None = None
        """Arrow record batches of the planned batch by task, None if tasks must read."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_checked": self._checked, "_planner": None, "_at_hand": None}

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._checked, PulsebridgeError):
            raise self._checked
        return self._checked

    @property
    def planner(self) -> StreamPlanner:
        """The driver's part, connected at the first call."""
        if self._planner is None:
            from sources.stream import StreamPlanner

            self._planner = StreamPlanner(self._options)
            if prefetching() is None and self._options.hot_tail_bytes:
                log_notes(["hotTailBytes has no effect: this Spark cannot read rows from the planner"], None)
            log_notes(self._options.notes, lacking_in_stream(spark_features(), self._options))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Called several times while no batch is committed. An error here fails the query."""
        return self.planner.initial_offset().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Called for each trigger, after ``partitions`` with the last offset.

        For a new query, and with Trigger.AvailableNow, it is the first call.
        """
        return self.planner.present_end().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for each batch, and for its replay after a restart.

        Called twice with the last offset if a query continues from a checkpoint.
        """
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        tasks = self.planner.tasks(begin, stop)
        if prefetching() is not None:
            self._at_hand = self.planner.rows_at_hand(begin, stop, tasks)
        return partitions.ranges(tasks, together=self._at_hand is not None)

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """Called right after ``partitions`` if it has the rows. Spark uses them instead of a task's."""
        rows, self._at_hand = self._at_hand, None
        return chain.from_iterable(rows or ())

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class for Spark's isinstance: while there are rows, that of a prefetching reader."""
        return type(self) if self._at_hand is None else prefetching() or type(self)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called in a Python worker, for each task; uses no state of this object."""
        return partitions.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the batch that ended at ``end`` is in the commit log. An error fails the query."""
        self.planner.commit(Offset.from_json(end))

    def stop(self) -> None:
        """Called when the query or its driver has stopped; the subscription stays."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

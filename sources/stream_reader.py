"""The reader of a streaming query, as Spark 4.0 and 4.1 call it; ``sources.admission`` adds what 4.2 can do more.

All but ``read`` is called in the planner process that Spark keeps for the query, on the query's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bridge.errors import PulsebridgeError
from sources import partitions
from sources.notes import say
from sources.offsets import Offset
from sources.spark_features import lacking_in_stream, spark_features
from sources.spark_internals import prefetching

if TYPE_CHECKING:
    from sources.options import SourceOptions
    from sources.stream import StreamPlanner

__all__ = ["PulsebridgeStreamReader"]


class PulsebridgeStreamReader(DataSourceStreamReader):
    """A streaming query, where Spark asks for the latest offset without saying which was the last."""

    def __init__(self, options: SourceOptions | PulsebridgeError) -> None:
        self._checked = options
        self._planner: StreamPlanner | None = None
        self._at_hand: list[list[Any]] | None = None
        """The Arrow record batches of each task of the batch just planned, where none has to read them."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_checked": self._checked, "_planner": None, "_at_hand": None}

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._checked, PulsebridgeError):
            raise self._checked
        return self._checked

    @property
    def planner(self) -> StreamPlanner:
        """The driver's side, connected at the first call."""
        if self._planner is None:
            from sources.stream import StreamPlanner

            self._planner = StreamPlanner(self._options)
            if prefetching() is None and self._options.hot_tail_bytes:
                say(["hotTailBytes changes nothing here: this Spark takes no rows from the planner"], None)
            say(self._options.notes, lacking_in_stream(spark_features(), self._options))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Called while no batch is committed, several times; what raises here fails the query."""
        return self.planner.initial_offset().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Called for each trigger: first of all by a new query and with Trigger.AvailableNow, else after
        ``partitions`` with the last offset.
        """
        return self.planner.present_end().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for each batch, again when it is replayed after a restart, and with the last offset twice when a
        query goes on from a checkpoint.
        """
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        tasks = self.planner.tasks(begin, stop)
        if prefetching() is not None:
            self._at_hand = self.planner.rows_at_hand(begin, stop, tasks)
        return partitions.ranges(tasks, together=self._at_hand is not None)

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """Called right after ``partitions`` where it has rows at hand; Spark takes them in place of a task's."""
        rows, self._at_hand = self._at_hand, None
        return chain.from_iterable(rows or ())

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What Spark sees with isinstance: a reader that hands rows over while there are some, else what this is."""
        return type(self) if self._at_hand is None else prefetching() or type(self)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called in a Python worker, for each task; uses nothing of this object."""
        return partitions.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the batch that ended at ``end`` is in the commit log; raising fails the query."""
        self.planner.commit(Offset.from_json(end))

    def stop(self) -> None:
        """Called when the query stops or its driver is gone; the subscription stays."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

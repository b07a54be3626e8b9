"""The stateful processors of the tables. Spark calls one for each edge node of a micro-batch.

Spark keeps the state of each batch with its offsets, so a repeated batch starts from the same state and gives the same
rows. Pulsar keeps a node's messages in order in one partition, so a later batch has later messages.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType

from sparkplug.nodes import Births, NodeState
from sparkplug.rows import EVENT_ROW, METRIC_ROW, Message, event_rows, metric_rows

__all__ = ["EventProcessor", "MetricProcessor"]

_TEXT: Final = StructType([StructField("text", StringType())])
"""States are JSON text, so their content can change without a new Spark schema."""
_Metric: Final = Row(*(name for name, _ in METRIC_ROW))
_Event: Final = Row(*(name for name, _ in EVENT_ROW))


class _Processor(StatefulProcessor):
    def __init__(self, rebirth_us: int) -> None:
        self._rebirth_us = rebirth_us
        self._node: Any = None
        self._births: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first for each partition of a batch."""
        self._node = handle.getValueState("node", _TEXT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Called for each node with rows in the batch. An exception fails the query."""
        messages = sorted(Message(*row[1:]) for row in rows)
        found = self._node.get()
        state = NodeState() if found is None else NodeState.of_json(found[0])
        yield from self._rows(state, messages)
        self._node.update((state.to_json(),))

    def _rows(self, state: NodeState, messages: list[Message]) -> Iterator[Row]:
        raise NotImplementedError

    def close(self) -> None:
        """Called last. It has nothing to close."""


class EventProcessor(_Processor):
    """Gives a row for each event of a node's sessions."""

    def _rows(self, state: NodeState, messages: list[Message]) -> Iterator[Row]:
        for row in event_rows(state, messages, self._rebirth_us):
            yield _Event(*row)


class MetricProcessor(_Processor):
    """Gives a row for each metric of a node's messages."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first for each partition of a batch."""
        super().init(handle)
        self._births = handle.getMapState("births", StructType([StructField("device", StringType())]), _TEXT)

    def _rows(self, state: NodeState, messages: list[Message]) -> Iterator[Row]:
        for row in metric_rows(state, Births(_Stored(self._births)), messages, self._rebirth_us):
            yield _Metric(*row)


class _Stored(MutableMapping[str, str]):
    """The births of the node at hand, read from Spark's state one device at a time."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getitem__(self, device: str) -> str:
        found = self._state.getValue((device,))
        if found is None:
            raise KeyError(device)
        return str(found[0])

    def __setitem__(self, device: str, births: str) -> None:
        self._state.updateValue((device,), (births,))

    def __delitem__(self, device: str) -> None:
        self._state.removeKey((device,))

    def __iter__(self) -> Iterator[str]:
        return (str(key[0]) for key, _ in self._state.iterator())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Forget all births."""
        self._state.clear()

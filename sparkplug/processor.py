"""The rows of edge nodes in Spark: of a micro-batch with the state of each node, or of all messages from the first on.

Spark passes on the rows of a stateful processor one by one, as dictionaries, which costs more than to decode them. So a
processor gives packed rows, many in one, and ``unpacked`` makes columns of them.

Spark keeps the state of each batch with its offsets, so a repeated batch starts from the same state and gives the same
rows. Pulsar keeps a node's messages in order in one partition, so a later batch has later messages.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructField, StructType

from sparkplug.nodes import Births, NodeState
from sparkplug.rows import EVENT_ROW, METRIC_ROW, Message, event_rows, metric_rows

if TYPE_CHECKING:
    import pyarrow

__all__ = ["PACKED", "EventProcessor", "MetricProcessor", "Processor", "replayed", "unpacked"]

PACKED: Final = "packed binary"
"""Type of what a processor gives."""
_TEXT: Final = StructType([StructField("text", StringType())])
"""States are JSON text, so their content can change without a new Spark schema."""
_PART_BYTES: Final = 256 * 1024
"""Payloads whose rows are packed in one."""
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 16 * 1024 * 1024
"""A batch of columns ends when it has so many rows, or was made of so many bytes."""


class Processor(StatefulProcessor):
    """Gives the rows of an edge node. ``columns`` are their names with SQL types."""

    columns: tuple[tuple[str, str], ...]

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
        for _, part in self.parts(state, Births(_Stored(self._births)), messages):
            if part:
                yield Row(packed=pickle.dumps(part, pickle.HIGHEST_PROTOCOL))
        self._node.update((state.to_json(),))

    def parts(
        self, state: NodeState, births: Births, messages: Iterable[Message]
    ) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Yield the rows of a node's messages in parts, each with the bytes of its payloads."""
        size, some = 0, list[Message]()
        for message in messages:
            some.append(message)
            size += len(message.payload)
            if size >= _PART_BYTES:
                yield size, list(self.rows(state, births, some))
                size, some = 0, []
        if some:
            yield size, list(self.rows(state, births, some))

    def rows(self, state: NodeState, births: Births, messages: list[Message]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a node's messages, and change its state."""
        raise NotImplementedError

    def close(self) -> None:
        """Called last. It has nothing to close."""


class EventProcessor(Processor):
    """Gives a row for each event of a node's sessions."""

    columns = EVENT_ROW

    def rows(self, state: NodeState, births: Births, messages: list[Message]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a node's messages, and change its state."""
        return event_rows(state, messages, self._rebirth_us)


class MetricProcessor(Processor):
    """Gives a row for each metric of a node's messages."""

    columns = METRIC_ROW

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first for each partition of a batch."""
        super().init(handle)
        self._births = handle.getMapState("births", StructType([StructField("device", StringType())]), _TEXT)

    def rows(self, state: NodeState, births: Births, messages: list[Message]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a node's messages, and change its state and its births."""
        return metric_rows(state, births, messages, self._rebirth_us)


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


Batches = Callable[[Iterable["pyarrow.RecordBatch"]], Iterator["pyarrow.RecordBatch"]]


def unpacked(processor: Processor) -> Batches:
    """Return the function for ``mapInArrow`` that makes the rows of a processor of packed ones."""
    columns = processor.columns

    def batches(given: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        packed = (one.as_py() for batch in given for one in batch.column(0))
        return _batches(columns, ((len(one), pickle.loads(one)) for one in packed))

    return batches


def replayed(processor: Processor) -> Batches:
    """Return the function for ``mapInArrow`` that makes the rows of all messages of edge nodes, from the first on.

    The columns are the node and those of ``Message``. The messages of a node follow each other, in the order of the log.
    """

    def batches(given: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        rows = (row for batch in given for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        parts = (
            part
            for _, of_node in groupby(rows, itemgetter(0))
            for part in processor.parts(NodeState(), Births({}), (Message(*row[1:]) for row in of_node))
        )
        return _batches(processor.columns, parts)

    return batches


def _batches(
    columns: tuple[tuple[str, str], ...], parts: Iterable[tuple[int, list[tuple[Any, ...]]]]
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    kinds = {
        "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_(),
        "binary": pa.binary(), "decimal(20,0)": pa.decimal128(20, 0),
    }  # fmt: skip
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns])

    def batch(rows: list[tuple[Any, ...]]) -> pyarrow.RecordBatch:
        lists = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(lists, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    size, rows = 0, list[tuple[Any, ...]]()
    for more, part in parts:
        size += more
        rows += part
        if rows and (len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES):
            yield batch(rows)
            size, rows = 0, []
    if rows:
        yield batch(rows)

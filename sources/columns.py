"""Builds Arrow record batches from Pulsar messages, only the requested columns.

Bytes of payload and key are unchanged, times are UTC with microseconds, missing values are null. Column names and
types are those of ``bridge.contract.SOURCE_COLUMNS``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bridge import contract
from bridge.contract import SOURCE_COLUMNS, partition_number
from bridge.errors import ContractError, TerminalError
from bridge.pulsar.wire.protobuf import varint
from sources.arrays import array, fixed_width, joined, texts, variable_width
from sources.entries import Entry, Kind, Rows, message_id

__all__ = ["ARROW_TYPES", "arrow_schema", "record_batch"]

_TIME: Final = pa.timestamp("us", tz="UTC")

ARROW_TYPES: Final[Mapping[str, Any]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "timestamp": _TIME,
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<struct<name:string,value:string>>": pa.list_(
        pa.field("element", pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
    ),
}
"""Spark SQL type to the Arrow type that Spark expects."""


def arrow_schema(columns: Sequence[str], keys: str = "text", decoded: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the Arrow schema of these columns, in this order.

    ``keys`` is ``text``, ``bytes`` (as stored) or ``base64`` (the bytes that the text encodes); ``decoded`` has the
    types of the columns decoded from the payload.
    """
    types = {name: ARROW_TYPES[kind] for name, kind in SOURCE_COLUMNS}
    if keys != "text":
        types["__key"] = pa.binary()
    return pa.schema([pa.field(name, decoded.get(name) or types[name]) for name in columns])


def record_batch(
    schema: Any,
    topic: str,
    partition: str,
    rows: Rows,
    *,
    keys: str = "text",
    decoded: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Build one batch of these rows; ``topic`` is written to ``__topic``.

    ``decoded`` has the columns decoded from the payloads. Raises TerminalError for a key that should be base64 and
    is not.
    """
    batch = _Batch(topic, partition, rows, keys)
    arrays = [decoded.get(field.name) if field.name in decoded else _array(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Batch:
    """The rows, with values that several columns share, computed once."""

    def __init__(self, topic: str, partition: str, rows: Rows, keys: str) -> None:
        self.keys = keys
        self.topic = topic
        self.partition = partition
        self.rows = rows

    @cached_property
    def payloads(self) -> Any:
        return variable_width(self.rows.payloads, pa.binary())

    @cached_property
    def kind_numbers(self) -> Any:
        """Index of the kind of each row."""
        return np.array(self.rows.kind_of, np.int32)

    @cached_property
    def kind_of(self) -> Any:
        """The same, for Arrow."""
        return fixed_width(self.kind_numbers, pa.int32())

    @cached_property
    def event_ms(self) -> Any:
        """Event times in ms, 0 for none."""
        return np.array(self.rows.events, np.int64)

    def per_entry(self, value: Callable[[Entry], int]) -> Any:
        """Return a value of the entry of each row."""
        entries = self.rows.entries
        return np.repeat(np.fromiter(map(value, entries), np.int64, len(entries)), self.rows.counts)

    @cached_property
    def indexes(self) -> Any:
        """Index of each row in its batch, 0 for a row without batch."""
        rows = self.rows
        if rows.indexes is not None:
            return np.array(rows.indexes, np.int32)
        counts = np.array(rows.counts, np.int32)
        return np.arange(len(rows), dtype=np.int32) - np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)


def _array(batch: _Batch, field: Any) -> Any:
    name, kinds = field.name, batch.rows.kinds
    if name in _OF_ROW:
        found = _OF_ROW[name](batch)
        return fixed_width(found, field.type) if isinstance(found, np.ndarray) else found
    if name == "__messageProperties":
        found = _properties(kinds)
    elif name == "__key":
        found = array([_key(kind, batch) for kind in kinds], field.type)
    else:
        found = array([_OF_KIND[name](kind) for kind in kinds], field.type)
    return found.take(batch.kind_of)


def _key(kind: Kind, batch: _Batch) -> str | bytes | None:
    if kind.key is None or batch.keys == "bytes":
        return kind.key
    if batch.keys == "text":
        return kind.key.decode("utf-8", "replace")
    try:
        return base64.b64decode(kind.key, validate=True)
    except ValueError as e:
        raise TerminalError(
            f"{batch.partition}: keyEncoding is base64, and a key is not base64: {e}",
            remedy="set keyEncoding=text (the default): then __key is the key as stored",
        ) from e


_KEPT_SIZE: Final = 4096


def _endings(size: int) -> tuple[list[bytes], Any]:
    """Return the message id suffixes of a batch, field 4 (index), then field 6 (size), and their lengths."""
    tail = b"\x30" + varint(size)
    endings = [b"\x20" + varint(index) + tail for index in range(size)]
    return endings, np.fromiter(map(len, endings), np.int32, size)


_kept_endings: Final = lru_cache(maxsize=64)(_endings)


def _message_ids(batch: _Batch) -> Any:
    number = partition_number(batch.partition)
    parts: list[bytes] = []
    lengths: list[Any] = []
    indexes = None if batch.rows.indexes is None else iter(batch.rows.indexes)
    for entry, count in zip(batch.rows.entries, batch.rows.counts, strict=True):
        if not count:
            continue
        head = message_id(entry, number)
        mine = None if indexes is None else list(islice(indexes, count))
        endings, sizes = [b""], np.zeros(1, np.int32)
        if entry.batched:
            endings, sizes = (_kept_endings if entry.size <= _KEPT_SIZE else _endings)(entry.size)
            if mine is not None:
                endings, sizes = [endings[index] for index in mine], sizes[mine]
        parts += [head, head.join(endings)]  # the head before each ending
        lengths.append(sizes + np.int32(len(head)))
    return joined(b"".join(parts), np.concatenate([_NONE, *lengths]), pa.binary())


_NONE: Final = np.zeros(0, np.int32)


def _properties(kinds: Sequence[Kind]) -> Any:
    offsets = [0]
    keys: list[str] = []
    items: list[str] = []
    for kind in kinds:
        keys.extend(kind.properties.keys())
        items.extend(kind.properties.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(fixed_width(np.array(offsets, np.int32), pa.int32()), texts(keys), texts(items))


def _times(event_ms: Any, valid: Any) -> Any:
    return fixed_width(event_ms * 1000, _TIME, valid)


def _arrivals(batch: _Batch) -> Any:
    ours = np.array([contract.P_INGEST in kind.properties for kind in batch.rows.kinds], bool)
    return _times(batch.event_ms, (batch.event_ms != 0) & ours[batch.kind_numbers])


def _quality(text: str | None) -> int | None:
    return {"0": 0, "1": 1, "2": 2}.get(text or "")


def _truth(text: str | None) -> bool | None:
    return None if text is None else text in ("1", "true")


@lru_cache(maxsize=16_384)
def _ingest(text: str) -> Mapping[str, str]:
    try:
        return contract.decode_ingest(text)
    except ContractError:  # another program or a later version wrote it; __messageProperties has it
        return {}


def _of_topic(kind: Kind, name: str) -> str | None:
    # One property has the values that all messages of a topic share.
    properties = kind.properties
    return properties[name] if name in properties else _ingest(properties.get(contract.P_INGEST, "")).get(name)


def _of_reading(kind: Kind, name: str, usual: str) -> str | None:
    # Ingest omits the usual value on a reading. Other messages have no value.
    return kind.properties.get(name, usual if contract.P_INGEST in kind.properties else None)


def _correlation(text: str | None) -> bytes | None:
    try:
        return None if text is None else contract.decode_correlation(text)
    except ContractError:  # another program wrote it; __messageProperties has it unchanged
        return None


def _user_properties(text: str | None) -> list[tuple[str, str]] | None:
    try:
        return None if text is None else contract.decode_user_properties(text)
    except ContractError:  # likewise
        return None


_OF_ROW: Final[Mapping[str, Callable[[_Batch], Any]]] = {
    "value": lambda b: b.payloads,
    "payload": lambda b: b.payloads,
    "__topic": lambda b: variable_width([b.topic.encode()] * len(b.rows), pa.string()),
    "__messageId": _message_ids,
    "__publishTime": lambda b: b.per_entry(lambda e: e.publish_ms * 1000),
    "__eventTime": lambda b: _times(b.event_ms, b.event_ms != 0),
    "partition": lambda b: np.full(len(b.rows), partition_number(b.partition), np.int32),
    "ledger_id": lambda b: b.per_entry(lambda e: e.ledger),
    "entry_id": lambda b: b.per_entry(lambda e: e.entry),
    "batch_index": lambda b: b.indexes,
    "arrival_time": _arrivals,
}
_OF_KIND: Final[Mapping[str, Callable[[Kind], Any]]] = {
    "mqtt_topic": lambda k: k.properties.get(contract.P_TOPIC),
    "device": lambda k: _of_topic(k, contract.P_DEVICE),
    "qos": lambda k: _quality(_of_reading(k, contract.P_QOS, "1")),
    "retain": lambda k: _truth(_of_reading(k, contract.P_RETAIN, "0")),
    "retained": lambda k: _truth(_of_reading(k, contract.P_RETAINED, "0")),
    "command_topic": lambda k: _of_topic(k, contract.P_COMMAND_TOPIC),
    "content_type": lambda k: k.properties.get(contract.P_CONTENT_TYPE),
    "response_topic": lambda k: k.properties.get(contract.P_RESPONSE_TOPIC),
    "correlation_data": lambda k: _correlation(k.properties.get(contract.P_CORRELATION)),
    "user_properties": lambda k: _user_properties(k.properties.get(contract.P_USER)),
}
"""Values that messages of one kind share, computed once for each kind."""

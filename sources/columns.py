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
        return pa.array(self.rows.payloads, pa.binary())

    @cached_property
    def kind_of(self) -> Any:
        """Index of the kind of each row."""
        return np.array(self.rows.kind_of, np.int32)

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
        if isinstance(found, np.ndarray):
            return pa.array(found).view(field.type)
        return found if isinstance(found, pa.Array) else pa.array(found, type=field.type)
    if name == "__messageProperties":
        found = _properties(kinds)
    elif name == "__key":
        found = pa.array([_key(kind, batch) for kind in kinds], type=field.type)
    else:
        found = pa.array([_OF_KIND[name](kind) for kind in kinds], type=field.type)
    return found.take(pa.array(batch.kind_of))


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


def _endings(size: int) -> list[bytes]:
    """Return the message id suffixes of a batch: field 4 (index), then field 6 (size)."""
    tail = b"\x30" + varint(size)
    return [b"\x20" + varint(index) + tail for index in range(size)]


_kept_endings: Final = lru_cache(maxsize=64)(_endings)


def _message_ids(batch: _Batch) -> list[bytes]:
    number = partition_number(batch.partition)
    found: list[bytes] = []
    indexes = None if batch.rows.indexes is None else iter(batch.rows.indexes)
    for entry, count in zip(batch.rows.entries, batch.rows.counts, strict=True):
        head = message_id(entry, number)
        mine = range(count) if indexes is None else list(islice(indexes, count))
        if entry.batched:
            endings = (_kept_endings if entry.size <= _KEPT_SIZE else _endings)(entry.size)
            found += [head + endings[index] for index in mine]
        else:
            found += [head] * count
    return found


def _properties(kinds: Sequence[Kind]) -> Any:
    offsets = [0]
    keys: list[str] = []
    items: list[str] = []
    for kind in kinds:
        keys.extend(kind.properties.keys())
        items.extend(kind.properties.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(items, pa.string())
    )


def _times(event_ms: Any, none: Any) -> Any:
    return pa.array(event_ms * 1000, mask=none).view(_TIME)


def _arrivals(batch: _Batch) -> Any:
    ours = np.array([contract.P_INGEST in kind.properties for kind in batch.rows.kinds], bool)
    return _times(batch.event_ms, (batch.event_ms == 0) | ~ours[batch.kind_of])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


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


def _user_properties(text: str | None) -> list[dict[str, str]] | None:
    try:
        return (
            None
            if text is None
            else [{"name": name, "value": value} for name, value in contract.decode_user_properties(text)]
        )
    except ContractError:  # likewise
        return None


_OF_ROW: Final[Mapping[str, Callable[[_Batch], Any]]] = {
    "value": lambda b: b.payloads,
    "payload": lambda b: b.payloads,
    "__topic": lambda b: pa.repeat(b.topic, len(b.rows)),
    "__messageId": _message_ids,
    "__publishTime": lambda b: b.per_entry(lambda e: e.publish_ms * 1000),
    "__eventTime": lambda b: _times(b.event_ms, b.event_ms == 0),
    "partition": lambda b: pa.repeat(pa.scalar(partition_number(b.partition), pa.int32()), len(b.rows)),
    "ledger_id": lambda b: b.per_entry(lambda e: e.ledger),
    "entry_id": lambda b: b.per_entry(lambda e: e.entry),
    "batch_index": lambda b: b.indexes,
    "arrival_time": _arrivals,
}
_OF_KIND: Final[Mapping[str, Callable[[Kind], Any]]] = {
    "mqtt_topic": lambda k: k.properties.get(contract.P_TOPIC),
    "device": lambda k: _of_topic(k, contract.P_DEVICE),
    "qos": lambda k: _number(_of_reading(k, contract.P_QOS, "1")),
    "retain": lambda k: _truth(_of_reading(k, contract.P_RETAIN, "0")),
    "retained": lambda k: _truth(_of_reading(k, contract.P_RETAINED, "0")),
    "command_topic": lambda k: _of_topic(k, contract.P_COMMAND_TOPIC),
    "content_type": lambda k: k.properties.get(contract.P_CONTENT_TYPE),
    "response_topic": lambda k: k.properties.get(contract.P_RESPONSE_TOPIC),
    "correlation_data": lambda k: _correlation(k.properties.get(contract.P_CORRELATION)),
    "user_properties": lambda k: _user_properties(k.properties.get(contract.P_USER)),
}
"""Values that messages of one kind share, computed once for each kind."""

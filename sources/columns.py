"""Arrow record batches from Pulsar messages, column by column, only the columns asked for.

Bytes of payload and key are untouched, times are UTC with microseconds, what a message does not have is null. The
column names and types are those of ``bridge.contract.SOURCE_COLUMNS``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from bridge import contract
from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ContractError, TerminalError
from sources.offsets import partition_number

__all__ = ["ARROW_TYPES", "Entry", "arrow_schema", "record_batch"]

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
"""Spark SQL type to the Arrow type that Spark expects for it."""


@dataclass(frozen=True)
class Entry:
    """One entry: how many of the messages of the batch are its own, and its id as the first message shows it."""

    ledger: int
    entry: int
    size: int
    serialized: bytes
    batched: bool


def arrow_schema(
    columns: Sequence[str], keys: str = "text", decoded: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """Return the Arrow schema of these columns, in this order.

    ``keys`` is ``text``, ``bytes`` (the text's UTF-8) or ``base64`` (the bytes that the text stands for);
    ``decoded`` has the types of the columns that the payload is decoded to.
    """
    types = {name: ARROW_TYPES[kind] for name, kind in SOURCE_COLUMNS}
    if keys != "text":
        types["__key"] = pa.binary()
    return pa.schema([pa.field(name, decoded.get(name) or types[name]) for name in columns])


def record_batch(
    schema: Any,
    topic: str,
    partition: str,
    entries: Sequence[Entry],
    messages: Sequence[Any],
    *,
    keys: str = "text",
    decoded: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Build one batch. ``messages`` are those of ``entries``, in order; ``topic`` is written to ``__topic``.

    ``decoded`` has the columns that were decoded from the payloads. Raises TerminalError for a key that is not base64
    where it should be.
    """
    batch = _Batch(topic, partition, entries, messages)
    arrays = []
    for field in schema:
        if field.name in decoded:
            arrays.append(decoded[field.name])
        elif field.name in _ARRAYS:
            arrays.append(_ARRAYS[field.name](batch))
        elif field.name == "__key" and keys != "text":
            arrays.append(pa.array(_key_bytes(batch, keys), type=field.type))
        else:
            arrays.append(pa.array(_BUILD[field.name](batch), type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Batch:
    """The messages with what several columns share, computed once."""

    def __init__(self, topic: str, partition: str, entries: Sequence[Entry], messages: Sequence[Any]) -> None:
        self.topic = topic
        self.partition = partition
        self.entries = entries
        self.messages = messages
        self._properties: list[dict[str, str]] | None = None
        self._payloads: list[bytes | None] | None = None

    @property
    def properties(self) -> list[dict[str, str]]:
        if self._properties is None:
            self._properties = [message.properties() for message in self.messages]
        return self._properties

    @property
    def payloads(self) -> list[bytes | None]:
        if self._payloads is None:
            # An empty payload and a null one look alike until asked.
            self._payloads = [m.data() or (None if m.has_null_value() else b"") for m in self.messages]
        return self._payloads

    def get(self, name: str) -> list[str | None]:
        return [properties.get(name) for properties in self.properties]

    def per_entry(self, value: Callable[[Entry], int]) -> list[int]:
        found: list[int] = []
        for entry in self.entries:
            found.extend([value(entry)] * entry.size)
        return found


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_INDEXES: Final = [_varint(index) for index in range(4096)]


def _message_ids(batch: _Batch) -> list[bytes]:
    # The ids of a batch differ in field 4, the index, which stands before field 6, the size: 20 <index> 30 <size>.
    found: list[bytes] = []
    for entry in batch.entries:
        if not entry.batched:
            found.append(entry.serialized)
            continue
        tail = b"\x30" + _varint(entry.size)
        head = entry.serialized[: -len(tail) - 1]
        if entry.size <= len(_INDEXES):
            found.extend([head + index + tail for index in _INDEXES[: entry.size]])
        else:
            found.extend([head + _varint(index) + tail for index in range(entry.size)])
    return found


def _indexes(batch: _Batch) -> list[int]:
    found: list[int] = []
    for entry in batch.entries:
        found.extend(range(entry.size))
    return found


def _keys(batch: _Batch) -> list[str | None]:
    # The client does not tell a key that is empty from none, nor whether Pulsar marks it as base64 of bytes.
    try:
        return [message.partition_key() or None for message in batch.messages]
    except UnicodeDecodeError:  # written by a client that takes any bytes for a key
        found = _stored_keys(batch)
        return [None if key is None else key.decode("utf-8", "replace") for key in found]


def _stored_keys(batch: _Batch) -> list[bytes | None]:
    found: list[bytes | None] = []
    for message in batch.messages:
        try:
            found.append(message.partition_key().encode() or None)
        except UnicodeDecodeError as e:
            found.append(e.object)
    return found


def _key_bytes(batch: _Batch, keys: str) -> list[bytes | None]:
    found = _stored_keys(batch)
    if keys == "bytes":
        return found
    try:
        return [None if key is None else base64.b64decode(key, validate=True) for key in found]
    except ValueError as e:
        raise TerminalError(
            f"{batch.partition}: a key is not base64, as keyEncoding=base64 says: {e}",
            remedy="set keyEncoding=text (the default): then __key is the key as it is stored",
        ) from e


def _publish_times(batch: _Batch) -> list[int]:
    return [message.publish_timestamp() * 1000 for message in batch.messages]


def _event_times(batch: _Batch) -> list[int | None]:
    return [time * 1000 if (time := message.event_timestamp()) else None for message in batch.messages]


def _map_of_properties(batch: _Batch) -> Any:
    offsets = [0]
    keys: list[str] = []
    items: list[str] = []
    for properties in batch.properties:
        keys.extend(properties.keys())
        items.extend(properties.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(items, pa.string())
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _truth(text: str | None) -> bool | None:
    return None if text is None else text in ("1", "true")


@lru_cache(maxsize=16_384)
def _ingest(text: str) -> Mapping[str, str]:
    try:
        return contract.decode_ingest(text)
    except ContractError:  # a stranger's property, or a later version's: it stands in __messageProperties
        return {}


def _of_topic(batch: _Batch, name: str) -> list[str | None]:
    # What is the same for all messages of a topic is folded into one property.
    return [
        properties[name] if name in properties else _ingest(properties.get(contract.P_INGEST, "")).get(name)
        for properties in batch.properties
    ]


def _of_reading(batch: _Batch, name: str, usual: str) -> list[str | None]:
    # What ingest leaves out has its usual value on a reading, and none on any other message.
    return [
        properties.get(name, usual if contract.P_INGEST in properties else None)
        for properties in batch.properties
    ]


def _arrivals(batch: _Batch) -> list[int | None]:
    return [
        time if contract.P_INGEST in properties else None
        for time, properties in zip(_event_times(batch), batch.properties, strict=True)
    ]


def _correlation(text: str | None) -> bytes | None:
    try:
        return None if text is None else contract.decode_correlation(text)
    except ContractError:  # a stranger's property; it stands as it is in __messageProperties
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


_BUILD: Final[Mapping[str, Callable[[_Batch], Any]]] = {
    "value": lambda b: b.payloads,
    "__key": _keys,
    "__topic": lambda b: [b.topic] * len(b.messages),
    "__messageId": _message_ids,
    "__publishTime": _publish_times,
    "__eventTime": _event_times,
    "partition": lambda b: [partition_number(b.partition)] * len(b.messages),
    "ledger_id": lambda b: b.per_entry(lambda e: e.ledger),
    "entry_id": lambda b: b.per_entry(lambda e: e.entry),
    "batch_index": _indexes,
    "mqtt_topic": lambda b: b.get(contract.P_TOPIC),
    "device": lambda b: _of_topic(b, contract.P_DEVICE),
    "payload": lambda b: b.payloads,
    "qos": lambda b: [_number(text) for text in _of_reading(b, contract.P_QOS, "1")],
    "retain": lambda b: [_truth(text) for text in _of_reading(b, contract.P_RETAIN, "0")],
    "retained": lambda b: [_truth(text) for text in _of_reading(b, contract.P_RETAINED, "0")],
    "arrival_time": _arrivals,
    "command_topic": lambda b: _of_topic(b, contract.P_COMMAND_TOPIC),
    "content_type": lambda b: b.get(contract.P_CONTENT_TYPE),
    "response_topic": lambda b: b.get(contract.P_RESPONSE_TOPIC),
    "correlation_data": lambda b: [_correlation(text) for text in b.get(contract.P_CORRELATION)],
    "user_properties": lambda b: [_user_properties(text) for text in b.get(contract.P_USER)],
}
_ARRAYS: Final[Mapping[str, Callable[[_Batch], Any]]] = {"__messageProperties": _map_of_properties}

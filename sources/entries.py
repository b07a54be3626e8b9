"""Opens Pulsar entries: decompresses them and converts their batches to columns.

Key and properties begin the metadata of each message. They are looked up by their bytes, so that equal ones are
parsed once: a row costs about a microsecond. Values of columns that depend on key and properties are computed once
for each *kind*, not for each row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google_crc32c import value as crc32c

from bridge.contract.decoding import LAST_US
from bridge.errors import ContractError, RefusedError, TransientError
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import fields, number, read_varint, text
from sources.chunks import ChunkPart

__all__ = [
    "Entry",
    "Kind",
    "Opened",
    "Opener",
    "Rows",
    "StoredPayload",
    "joined",
    "message_id",
    "open_entry",
]

_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
"""CompressionType in PulsarApi.proto → Arrow's codec; 2 is zlib."""

_MAGIC: Final = b"\x0e\x01"
_MOST_BYTES: Final = 512 * 1024 * 1024
"""Most decompressed bytes of an entry or of a chunked message. Its writer can declare any size."""
_LAST_MS: Final = LAST_US // 1000
_KINDS: Final = 16_384
_TAILS: Final = 16_384


class Kind(NamedTuple):
    """Key and properties that messages share."""

    key: bytes | None
    """None for a message without key."""
    key_base64: bool
    """Whether the key is the base64 encoding of bytes."""
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the rows."""

    ledger: int
    entry: int
    size: int
    """Number of messages when it was written; compaction may have removed some."""
    batched: bool
    publish_ms: int
    schema_version: bytes | None
    first_chunk: tuple[int, int] | None = None
    """Ledger and entry at which a chunked message begins."""


class StoredPayload(NamedTuple):
    """A payload, the version of its schema (-1 for none) and its position."""

    payload: bytes | None
    version: int
    ledger: int
    entry: int
    batch_index: int
    """0 for a message without batch."""


@dataclass(slots=True)
class Opened:
    """The metadata of an entry and its compressed payload."""

    ledger: int
    entry: int
    body: bytes
    publish_ms: int = 0
    event_ms: int = 0
    compression: int = 0
    uncompressed: int = 0
    batched: bool = False
    size: int = 1
    prefix: bytes = b""
    """Key and properties, encoded as in the metadata of a message in a batch."""
    key_base64: bool = False
    null: bool = False
    marker: bool = False
    chunk: ChunkPart | None = None
    schema_version: bytes | None = None
    first_chunk: tuple[int, int] | None = None


def open_entry(raw: RawEntry, partition: str) -> Opened:
    """Read the metadata of an entry.

    Raises TransientError if it was damaged in transit, RefusedError if it is encrypted.
    """
    data, at = raw.data, 0
    name = f"{partition}: entry {raw.ledger}:{raw.entry}"
    if data[:2] == _MAGIC:
        if crc32c(data[6:]) != int.from_bytes(data[2:6], "big"):
            raise TransientError(f"{name} was damaged in transit: its checksum does not match")
        at = 6
    size = int.from_bytes(data[at : at + 4], "big")
    at += 4
    opened = Opened(raw.ledger, raw.entry, data[at + size :])
    _read_metadata(opened, data[at : at + size], name)
    return opened


def _read_metadata(opened: Opened, metadata: bytes, name: str) -> None:
    numbers: dict[int, int] = {}
    properties, key, uuid = [], b"", ""
    for kind, value in fields(metadata):
        if isinstance(value, int):
            numbers[kind] = value
        elif kind == 4:
            properties.append(text(1, value))
        elif kind == 6:
            key = text(2, value)
        elif kind == 13:
            raise RefusedError(f"{name} is encrypted", remedy="read it with a client that has its key")
        elif kind == 16:
            opened.schema_version = value
        elif kind == 26:
            uuid = value.decode("utf-8", "replace")
    opened.prefix = b"".join(properties) + key
    # A writer can declare any number of 64 bits: a time beyond Spark's range counts as none.
    opened.publish_ms, opened.event_ms = _time(numbers.get(3, 0)), _time(numbers.get(12, 0))
    opened.compression, opened.uncompressed = numbers.get(8, 0), numbers.get(9, 0)
    opened.batched, opened.size = 11 in numbers, numbers.get(11, 1)
    opened.key_base64, opened.null = bool(numbers.get(17)), bool(numbers.get(25))
    opened.marker = 20 in numbers
    if uuid and numbers.get(27, 0) > 1:
        opened.chunk = ChunkPart(uuid, numbers.get(29, 0), numbers[27])


def _decompressed(opened: Opened) -> bytes:
    if not opened.compression:
        return opened.body
    try:
        if opened.uncompressed > _MOST_BYTES:
            raise ValueError(f"{opened.uncompressed} bytes, at most {_MOST_BYTES} are read")
        if opened.compression == 2:
            body = zlib.decompressobj().decompress(opened.body, opened.uncompressed + 1)
            if len(body) != opened.uncompressed:
                raise ValueError(f"it does not expand to {opened.uncompressed} bytes")
            return body
        codec, size = _CODECS[opened.compression], opened.uncompressed
        if size and codec != "zstd" and _fits(opened.body, size - 1, codec):
            raise ValueError(f"it does not expand to {size} bytes")  # Arrow leaves the others undefined
        return bytes(pa.decompress(opened.body, size, codec=codec, asbytes=True))
    except (KeyError, ValueError, MemoryError, zlib.error, OSError, pa.ArrowException) as e:
        raise ContractError(f"it cannot be decompressed (type {opened.compression}): {e}") from e


def _fits(body: bytes, size: int, codec: str) -> bool:
    try:
        pa.decompress(body, size, codec=codec, asbytes=True)
    except (OSError, pa.ArrowException):
        return False
    return True


def _time(milliseconds: int) -> int:
    return milliseconds if milliseconds <= _LAST_MS else 0


class _Tail(NamedTuple):
    """The metadata of a message in a batch after the payload's size."""

    event_ms: int
    null: bool
    gone: bool
    """Removed by compaction: no longer a message."""
    key_base64: bool


_PLAIN: Final = _Tail(0, False, False, False)


@dataclass(slots=True)
class Rows:
    """The rows of some entries, by column. Lists have one item for each row, except ``entries`` and ``kinds``."""

    entries: list[Entry] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Number of rows of each entry."""
    kinds: list[Kind] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)
    """Index into ``kinds`` for each row."""
    events: list[int] = field(default_factory=list)
    """Event times in milliseconds, 0 for none."""
    indexes: list[int] | None = None
    """Batch index of each row if a batch has gaps, None for complete batches."""
    size: int = 0
    """Bytes of the messages, with their properties."""

    def __len__(self) -> int:
        return len(self.payloads)

    def stored_payloads(self) -> Iterator[StoredPayload]:
        """Yield the payload of each row with the position that names it in error messages."""
        payloads = iter(self.payloads)
        indexes = None if self.indexes is None else iter(self.indexes)
        for entry, count in zip(self.entries, self.counts, strict=True):
            version = -1 if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")
            for index in range(count):
                batch_index = index if indexes is None else next(indexes)
                yield StoredPayload(next(payloads), version, entry.ledger, entry.entry, batch_index)


class Opener:
    """Builds rows from entries, range by range, and caches the kinds seen so far."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._kinds: dict[bytes, Kind] = {}
        self._kind_indexes: dict[bytes, int] = {}
        self._tails: dict[bytes, _Tail] = {}
        self._guess = 0

    def flush(self) -> Rows:
        """Return the rows so far and start new ones."""
        found, self.rows = self.rows, Rows()
        self._kind_indexes.clear()
        return found

    def add(self, opened: Opened) -> int:
        """Append the rows of an entry and return their number.

        Raises ContractError, without appending a row, if the entry cannot be read.
        """
        body = _decompressed(opened)
        rows, before = self.rows, len(self.rows.payloads)
        if opened.batched:
            try:
                self._add_batch(opened, body)
            except (IndexError, ValueError) as e:
                for column in (rows.payloads, rows.kind_of, rows.events, rows.indexes):
                    if column is not None:
                        del column[before:]
                raise ContractError(f"its batch of {opened.size} cannot be read: {e}") from e
        else:
            rows.size += len(opened.prefix)  # that of a message in a batch is part of the body
            rows.payloads.append(None if opened.null and not body else body)
            rows.kind_of.append(self._kind_index(opened.prefix, opened.key_base64))
            rows.events.append(opened.event_ms)
            if rows.indexes is not None:
                rows.indexes.append(0)
        count = len(rows.payloads) - before
        rows.size += len(body)
        rows.counts.append(count)
        rows.entries.append(
            Entry(
                opened.ledger,
                opened.entry,
                opened.size,
                opened.batched,
                opened.publish_ms,
                opened.schema_version,
                opened.first_chunk,
            )
        )
        return count

    def _add_batch(self, opened: Opened, body: bytes) -> None:
        rows, kind_index_of, tails = self.rows, self._kind_indexes.get, self._tails.get
        add, add_kind, add_event = rows.payloads.append, rows.kind_of.append, rows.events.append
        at, guess, number_of, indexes = 0, self._guess, int.from_bytes, rows.indexes
        last: bytes | None = b""  # the previous tail, if an equal one means the same for the next message
        event_ms, null = 0, False
        for index in range(opened.size):
            start = at + 4
            end = start + number_of(body[at:start], "big")
            cut = start + guess
            kind_index = kind_index_of(body[start:cut])
            if kind_index is None or body[cut] != 24 or cut >= end:
                cut = _prefix_end(body, start, end)
                kind_index = self._kind_index(body[start:cut], False)
                guess = self._guess = cut - start
            length = body[cut + 1]
            rest = cut + 2
            if length > 127:
                more = body[rest]
                if more < 128:  # a payload of at most 16 KB
                    length, rest = length & 127 | more << 7, rest + 1
                else:
                    length, rest = read_varint(body, cut + 1)
            tail_bytes = body[rest:end]
            if tail_bytes != last:
                tail = (tails(tail_bytes) or self._tail(tail_bytes)) if tail_bytes else _PLAIN
                if tail.gone:
                    at = end
                    indexes = self._gap(index)
                    continue
                last, event_ms, null = tail_bytes, tail.event_ms, tail.null
                if tail.key_base64:
                    kind_index, last = self._kind_index(body[start:cut], True), None
            at = end + length
            if at > len(body):
                raise ValueError(f"message {index} exceeds the batch")
            add(body[end:at] if length or not null else None)
            add_kind(kind_index)
            add_event(event_ms)
            if indexes is not None:
                indexes.append(index)

    def _gap(self, index: int) -> list[int]:
        """Start to record batch indexes, which differ from row numbers after a missing message.

        Returns the list.
        """
        rows = self.rows
        if rows.indexes is None:
            rows.indexes = [i for count in rows.counts for i in range(count)]
            rows.indexes.extend(range(index))
        return rows.indexes

    def _kind_index(self, prefix: bytes, base64: bool) -> int:
        named = prefix + b"\xff" if base64 else prefix  # no field begins with this byte
        index = self._kind_indexes.get(named)
        if index is None:
            kind = self._kinds.get(named)
            if kind is None:
                kind = _kind(prefix, base64)
                if len(self._kinds) >= _KINDS:
                    self._kinds.clear()
                self._kinds[named] = kind
            index = self._kind_indexes[named] = len(self.rows.kinds)
            self.rows.kinds.append(kind)
        return index

    def _tail(self, data: bytes) -> _Tail:
        """Parse the metadata after the payload's size. Its cache omits the sequence id, which differs each time."""
        kept = data
        if data[0] == 0x40 and _one_varint(data, 1):
            return _PLAIN
        if data[0] == 0x28 and len(data) > 8 and data[7] == 0x40 and _one_varint(data, 8):  # a time of six bytes
            kept = data[:7]
            known = self._tails.get(kept)
            if known is not None:
                return known
        numbers = {kind: value for kind, value in fields(data) if isinstance(value, int)}
        tail = _Tail(_time(numbers.get(5, 0)), bool(numbers.get(9)), bool(numbers.get(4)), bool(numbers.get(6)))
        if len(self._tails) >= _TAILS:
            self._tails.clear()
        self._tails[kept] = tail
        return tail


def _prefix_end(data: bytes, at: int, end: int) -> int:
    """Return the end of properties and key, which is the payload's size. Raises ValueError if it is elsewhere."""
    while at < end:
        tag = data[at]
        if tag == 24:
            return at
        if tag not in (10, 18):
            break
        length, after = read_varint(data, at + 1)
        at = after + length
    raise ValueError("its metadata is not in the order of its fields")


def _one_varint(data: bytes, at: int) -> bool:
    """Whether the rest of ``data`` is one number."""
    while data[at] > 127:
        at += 1
    return at == len(data) - 1


def _kind(prefix: bytes, base64: bool) -> Kind:
    key: bytes | None = None
    properties: dict[str, str] = {}
    for kind, value in fields(prefix):
        if kind == 1 and isinstance(value, bytes):
            pair = dict(fields(value))
            properties[_text(pair.get(1))] = _text(pair.get(2))
        elif kind == 2 and isinstance(value, bytes):
            key = value
    return Kind(key, base64, properties)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message_id(entry: Entry, partition: int) -> bytes:
    """Return the serialised id (MessageIdData) of an entry. Messages in a batch add their index and the batch's size."""
    found = _position_data(entry.ledger, entry.entry, partition)
    if entry.first_chunk is not None:
        found += text(7, _position_data(*entry.first_chunk, partition))
    return found


def _position_data(ledger: int, entry: int, partition: int) -> bytes:
    return number(1, ledger) + number(2, entry) + (number(3, partition) if partition >= 0 else b"")


def joined(parts: Sequence[Opened]) -> Opened:
    """Return the message whose chunks are ``parts``, in order."""
    last = parts[-1]
    return Opened(
        last.ledger,
        last.entry,
        b"".join(part.body for part in parts),
        last.publish_ms,
        last.event_ms,
        last.compression,
        last.uncompressed,
        prefix=last.prefix,
        key_base64=last.key_base64,
        null=last.null,
        schema_version=last.schema_version,
        first_chunk=(parts[0].ledger, parts[0].entry),
    )

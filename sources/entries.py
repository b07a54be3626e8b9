"""Entries as Pulsar keeps them, opened: decompressed, batches taken apart, by column. Pure.

What messages have in common, key and properties, stands at the beginning of each one's metadata. It is looked up by
its bytes, so that it is read once for all messages that say the same: a row costs about a microsecond, and what a
column needs of key and properties is computed once for each *kind*, not for each row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google_crc32c import value as crc32c

from bridge.decoding import LAST_US
from bridge.errors import ContractError, RefusedError, TransientError
from bridge.pulsar_wire.protobuf import fields, number, read_varint, text
from bridge.pulsar_wire.reader import RawEntry
from sources.chunks import ChunkPart

__all__ = [
    "Entry",
    "Kind",
    "Opened",
    "Opener",
    "Placed",
    "Rows",
    "joined",
    "message_id",
    "open_entry",
]

_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
"""CompressionType in PulsarApi.proto → Arrow's codec; 2 is zlib."""

_MAGIC: Final = b"\x0e\x01"
_MOST_BYTES: Final = 512 * 1024 * 1024
"""Bytes of an entry, or of a message in chunks, once it is decompressed: its writer names how many, whatever they are."""
_LAST_MS: Final = LAST_US // 1000
_KINDS: Final = 16_384
_TAILS: Final = 16_384


class Kind(NamedTuple):
    """What messages have in common."""

    key: bytes | None
    """None for a message without one."""
    key_base64: bool
    """Whether the key stands for bytes, encoded."""
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of which rows were taken."""

    ledger: int
    entry: int
    size: int
    """How many messages it holds, or held before some were compacted away."""
    batched: bool
    publish_ms: int
    schema_version: bytes | None
    first_chunk: tuple[int, int] | None = None
    """Where a chunked message begins."""


class Placed(NamedTuple):
    """A payload, the version of its schema (-1 for none) and its place."""

    payload: bytes | None
    version: int
    ledger: int
    entry: int
    place: int
    """In the batch."""


@dataclass(slots=True)
class Opened:
    """The metadata of an entry and its payload, not decompressed."""

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
    """Key and properties, as a message in a batch tells them."""
    key_base64: bool = False
    null: bool = False
    marker: bool = False
    chunk: ChunkPart | None = None
    schema_version: bytes | None = None
    first_chunk: tuple[int, int] | None = None


def open_entry(raw: RawEntry, partition: str) -> Opened:
    """Read the metadata of an entry.

    Raises TransientError when it was damaged on its way, RefusedError when it is encrypted.
    """
    data, at = raw.data, 0
    name = f"{partition}: entry {raw.ledger}:{raw.entry}"
    if data[:2] == _MAGIC:
        if crc32c(data[6:]) != int.from_bytes(data[2:6], "big"):
            raise TransientError(f"{name} was damaged on its way: its checksum does not fit")
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
    # A time beyond those that Spark has is not a time: the writer may name any number of 64 bits.
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
                raise ValueError(f"it does not give {opened.uncompressed} bytes")
            return body
        codec = _CODECS[opened.compression]
        return bytes(pa.decompress(opened.body, opened.uncompressed, codec=codec, asbytes=True))
    except (KeyError, ValueError, MemoryError, zlib.error, OSError, pa.ArrowException) as e:
        raise ContractError(f"it cannot be decompressed (type {opened.compression}): {e}") from e


def _time(milliseconds: int) -> int:
    return milliseconds if milliseconds <= _LAST_MS else 0


class _Tail(NamedTuple):
    """What stands behind the payload's size in the metadata of a message in a batch."""

    event_ms: int
    null: bool
    gone: bool
    """Compacted away: it is no message any more."""
    key_base64: bool


_PLAIN: Final = _Tail(0, False, False, False)


@dataclass(slots=True)
class Rows:
    """The rows of some entries, by column: one list entry for each row, but for ``entries`` and ``kinds``."""

    entries: list[Entry] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """How many rows each entry gave."""
    kinds: list[Kind] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)
    """By row, the place of its kind in ``kinds``."""
    events: list[int] = field(default_factory=list)
    """Event times in milliseconds, 0 for none."""
    indexes: list[int] | None = None
    """Places in the batches, where a batch has gaps; None when all are whole."""
    size: int = 0
    """Bytes of the payloads."""

    def __len__(self) -> int:
        return len(self.payloads)

    def placed(self) -> Iterator[Placed]:
        """Yield each row's payload with what names it in a message to people."""
        payloads = iter(self.payloads)
        places = None if self.indexes is None else iter(self.indexes)
        for entry, count in zip(self.entries, self.counts, strict=True):
            version = -1 if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")
            for index in range(count):
                place = index if places is None else next(places)
                yield Placed(next(payloads), version, entry.ledger, entry.entry, place)


class Opener:
    """Takes rows out of entries, one range after the other; it remembers the kinds that it has met."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._kinds: dict[bytes, Kind] = {}
        self._places: dict[bytes, int] = {}
        """Of the kinds of ``rows``."""
        self._tails: dict[bytes, _Tail] = {}
        self._guess = 0

    def flush(self) -> Rows:
        """Return the rows so far and begin anew."""
        found, self.rows = self.rows, Rows()
        self._places.clear()
        return found

    def add(self, opened: Opened) -> int:
        """Append the rows of an entry. Returns how many. Raises ContractError when the entry cannot be read; then no row
        is appended.
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
            rows.payloads.append(None if opened.null and not body else body)
            rows.kind_of.append(self._place(opened.prefix, opened.key_base64))
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
        rows, places, tails = self.rows, self._places.get, self._tails.get
        add, add_kind, add_event = rows.payloads.append, rows.kind_of.append, rows.events.append
        at, guess, number_of, indexes = 0, self._guess, int.from_bytes, rows.indexes
        last: bytes | None = b""  # what the tail before said, where it is the same for the next message
        event_ms, null = 0, False
        for index in range(opened.size):
            start = at + 4
            end = start + number_of(body[at:start], "big")
            cut = start + guess
            place = places(body[start:cut])
            if place is None or body[cut] != 24 or cut >= end:
                cut = _prefix_end(body, start, end)
                place = self._place(body[start:cut], False)
                guess = self._guess = cut - start
            length = body[cut + 1]
            rest = cut + 2
            if length > 127:
                more = body[rest]
                if more < 128:  # a payload of at most 16 KB
                    length, rest = length & 127 | more << 7, rest + 1
                else:
                    length, rest = read_varint(body, cut + 1)
            said = body[rest:end]
            if said != last:
                tail = (tails(said) or self._tail(said)) if said else _PLAIN
                if tail.gone:
                    at = end
                    indexes = self._gap(index)
                    continue
                last, event_ms, null = said, tail.event_ms, tail.null
                if tail.key_base64:
                    place, last = self._place(body[start:cut], True), None
            at = end + length
            if at > len(body):
                raise ValueError(f"message {index} ends behind the batch")
            add(body[end:at] if length or not null else None)
            add_kind(place)
            add_event(event_ms)
            if indexes is not None:
                indexes.append(index)

    def _gap(self, index: int) -> list[int]:
        """Begin to keep places: from the first message on that is not there, they are not those of the rows. Returns the
        list.
        """
        rows = self.rows
        if rows.indexes is None:
            rows.indexes = [i for count in rows.counts for i in range(count)]
            rows.indexes.extend(range(index))
        return rows.indexes

    def _place(self, prefix: bytes, base64: bool) -> int:
        named = prefix + b"\xff" if base64 else prefix  # no field begins so
        place = self._places.get(named)
        if place is None:
            kind = self._kinds.get(named)
            if kind is None:
                kind = _kind(prefix, base64)
                if len(self._kinds) >= _KINDS:
                    self._kinds.clear()
                self._kinds[named] = kind
            place = self._places[named] = len(self.rows.kinds)
            self.rows.kinds.append(kind)
        return place

    def _tail(self, said: bytes) -> _Tail:
        """Read what stands behind the payload's size; a sequence id, which differs each time, is not kept with it."""
        kept = said
        if said[0] == 0x40 and _one_varint(said, 1):
            return _PLAIN
        if said[0] == 0x28 and len(said) > 8 and said[7] == 0x40 and _one_varint(said, 8):  # a time of six bytes
            kept = said[:7]
            known = self._tails.get(kept)
            if known is not None:
                return known
        numbers = {kind: value for kind, value in fields(said) if isinstance(value, int)}
        tail = _Tail(_time(numbers.get(5, 0)), bool(numbers.get(9)), bool(numbers.get(4)), bool(numbers.get(6)))
        if len(self._tails) >= _TAILS:
            self._tails.clear()
        self._tails[kept] = tail
        return tail


def _prefix_end(data: bytes, at: int, end: int) -> int:
    """Return where properties and key end and the payload's size stands. Raises ValueError when it is elsewhere."""
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
    """Return the serialised id (MessageIdData) of an entry; a message in a batch adds its index and the batch's size."""
    found = _place(entry.ledger, entry.entry, partition)
    if entry.first_chunk is not None:
        found += text(7, _place(*entry.first_chunk, partition))
    return found


def _place(ledger: int, entry: int, partition: int) -> bytes:
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

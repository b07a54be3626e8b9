"""Decodes the entries of a partition, as Pulsar stores them, into columns of messages.

It is not the decoder of Pulsebridge's Spark source, whose defects an audit must find. ``Unread`` leaves to Pulsar's
client what ingest does not write, or rarely: compressed, encrypted and chunked messages, and markers of transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct, error
from typing import Any, Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from bridge.contract import P_DEVICE, P_INGEST, P_REPLAYED, P_RETAINED, P_RULE, P_TOPIC, full_envelope
from bridge.errors import ContractError
from bridge.pulsar.client import Message, key_of, properties_of
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import fields, read_varint, text

__all__ = ["Kind", "Messages", "Unread"]

_MESSAGES: Final = 20_000
_BYTES: Final = 32 * 1024 * 1024
_KINDS: Final = 100_000
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999. Tables have no later time."""
_PUBLISHED, _COUNT, _EVENT = 3, 11, 12
_FOREIGN: Final = {8, 13, 20, 26}
"""Compression, keys of an encrypted message, marker, id of a chunked message."""


class Unread(Exception):
    """Raised when only Pulsar's client can read on."""


class Kind(NamedTuple):
    """What messages with equal key and properties share."""

    device: str
    topic: str
    """MQTT topic."""
    rule: str
    """Its route; empty if the device's own number does not count: a message that was replayed or retained."""
    key: str
    properties: dict[str, str]


def _kind(head: bytes) -> Kind:
    """Return the kind of the messages whose metadata begin with these properties and key."""
    key, properties = "", {}
    for field, value in fields(head):
        if field == 1 and isinstance(value, bytes):
            pair = dict(fields(value))
            properties[_text(pair.get(1))] = _text(pair.get(2))
        else:
            key = _text(value)
    try:
        full = full_envelope({P_INGEST: properties.get(P_INGEST, "")}) | properties
    except ContractError:
        full = properties
    device = full.get(P_DEVICE) or ""
    rule = "" if P_REPLAYED in properties or P_RETAINED in properties else full.get(P_RULE) or ""
    return Kind(device, properties.get(P_TOPIC, ""), rule, key or device, properties)


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


class _Places(NamedTuple):
    """Where the parts of each message of a batch begin and end: head, tail and payload follow each other."""

    starts: list[int]
    cuts: list[int]
    ends: list[int]
    stops: list[int]

    def heads(self, body: bytes) -> Iterator[bytes]:
        return map(body.__getitem__, map(slice, self.starts, self.cuts))


class Messages:
    """Messages of a partition by column, in its order, until ``clear``."""

    def __init__(self) -> None:
        self._known: dict[bytes, Kind] = {}
        self._tail = 0
        self.clear()

    def clear(self) -> None:
        """Remove all messages."""
        self.payloads: list[bytes] = []
        self.kinds: list[Kind] = []
        self.of: list[int] = []
        """Index into ``kinds`` of each message."""
        self._bytes = 0
        self._codes: dict[bytes, int] = {}
        self._tails: list[bytes] = []  # metadata of each message from the size of its payload on
        self._events: dict[int, int] = {}  # event times in ms of messages without a tail, by index
        self._entries: list[tuple[int, int, int, int, int]] = []  # ledger, entry, µs, first index, number of messages
        if len(self._known) > _KINDS:
            self._known.clear()

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def full(self) -> bool:
        """Whether they are to be cleared."""
        return len(self) >= _MESSAGES or self._bytes >= _BYTES

    def add_message(self, message: Message) -> None:
        """Append a message of Pulsar's client."""
        at, head = message.message_id(), head_of(key_of(message) or "", properties_of(message) or {})
        self._add(head, message.data(), message.event_timestamp())
        self._end(at.ledger_id(), at.entry_id(), message.publish_timestamp(), max(0, at.batch_index()), 1)

    def _add(self, head: bytes, payload: bytes, event_ms: int) -> None:
        self.payloads.append(payload)
        self.of.append(self._code(head))
        self._events[len(self._tails)] = event_ms if event_ms <= _LAST_MS else 0
        self._tails.append(b"")
        self._bytes += len(payload)

    def _end(self, ledger: int, entry: int, published_ms: int, index: int, count: int) -> None:
        self._entries.append((ledger, entry, min(published_ms, _LAST_MS) * 1000, index, count))

    def add(self, raw: RawEntry, before_us: int) -> int | None:
        """Append the messages of an entry; None if it was published at ``before_us`` or later.

        Returns how many messages it claims to have. A batch that ends too early has none. Raises Unread.
        """
        data, at = raw.data, 6 if raw.data[:2] == b"\x0e\x01" else 0
        if at and crc32c(data[at:]) != int.from_bytes(data[2:at], "big"):
            raise Unread("its checksum does not match")
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        metadata, body = list(fields(data[at + 4 : end])), data[end:]
        numbers = {field: value for field, value in metadata if isinstance(value, int)}
        if numbers.get(_PUBLISHED, 0) * 1000 >= before_us:
            return None
        if not _FOREIGN.isdisjoint(field for field, value in metadata if value):
            raise Unread("ingest does not write such entries")
        before, count = len(self), numbers.get(_COUNT, 1)
        if _COUNT in numbers:
            # A batch that is cut has no messages for anyone; Pulsar's client would end the process.
            with suppress(IndexError, ValueError, error):
                self._add_batch(body, count)
            self._bytes += len(body)
        else:
            head = [text({4: 1, 6: 2}[field], value) for field, value in metadata
                    if field in (4, 6) and isinstance(value, bytes)]  # fmt: skip
            self._add(b"".join(head), body, numbers.get(_EVENT, 0))
        self._end(raw.ledger, raw.entry, numbers.get(_PUBLISHED, 0), 0, len(self) - before)
        return min(count, _MESSAGES)

    def _add_batch(self, body: bytes, count: int) -> None:
        """Append the messages of a batch. Each is the size of its metadata, these, and its payload.

        The metadata are the head, properties and key, which is looked up by its bytes, and the tail: the size of the
        payload, event time and sequence id. Raises Unread, and IndexError, ValueError or struct.error if it is cut.
        """
        found = self._usual(body, count)
        codes: list[Any] = [] if found is None else list(map(self._codes.get, found.heads(body)))
        if found is None or None in codes:
            found = _places(body, count)
            codes = list(map(self._code, found.heads(body)))
            self._tail = found.ends[-1] - found.cuts[-1] - (body[found.cuts[-1] + 1] > 127)
        self.of += codes
        self._tails += map(body.__getitem__, map(slice, found.cuts, found.ends))
        self.payloads += map(body.__getitem__, map(slice, found.ends, found.stops))

    def _usual(self, body: bytes, count: int) -> _Places | None:
        """Return where the parts of each message are, by the usual length of a tail, None if any differs: half the time.

        They are right if each head is known: a known head that the size of a payload follows is whole.
        """
        tail, found = self._tail, _Places([], [], [], [])
        at, (starts, cuts, ends, stops) = 0, found
        try:
            for _ in range(count):
                start = at + 4
                end = start + _size_at(body, at)[0]
                cut = end - tail
                size = body[cut + 1]
                if body[cut] != 24 or size > 127 or cut < start:
                    cut -= 1  # the size has one byte more
                    size = (body[cut + 1] & 127) | (body[cut + 2] << 7)
                    if body[cut] != 24 or body[cut + 1] < 128 or body[cut + 2] > 127 or cut < start:
                        return None
                at = end + size
                starts.append(start)
                cuts.append(cut)
                ends.append(end)
                stops.append(at)
        except (IndexError, error):
            return None
        return found if at == len(body) else None

    def _code(self, head: bytes) -> int:
        code = self._codes.get(head)
        if code is None:
            kind = self._known.get(head)
            if kind is None:
                kind = self._known[head] = _kind(head)
            code = self._codes[head] = len(self.kinds)
            self.kinds.append(kind)
        return code

    def positions(self) -> tuple[Any, Any, Any, Any]:
        """Return ledger, entry, index and publish time (µs) of each message."""
        ledger, entry, us, first, count = np.array(self._entries, np.int64).reshape(-1, 5).T
        index = np.arange(len(self)) - np.repeat(np.cumsum(count) - count - first, count)
        return np.repeat(ledger, count), np.repeat(entry, count), index, np.repeat(us, count)

    def arrivals(self) -> Any:
        """Return the event time of each message in µs, -1 without one. Raises Unread."""
        sizes = np.fromiter(map(len, self._tails), np.int64, len(self))
        tails = np.frombuffer(b"".join(self._tails) + bytes(16), np.uint8)
        last = np.cumsum(sizes)
        begin = last - sizes
        begin += np.where(tails[begin + 1] > 127, 3, 2)  # behind the size of the payload
        # Nearly each has the event time there, in the six bytes that a time has until the year 2109, and ends there, or the
        # sequence id follows.
        eight = np.ndarray(len(tails) - 7, "<u8", tails, strides=(1,))[begin]
        after = begin + 7
        usual = (eight & _EVENT_MASK == _EVENT_BITS) & ((after == last) | ((after < last) & (eight >> 56 == 64)))
        ms = np.zeros(len(self), np.int64)
        for byte in range(6):
            ms |= ((eight >> (8 + 8 * byte) & 127) << (7 * byte)).astype(np.int64)
        for n in np.flatnonzero(~usual).tolist():
            ms[n] = self._events[n] if n in self._events else _event_ms(self._tails[n])
        return np.where(ms > 0, ms * 1000, -1)


_size_at: Final = Struct(">I").unpack_from
_EVENT_MASK: Final = np.uint64(0x80_80_80_80_80_80_FF)
_EVENT_BITS: Final = np.uint64(0x00_80_80_80_80_80_28)
"""The tag of the event time, and a number of six bytes."""


def _event_ms(tail: bytes) -> int:
    found = list(fields(tail))
    if any(field == 4 for field, _ in found):
        raise Unread("compaction has removed it")
    numbers = {field: value for field, value in found if isinstance(value, int)}
    return numbers.get(5, 0) if numbers.get(5, 0) <= _LAST_MS else 0


def _places(body: bytes, count: int) -> _Places:
    """Return where the parts of each message of a batch are. Raises as ``Messages._add_batch``."""
    found, stop = _Places([], [], [], []), 0
    for _ in range(count):
        start = stop + 4
        end = start + _size_at(body, stop)[0]
        cut = _head_end(body, start, end)
        stop = end + read_varint(body, cut + 1)[0]
        for column, place in zip(found, (start, cut, end, stop), strict=True):
            column.append(place)
    if stop > len(body):
        raise ValueError("it is cut")
    if stop < len(body):
        raise Unread("more follows its messages")
    return found


def _head_end(body: bytes, at: int, end: int) -> int:
    """Return where properties and key end in the metadata of a message. Raises as ``Messages._add_batch``."""
    while at < end and body[at] in (10, 18):
        size, after = read_varint(body, at + 1)
        at = after + size
    if end > len(body):
        raise ValueError("it is cut")
    if at >= end or body[at] != 24:
        raise Unread("its metadata are not in the order of their fields")
    return at

"""Decodes the entries of a partition, as Pulsar stores them, into columns of messages.

It is not the decoder of Pulsebridge's Spark source, whose defects an audit must find. ``Unread`` leaves to Pulsar's
client what ingest does not write, or rarely: compressed, encrypted and chunked messages, and markers of transactions.
"""

from __future__ import annotations

from contextlib import suppress
from secrets import randbits
from struct import Struct, error
from typing import Any, Final, NamedTuple, cast

import numpy as np
from google_crc32c import value as crc32c

from bridge.contract import P_DEVICE, P_INGEST, P_REPLAYED, P_RETAINED, P_RULE, P_TOPIC, full_envelope
from bridge.errors import ContractError
from bridge.pulsar.client import Message, key_of, properties_of
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import fields, number, read_varint, text

__all__ = ["Columns", "Kind", "Messages", "Unread"]

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
    """Return the kind of the messages whose metadata begin with these properties and key. Raises _Misplaced."""
    with suppress(IndexError, ValueError, Unread):
        if _head_end(head + b"\x18", 0, len(head) + 1) == len(head):
            return _kind_of(head)
    raise _Misplaced("not properties and key")


def _kind_of(head: bytes) -> Kind:
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


class Columns(NamedTuple):
    """Messages of a partition by column, in its order."""

    ledger: Any
    entry: Any
    index: Any
    us: Any
    """Publish time, µs since the epoch."""
    arrivals: Any
    """Event time in µs, -1 without one."""
    payloads: list[bytes]
    kinds: list[Kind]
    of: Any
    """Index into ``kinds`` of each message."""


class _Misplaced(Unread):
    """Raised when the bytes before a tail are not a head."""


class Messages:
    """Messages of a partition, until ``clear``.

    An entry becomes a body of messages: each is the size of its metadata, these, and its payload. The metadata are the
    head, properties and key, and the tail: the size of the payload, event time and sequence id.
    """

    def __init__(self) -> None:
        self._known: dict[int, Kind] = {}
        """Kinds by the hash of a head."""
        self.clear()

    def clear(self) -> None:
        """Remove all messages."""
        self._bodies: list[bytes] = []
        self._entries: list[tuple[int, int, int, int, int, int]] = []
        """By body: ledger, entry, publish time in µs, first index, number of messages, tail of a guess."""
        self._begins: list[Any] = []
        """By body: where its messages begin."""
        self._cuts: list[Any] = []
        """By body: where the tails of its messages begin."""
        self._count = 0
        self._bytes = 0
        if len(self._known) > _KINDS:
            self._known.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether they are to be cleared."""
        return len(self) >= _MESSAGES or self._bytes >= _BYTES

    def add_message(self, message: Message) -> None:
        """Append a message of Pulsar's client."""
        at, head = message.message_id(), head_of(key_of(message) or "", properties_of(message) or {})
        of = at.ledger_id(), at.entry_id(), message.publish_timestamp()
        self._add_one(of, head, message.data(), message.event_timestamp(), max(0, at.batch_index()))

    def _add_one(self, of: tuple[int, int, int], head: bytes, payload: bytes, event_ms: int, index: int = 0) -> None:
        event = number(5, event_ms) if 0 < event_ms <= _LAST_MS else b""
        metadata = head + number(3, len(payload)) + event
        body = len(metadata).to_bytes(4, "big") + metadata + payload
        self._add(of, index, body, [0], [4 + len(head)])

    def _add(self, of: tuple[int, int, int], index: int, body: bytes, begins: Any, cuts: Any, tail: int = 0) -> None:
        """Append a body. ``of``: ledger, entry and publish time in ms; ``index`` of its first message in the entry.

        With ``tail`` the places are a guess, else they are right.
        """
        ledger, entry, published_ms = of
        self._bodies.append(body)
        self._entries.append((ledger, entry, min(published_ms, _LAST_MS) * 1000, index, len(begins), tail))
        self._begins.append(np.asarray(begins, np.int64))
        self._cuts.append(np.asarray(cuts, np.int64))
        self._count += len(begins)
        self._bytes += len(body)

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
        of, count = (raw.ledger, raw.entry, numbers.get(_PUBLISHED, 0)), numbers.get(_COUNT, 1)
        if _COUNT in numbers:
            # A batch that is cut has no messages for anyone; Pulsar's client would end the process.
            with suppress(IndexError, ValueError, error):
                self._add(of, 0, body, *(_guess(body, count) or _places(body, count)))
        else:
            head = [text({4: 1, 6: 2}[field], value) for field, value in metadata
                    if field in (4, 6) and isinstance(value, bytes)]  # fmt: skip
            self._add_one(of, b"".join(head), body, numbers.get(_EVENT, 0))
        return min(count, _MESSAGES)

    def columns(self) -> Columns:
        """Return the messages. Raises Unread."""
        try:
            return self._columns()
        except _Misplaced:
            bodies = list(zip(self._entries, self._bodies, strict=True))
            self.clear()
        for (ledger, entry, us, index, count, _), body in bodies:
            with suppress(IndexError, ValueError, error):
                self._add((ledger, entry, us // 1000), index, body, *_places(body, count))
        return self._columns()

    def _columns(self) -> Columns:
        ledger, entry, us, first, count, tail = np.array(self._entries, np.int64).reshape(-1, 6).T
        index = np.arange(len(self)) - np.repeat(np.cumsum(count) - count - first, count)
        joined = b"".join([*self._bodies, bytes(8)])
        size = len(joined) - 8
        sizes = np.fromiter(map(len, self._bodies), np.int64, len(self._bodies))
        base = np.repeat(np.cumsum(sizes) - sizes, count)
        begins, cuts = (np.concatenate([base[:0], *some]) + base for some in (self._begins, self._cuts))
        eights = np.ndarray(size + 1, "<u8", joined, strides=(1,))
        data = np.frombuffer(joined, np.uint8)
        ends, nexts = begins + 4 + _sizes_at(data, begins), np.append(begins[1:], size)
        cuts = self._right_cuts(data, cuts, ends, nexts, np.repeat(tail, count))
        payloads = list(map(joined.__getitem__, map(slice, ends.tolist(), nexts.tolist())))
        kinds, of = self._kinds(joined, eights, begins + 4, cuts)
        arrivals = _arrivals(joined, eights, cuts, ends)
        ledger, entry, us = (np.repeat(one, count) for one in (ledger, entry, us))
        return Columns(ledger, entry, index, us, arrivals, payloads, kinds, of)

    @staticmethod
    def _right_cuts(data: Any, cuts: Any, ends: Any, nexts: Any, tails: Any) -> Any:
        """Return the places of the tails, those of a guess by its tail. Raises _Misplaced if it is wrong.

        It is right if each message ends where the next begins, and what is before each tail is a head (see ``_kind``).
        """
        if not tails.any():
            return cuts
        cuts = np.where(tails, ends - tails, cuts)
        if (ends > nexts).any() or (cuts < 0).any():
            raise _Misplaced("a message is longer than its place")
        long = (data[cuts] != 24) & (tails > 0)  # the size of the payload has two bytes
        cuts = cuts - long
        low = data[cuts + 1].astype(np.int64)
        stops = ends + low + np.where(long, data[cuts + 2].astype(np.int64) * 128 - 128, 0)
        if (((data[cuts] != 24) | ((low > 127) != long) | (stops != nexts)) & (tails > 0)).any():
            raise _Misplaced("a message ends where the next does not begin")
        return cuts

    def _kinds(self, joined: bytes, eights: Any, begins: Any, cuts: Any) -> tuple[list[Kind], Any]:
        """Return the kinds and which is that of each message, whose head is between these places. Raises _Misplaced."""
        if (cuts < begins).any():
            raise _Misplaced("a tail is longer than the metadata")
        hashes, first, of = np.unique(_hashes(eights, begins, cuts), return_index=True, return_inverse=True)
        kinds = list(map(self._known.get, hashes.tolist()))
        for n in [n for n, kind in enumerate(kinds) if kind is None]:
            head = joined[begins[first[n]] : cuts[first[n]]]
            kinds[n] = self._known[int(hashes[n])] = _kind(head)
        return cast("list[Kind]", kinds), of


_size_at: Final = Struct(">I").unpack_from
_MANY: Final = 50
_LEAST: Final = 16
"""Bytes of a body, so that a property can begin."""
_FACTOR: Final = np.uint64(randbits(64) | 1)
"""Random, so that no device can choose properties of equal hashes."""


def _hashes(eights: Any, begins: Any, ends: Any) -> Any:
    """Return a hash of 64 bits of each piece between these places. ``eights``: the eight bytes from each place on."""
    sizes = ends - begins
    found, last = sizes.astype(np.uint64), begins + np.maximum(sizes - 8, 0)
    for n in range(0, int(sizes.max(initial=0)), 8):
        found = (found ^ eights[np.minimum(begins + n, last)]) * _FACTOR
        found ^= found >> np.uint64(32)
    return found


_EVENT_MASK: Final = np.uint64(0x80_80_80_80_80_80_FF)
_EVENT_BITS: Final = np.uint64(0x00_80_80_80_80_80_28)
"""The tag of the event time, and a number of six bytes."""


def _arrivals(joined: bytes, eights: Any, cuts: Any, ends: Any) -> Any:
    """Return the event time of each message in µs, -1 without one. Raises Unread."""
    begins = cuts + np.where((eights[cuts] & np.uint64(0x8000)) > 0, 3, 2)  # behind the size of the payload
    # Nearly each has the event time there, in the six bytes that a time has until the year 2109, and ends there, or the
    # sequence id follows.
    eight = eights[np.minimum(begins, ends)]
    after = begins + 7
    usual = (eight & _EVENT_MASK == _EVENT_BITS) & ((after == ends) | ((after < ends) & (eight >> np.uint64(56) == 64)))
    ms = np.zeros(len(ends), np.int64)
    for byte in range(6):
        ms |= ((eight >> np.uint64(8 + 8 * byte) & np.uint64(127)) << np.uint64(7 * byte)).astype(np.int64)
    for n in np.flatnonzero(~usual).tolist():
        ms[n] = _event_ms(joined[cuts[n] : ends[n]])
    return np.where(ms > 0, ms * 1000, -1)


def _event_ms(tail: bytes) -> int:
    found = list(fields(tail))
    if any(field == 4 for field, _ in found):
        raise Unread("compaction has removed it")
    numbers = {field: value for field, value in found if isinstance(value, int)}
    return numbers.get(5, 0) if numbers.get(5, 0) <= _LAST_MS else 0


def _guess(body: bytes, count: int) -> tuple[Any, Any, int] | None:
    """Guess where each message begins, by the name of its first property. Returns that, zeros, and the length of a tail
    whose payload is short.

    None for few messages, and if they have not that name in common.
    """
    if count < _MANY or len(body) < _LEAST or body[4] != 10:
        return None
    at = 6 + (body[5] > 127)  # the size of a property has one byte or two
    name = body[at : at + 2 + body[at + 1]]
    pieces = body.split(name)
    if len(pieces) != count + 1 or len(pieces[0]) != at:
        return None
    names = np.cumsum(np.fromiter(map(len, pieces[:-1]), np.int64, count) + len(name)) - len(name)
    begins = names - np.where(np.frombuffer(body, np.uint8)[names - 2] == 10, 6, 7)
    end = 4 + int.from_bytes(body[:4], "big")
    with suppress(IndexError, ValueError, Unread):
        cut = _head_end(body, 4, end)
        return None if begins[0] else (begins, np.zeros_like(begins), end - cut - (body[cut + 1] > 127))
    return None


def _sizes_at(data: Any, at: Any) -> Any:
    """Return the numbers of four bytes at these places."""
    return np.ndarray(len(data) - 3, ">u4", data, strides=(1,))[at].astype(np.int64)


def _places(body: bytes, count: int) -> tuple[list[int], list[int]]:
    """Return where each message and its tail begin. Raises Unread, and IndexError, ValueError or struct.error if it is cut."""
    begins, cuts, at = [], [], 0
    for _ in range(count):
        end = at + 4 + _size_at(body, at)[0]
        begins.append(at)
        cuts.append(_head_end(body, at + 4, end))
        at = end + read_varint(body, cuts[-1] + 1)[0]
        if at > len(body):
            raise ValueError("it is cut")
    if at < len(body):
        raise Unread("more follows its messages")
    return begins, cuts


def _head_end(body: bytes, at: int, end: int) -> int:
    """Return where properties and key end in the metadata of a message. Raises as ``_places``."""
    while at < end and body[at] in (10, 18):
        size, after = read_varint(body, at + 1)
        at = after + size
    if end > len(body):
        raise ValueError("it is cut")
    if at >= end or body[at] != 24:
        raise Unread("its metadata are not in the order of their fields")
    return at

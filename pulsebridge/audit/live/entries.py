"""Decodes the entries of a partition, as Pulsar stores them, into columns of messages.

It is not the decoder of Pulsebridge's Spark source, whose defects an audit must find. ``Unread`` leaves to Pulsar's
client what ingest does not write, or rarely: compressed, encrypted and chunked messages, and markers of transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from secrets import randbits
from struct import Struct, error
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from bridge.contract import P_DEVICE, P_INGEST, P_REPLAYED, P_RETAINED, P_RULE, P_TOPIC, full_envelope
from bridge.errors import ContractError
from bridge.pulsar.client import Message, key_of, properties_of
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.entry_reader import RawEntry
from bridge.pulsar.wire.protobuf import fields, number, read_varint, text
from pulsebridge.audit.live.payloads import PADDING, Payloads, eights_of, hashes, places_of

__all__ = ["Columns", "Kind", "Messages", "Unread"]

_MESSAGES: Final = 20_000
_BYTES: Final = 32 * 1024 * 1024
_KINDS: Final = 100_000
_MOST: Final = 1 << 31
"""No batch has more messages."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999. Tables have no later time."""
_COUNT: Final = 11
_NUMBERS: Final = 3, _COUNT, 12
"""Publish time, number of messages, event time."""
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
    payloads: Payloads
    kinds: list[Kind]
    of: Any
    """Index into ``kinds`` of each message."""


class _Misplaced(Unread):
    """Raised when a guess of the places was wrong."""


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
        self._entries: list[tuple[int, int, int, int, int]] = []
        """By body: ledger, entry, publish time in ms, first index, number of messages as it says."""
        self._count = 0
        self._bytes = 0
        if len(self._known) > _KINDS:
            self._known.clear()

    def __bool__(self) -> bool:
        return bool(self._bodies)

    @property
    def full(self) -> bool:
        """Whether they are to be cleared."""
        return self._count >= _MESSAGES or self._bytes >= _BYTES

    def add_message(self, message: Message) -> None:
        """Append a message of Pulsar's client."""
        at, head = message.message_id(), head_of(key_of(message) or "", properties_of(message) or {})
        of = at.ledger_id(), at.entry_id(), message.publish_timestamp()
        self._add_one(of, head, message.data(), message.event_timestamp(), max(0, at.batch_index()))

    def _add_one(self, of: tuple[int, int, int], head: bytes, payload: bytes, event_ms: int, index: int = 0) -> None:
        event = number(5, event_ms) if 0 < event_ms <= _LAST_MS else b""
        metadata = head + number(3, len(payload)) + event
        self._add(of, len(metadata).to_bytes(4, "big") + metadata + payload, 1, index)

    def _add(self, of: tuple[int, int, int], body: bytes, count: int, index: int = 0) -> None:
        """Append a body. ``of``: ledger, entry and publish time in ms; ``index`` of its first message in the entry."""
        ledger, entry, published_ms = of
        self._bodies.append(body)
        self._entries.append((ledger, entry, min(published_ms, _LAST_MS), index, min(count, _MOST)))
        self._count += count
        self._bytes += len(body)

    def add(self, raw: RawEntry, before_us: int) -> int | None:
        """Append the messages of an entry; None if it was published at ``before_us`` or later.

        Returns how many messages it claims to have. A batch that ends too early has none. Raises Unread.
        """
        data, at = raw.data, 6 if raw.data[:2] == b"\x0e\x01" else 0
        if at and crc32c(data[at:]) != int.from_bytes(data[2:at], "big"):
            raise Unread("its checksum does not match")
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        metadata = list(fields(data[at + 4 : end]))
        has = dict(metadata)
        published, count, event = [value if isinstance(value, int) else 0 for value in map(has.get, _NUMBERS)]
        if published * 1000 >= before_us:
            return None
        if not _FOREIGN.isdisjoint(has) and any(has.get(n) for n in _FOREIGN):
            raise Unread("ingest does not write such entries")
        of = raw.ledger, raw.entry, published
        if _COUNT in has:
            self._add(of, data[end:], count)
            return min(count, _MESSAGES)
        head = [text({4: 1, 6: 2}[field], value) for field, value in metadata
                if field in (4, 6) and isinstance(value, bytes)]  # fmt: skip
        self._add_one(of, b"".join(head), data[end:], event)
        return 1

    def columns(self) -> Columns:
        """Return the messages. A batch that ends too early has none. Raises Unread."""
        try:
            return self._columns(_guess)
        except _Misplaced:
            return self._columns(_no_guess)

    def _columns(self, guess: Callable[[bytes, Any, Any], tuple[Any, Any]]) -> Columns:
        joined = b"".join([*self._bodies, PADDING])
        data, eights = np.frombuffer(joined, np.uint8), eights_of(joined)
        ledger, entry, ms, first, count = np.array(self._entries, np.int64).reshape(-1, 5).T
        stops = np.cumsum(np.fromiter(map(len, self._bodies), np.int64, len(self._bodies)))
        starts = np.append(0, stops)[:-1]
        begins, right = guess(joined, starts, count)
        cuts, rest = np.zeros_like(begins), np.flatnonzero(~right)
        if len(rest):
            own = [_places_or_none(self._bodies[n], int(count[n])) for n in rest.tolist()]
            count[rest] = [len(one) for one, _ in own]
            of = np.repeat(starts[rest], count[rest])
            more = [np.fromiter(chain.from_iterable(some), np.int64, len(of)) + of for some in zip(*own, strict=True)]
            begins, cuts = np.concatenate((begins, more[0])), np.concatenate((cuts, more[1]))
            order = np.argsort(begins)
            begins, cuts = begins[order], cuts[order]
        last = np.cumsum(count) - 1
        nexts = np.append(begins[1:], 0)
        nexts[last[count > 0]] = stops[count > 0]
        ends = begins + 4 + _sizes_at(data, begins)
        cuts = _right_cuts(eights, cuts, ends, nexts)
        kinds, of = self._kinds(joined, begins + 4, cuts)
        index = np.arange(len(begins)) + np.repeat(first + count - 1 - last, count)
        ledger, entry, us = (np.repeat(one, count) for one in (ledger, entry, ms * 1000))
        arrivals = _arrivals(joined, eights, cuts, ends)
        return Columns(ledger, entry, index, us, arrivals, Payloads(joined, ends, nexts), kinds, of)

    def _kinds(self, joined: bytes, begins: Any, cuts: Any) -> tuple[list[Kind], Any]:
        """Return the kinds and which is that of each message, whose head is between these places. Raises _Misplaced."""
        if (cuts < begins).any():
            raise _Misplaced("a tail is longer than the metadata")
        encoded = pa.array(hashes(joined, begins, cuts, _FACTOR)).dictionary_encode()
        found, of = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        kinds = list(map(self._known.get, found))
        some = np.zeros(len(found), np.int64)  # a message of each kind
        some[of] = np.arange(len(of))
        for n in [n for n, kind in enumerate(kinds) if kind is None]:
            kinds[n] = self._known[found[n]] = _kind(joined[begins[some[n]] : cuts[some[n]]])
        return cast("list[Kind]", kinds), of


_size_at: Final = Struct(">I").unpack_from
_SIZE: Final = 24
"""The tag of the size of the payload."""
_PROPERTY: Final = 10
"""The tag of a property, and of its name."""
_TAILS: Final = (*range(9, 24), *range(2, 9))
"""Sizes of tails, the usual ones first: with an event time."""
_FACTOR: Final = randbits(64) | 1
"""Random, so that no device can choose properties of equal hashes."""
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


def _guess(joined: bytes, starts: Any, count: Any) -> tuple[Any, Any]:
    """Guess where each message begins, by the name of the first one's first property. ``starts`` and ``count`` are those
    of the bodies in ``joined``.

    Returns the places in the bodies that have that name as often as messages, and which bodies these are.
    """
    at = 6 + (joined[5] > 127)  # the size of a property has one byte or two
    name = joined[at : at + 2 + joined[at + 1]] if joined[4] == _PROPERTY else b""
    names = places_of(joined, name) if name else np.empty(0, np.int64)
    begins = names - np.where(np.frombuffer(joined, np.uint8)[names - 2] == _PROPERTY, 6, 7)
    begins = begins[begins >= 0]
    first = np.searchsorted(begins, starts)
    found = np.diff(first, append=len(begins))
    right = (found == count) & (count > 0)
    right[right] = begins[first[right]] == starts[right]
    return begins[np.repeat(right, found)], right


def _no_guess(_joined: bytes, starts: Any, _count: Any) -> tuple[Any, Any]:
    return np.empty(0, np.int64), np.zeros(len(starts), bool)


def _right_cuts(eights: Any, cuts: Any, ends: Any, nexts: Any) -> Any:
    """Return the places of the tails, and those that are not known, 0, by the payload's size. Raises _Misplaced if the
    guess of the messages was wrong.

    It is right if each message ends where the next begins, and what is before each tail is a head (see ``_kind``).
    """
    rest = np.flatnonzero(cuts == 0)
    sizes = nexts[rest] - ends[rest]
    if (sizes < 0).any():
        raise _Misplaced("a message is longer than its place")
    short = sizes < 128  # else the number has two bytes, or is not found
    wanted = (np.where(short, sizes << 8, (sizes & 127 | 128) << 8 | sizes >> 7 << 16) | _SIZE).astype(np.uint64)
    mask = np.where(short, np.uint64(0xFFFF), np.uint64(0xFF_FFFF))
    for tail in _TAILS:
        at = np.maximum(ends[rest] - tail, 0)
        right = eights[at] & mask == wanted
        cuts[rest[right]] = at[right]
        rest, wanted, mask = (one[~right] for one in (rest, wanted, mask))
        if not len(rest):
            return cuts
    raise _Misplaced("a message ends where the next does not begin")


def _sizes_at(data: Any, at: Any) -> Any:
    """Return the numbers of four bytes at these places."""
    return np.ndarray(len(data) - 3, ">u4", data, strides=(1,))[at].astype(np.int64)


def _places_or_none(body: bytes, count: int) -> tuple[list[int], list[int]]:
    """Return as ``_places``; none of a body that is cut. (Pulsar's client ends the process there.)"""
    with suppress(IndexError, ValueError, error):
        return _places(body, count)
    return [], []


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

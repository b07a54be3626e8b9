"""The commands that wait in Pulsar for one device: their ids, in segments as they are stored. Pure.

An id is all that stays in memory; the payload stays in the commands topic, kept by a hold. The ids are stored in the
cursors partition under keys of their own, at most 256 in each, and only the last one is ever written again (H29). A
segment belongs to the owner that began it: a later owner reads it and removes it, and appends to segments of its own,
so that a write of a former owner that is stored late replaces nothing.

A command that waits for very long is copied to a topic of its own (``moving``). It keeps the position by which it is
known; where its copy stands is told beside it, in a segment of a version of its own, which an older reader refuses.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from bridge.contract import SEGMENT_VERSION
from bridge.contract.commands import CommandPosition
from bridge.contract.decoding import LAST_US, checked_position, checked_whole, checked_wholes, decodes, json_record

__all__ = [
    "GONE",
    "SEGMENT_IDS",
    "Parked",
    "ParkedId",
    "Segment",
    "decode_segment",
    "read_segment",
    "segment_device",
    "segment_key",
]

SEGMENT_IDS: Final = 256
_PREFIX: Final = "\0parked\0"
"""Keys of segments; no device is called so, MQTT topics have no U+0000."""
_WIDTH: Final = 5
_PLACE: Final = 3
_NO_PLACE: Final = (-1, -1, -1)
_PACKED: Final = Struct("<qqq")
GONE: Final = CommandPosition(-2, -2, -2)
"""The place of a copy that could not be made, because the command was not in Pulsar any more."""


class ParkedId(NamedTuple):
    """A command in Pulsar. ``maybe_seen``: the device may have had it, so that its push is a repetition; ``unsure``: it
    counted as delivered, and is sent again all the same (H26).
    """

    position: CommandPosition
    expires_at_ms: int = 0
    maybe_seen: bool = False
    unsure: bool = False
    place: CommandPosition | None = None
    """Where its copy stands in the topic of moved commands, None where it was not moved."""

    def numbers(self) -> tuple[int, ...]:
        """Return it as it is stored."""
        return (*self.position, self.expires_at_ms, self.maybe_seen | self.unsure << 1)


class Segment(NamedTuple):
    """What a stored segment says."""

    ids: list[ParkedId]
    since_us: int
    """When the first of them was parked, 0 where it does not say."""


class _Segment:
    """A stored segment. Of most devices that are away there is one: its positions take 57 bytes each, not 140."""

    __slots__ = ("_first", "_last", "fixed", "key", "since_us", "start")

    def __init__(
        self,
        key: str,
        first: CommandPosition,
        last: CommandPosition,
        start: int | None,
        fixed: bytes | None = None,
        since_us: int = 0,
    ) -> None:
        self.key = key
        self._first, self._last = _PACKED.pack(*first), _PACKED.pack(*last)
        self.start = start
        """Number of its first id, counted from the first that was ever parked."""
        self.fixed = fixed
        """Instead of the start, as it was stored; None for a former owner's."""
        self.since_us = since_us

    @property
    def first(self) -> CommandPosition:
        """What it has before stands in another one as well."""
        return CommandPosition(*_PACKED.unpack(self._first))

    @first.setter
    def first(self, position: CommandPosition) -> None:
        self._first = _PACKED.pack(*position)

    @property
    def last(self) -> CommandPosition:
        """The position of its last id."""
        return CommandPosition(*_PACKED.unpack(self._last))

    @last.setter
    def last(self, position: CommandPosition) -> None:
        self._last = _PACKED.pack(*position)


def segment_key(device: str, owner: str, number: int) -> str:
    """Return the key of a segment that ``owner`` begins."""
    return f"{_PREFIX}{owner}.{number}\0{device}"


def segment_device(key: str) -> str | None:
    """Return whose segment is stored under ``key``, None when it is the key of none."""
    parts = key.split("\0", 3) if key.startswith(_PREFIX) else []
    return parts[3] if len(parts) == 4 and parts[3] else None


def decode_segment(payload: bytes) -> list[ParkedId]:
    """Read the ids of a segment. Raises as ``read_segment``."""
    return read_segment(payload).ids


@decodes("a segment of parked commands")
def read_segment(payload: bytes) -> Segment:
    """Read a segment. Raises ContractError when the payload is not one of these versions."""
    body = json_record(payload, "segment of parked commands", (SEGMENT_VERSION,))
    flat = checked_wholes(body["parked"], _WIDTH)
    places = checked_wholes(body.get("places", []), _PLACE)
    since_us = checked_whole(body.get("since_us", 0), 0, LAST_US)
    count = len(flat) // _WIDTH
    for numbers, width in ((flat, _WIDTH), (places, _PLACE)):
        for at in range(0, len(numbers), width):
            checked_position(numbers[at : at + _PLACE])
    if places and len(places) != count * _PLACE:
        raise ValueError(f"{count} ids, and {len(places)} numbers of their copies")
    ids = [
        _id_of(flat[at * _WIDTH : (at + 1) * _WIDTH], places[at * _PLACE : (at + 1) * _PLACE] or _NO_PLACE)
        for at in range(count)
    ]
    return Segment(ids, since_us)


def _id_of(numbers: Sequence[int], place: Sequence[int] = _NO_PLACE) -> ParkedId:
    ledger, entry, index, expires, flags = numbers
    where = None if tuple(place) == _NO_PLACE else CommandPosition(*place)
    position = CommandPosition(ledger, entry, index)
    return ParkedId(position, expires, bool(flags & 1), bool(flags & 2), where)


def _encoded(flat: array[int], places: array[int] | None, since_us: int) -> bytes:
    body: dict[str, object] = {"v": SEGMENT_VERSION, "parked": flat.tolist()}
    if since_us:
        body["since_us"] = since_us
    if places is not None and any(number != -1 for number in places):
        body["places"] = places.tolist()
    return json.dumps(body, separators=(",", ":")).encode()


class Parked:
    """The parked commands of one device, in the order of the log."""

    __slots__ = (
        "_first",
        "_ids",
        "_places",
        "_segments",
        "_staying",
        "places_from",
        "since_us",
        "stays_since_us",
    )

    def __init__(self) -> None:
        self._ids = array("q")  # flat: a million of them take 40 MB
        self._first = 0  # number of the first one
        self._segments: list[_Segment] = []
        self.since_us = 0
        """When the device went away: an earlier sign of life is none (H31)."""
        self._places: array[int] | None = None  # of the copies, once there is one
        self._staying = 0  # how many were not moved
        self.stays_since_us = 0
        """When the oldest that was not moved was parked, or earlier; 0 where all were."""
        self.places_from: CommandPosition | None = None
        """No copy stands before it; None without copies."""

    @classmethod
    def loaded(cls, segments: Mapping[str, Sequence[ParkedId]], done: CommandPosition, since_us: int = 0) -> Parked:
        """Return what former owners stored, less what is at or below ``done``. ``since_us``: when the oldest of it was
        parked.
        """
        parked = cls()
        merged: dict[CommandPosition, ParkedId] = {}
        for key, ids in segments.items():
            all_of = [one.position for one in ids] or [done]
            parked._segments.append(_Segment(key, min(all_of), max(all_of), None))
            for one in ids:
                if one.position > done:
                    known = merged.get(one.position, one)
                    merged[one.position] = one._replace(
                        maybe_seen=one.maybe_seen or known.maybe_seen,
                        unsure=one.unsure or known.unsure,
                        # What is sent once more names where it was found: a copy from before may be let go of.
                        place=one.place or known.place
                        if one.unsure == known.unsure
                        else (one if one.unsure else known).place,
                    )
        parked._segments.sort(key=lambda segment: segment.last)
        for position in sorted(merged):
            parked._put(merged[position], since_us)
        return parked

    def __len__(self) -> int:
        return len(self._ids) // _WIDTH

    def __getitem__(self, index: int) -> ParkedId:
        place = self.place(index)
        numbers = self._ids[index * _WIDTH : (index + 1) * _WIDTH]
        return _id_of(numbers, _NO_PLACE if place is None else place)

    def place(self, index: int) -> CommandPosition | None:
        """Return where the copy of one stands, None where it was not moved."""
        if self._places is None:
            return None
        place = CommandPosition(*self._places[index * _PLACE : (index + 1) * _PLACE])
        return None if place == _NO_PLACE else place

    @property
    def stays(self) -> bool:
        """Whether any was not moved."""
        return self._staying > 0

    def first_staying(self) -> int | None:
        """Return the index of the oldest that was not moved, None when all were."""
        if not self._staying:
            return None
        return 0 if self._places is None else self._places[::_PLACE].index(-1)

    def to_move(self) -> list[CommandPosition]:
        """Return the positions of the oldest that were not moved, as many as go into one segment."""
        first = self.first_staying()
        if first is None:
            return []
        last = min(len(self), first + SEGMENT_IDS)
        while self._places is not None and any(n != -1 for n in self._places[first * _PLACE : last * _PLACE]):
            last -= 1
        return [self.position(index) for index in range(first, last)]

    def moved(
        self,
        wanted: Sequence[CommandPosition],
        places: Sequence[CommandPosition],
        new_key: Callable[[], str],
        now_us: int,
    ) -> tuple[list[str], list[str]] | None:
        """Note where the copies of ``wanted`` stand, in segments of their own. Returns the keys of these, in the order in
        which they are to be stored, and of those that they replace then; None when ``wanted`` is not what stands here.
        """
        first = self.find(wanted[0])
        if first is None or first + len(wanted) > len(self):
            return None
        if self.position(first + len(wanted) - 1) != wanted[-1] or self.place(first) is not None:
            return None
        if self._places is None:
            self._places = array("q", _NO_PLACE * len(self))
        last = first + len(wanted)
        self._places[first * _PLACE : last * _PLACE] = array("q", [number for place in places for number in place])
        self._staying -= len(wanted)
        self.stays_since_us = now_us if self._staying else 0
        self.places_from = min((p for p in (self.places_from, *places) if p and p != GONE), default=None)
        return self._replace(first, last, new_key)

    def _replace(
        self, first: int, last: int, new_key: Callable[[], str], since_us: int = 0
    ) -> tuple[list[str], list[str]]:
        """Put the ids from index ``first`` to before ``last`` into new segments, instead of those that end among them.

        One of these may begin earlier, where former copies and what was not moved were stored together: then its earlier
        ids go with them, for they may stand nowhere else.
        """
        begin, end = self.position(first), self.position(last - 1)
        replaced = [one for one in self._segments if begin <= one.last <= end]
        low = min((self._before(one.first) for one in replaced), default=first)
        low = min(low, first)
        left = [one for one in self._segments if one not in replaced]
        for one in left:
            if self.position(low) <= one.first <= end < one.last:
                one.first = self.position(last)
        made = [
            self._fixed(new_key(), at, min(at + SEGMENT_IDS, last), since_us) for at in range(low, last, SEGMENT_IDS)
        ]
        at = sum(1 for one in left if one.last < begin)
        self._segments = left[:at] + made + left[at:]
        self._segments.sort(key=lambda one: one.last)
        return [one.key for one in made], [one.key for one in replaced]

    def _fixed(self, key: str, begin: int, end: int, since_us: int) -> _Segment:
        """Return a segment with the ids from index ``begin`` to before ``end``, which is not written again."""
        payload = self._encoded(begin, end, since_us)
        return _Segment(key, self.position(begin), self.position(end - 1), None, payload)

    def _encoded(self, begin: int, end: int, since_us: int) -> bytes:
        places = None if self._places is None else self._places[begin * _PLACE : end * _PLACE]
        return _encoded(self._ids[begin * _WIDTH : end * _WIDTH], places, since_us)

    def __iter__(self) -> Iterator[ParkedId]:
        return (self[index] for index in range(len(self)))

    def position(self, index: int) -> CommandPosition:
        """Return the position of one; negative counts from the end."""
        at = (index % len(self)) * _WIDTH
        return CommandPosition(*self._ids[at : at + 3])

    def __contains__(self, position: CommandPosition) -> bool:
        return self.find(position) is not None

    def find(self, position: CommandPosition) -> int | None:
        """Return the index of a command, None when it is not parked."""
        at = self._before(position)
        return at if at < len(self) and self.position(at) == position else None

    def up_to(self, position: CommandPosition) -> int:
        """Return how many are at or below ``position``."""
        at = self._before(position)
        return at + (at < len(self) and self.position(at) == position)

    def _before(self, position: CommandPosition) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.position(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def key_of(self, position: CommandPosition) -> str:
        """Return the key of the segment in which a parked command stands."""
        return next(segment.key for segment in self._segments if segment.last >= position)

    def renew(self, new_key: Callable[[], str]) -> tuple[list[str], list[str]]:
        """Put into new segments what stands with something that is done, so that no stored form says anything of that.
        Returns the keys of these, in the order in which they are to be stored, and of those that they replace then.
        """
        stale = [self.up_to(one.last) for one in self._segments if one.first < self.position(0)]
        return self._replace(0, max(stale), new_key, self.stays_since_us) if stale else ([], [])

    def keys_before(self, position: CommandPosition) -> list[str]:
        """Return the keys of the segments that end at or below ``position``, the last one first."""
        return [segment.key for segment in reversed(self._segments) if segment.last <= position]

    def mark_seen(self, position: CommandPosition) -> None:
        """Note that the device may have had it; in memory alone."""
        index = self.find(position)
        if index is not None:
            self._ids[index * _WIDTH + _WIDTH - 1] |= 1

    def prepend(self, ids: list[ParkedId], key: str) -> None:
        """Put what stands before all others into a segment of its own."""
        flat = array("q")
        for one in ids:
            flat.extend(one.numbers())
        for segment in self._segments:  # what was before its first one is done with: its number is given anew
            if segment.start is not None:
                segment.start = max(segment.start, self._first)
        self._ids[0:0] = flat
        places = array("q", [number for one in ids for number in one.place or _NO_PLACE])
        if self._places is None and any(one.place for one in ids):
            self._places = array("q", _NO_PLACE * (len(self) - len(ids)))
        if self._places is not None:
            self._places[0:0] = places
        copies = [one.place for one in ids if one.place not in (None, GONE)]
        self.places_from = min((p for p in (self.places_from, *copies) if p), default=None)
        self._staying += sum(1 for one in ids if one.place is None)
        self._first -= len(ids)
        self._segments.insert(
            0,
            _Segment(
                key,
                ids[0].position,
                ids[-1].position,
                None,
                _encoded(flat, places, self.stays_since_us),
            ),
        )

    def _put(self, one: ParkedId, now_us: int) -> None:
        self._ids.extend(one.numbers())
        if one.place is None:
            self.stays_since_us = self.stays_since_us if self._staying else now_us
            self._staying += 1
        else:
            if one.place != GONE:
                self.places_from = min(self.places_from or one.place, one.place)
            if self._places is None:
                self._places = array("q", _NO_PLACE * (len(self) - 1))
        if self._places is not None:
            self._places.extend(one.place or _NO_PLACE)

    def append(self, one: ParkedId, new_key: str, now_us: int) -> str:
        """Add the newest. Returns the key of the segment to be stored, ``new_key`` when a new one begins."""
        number = self._first + len(self)
        last = self._segments[-1] if self._segments else None
        if last is None or last.start is None or number - last.start >= SEGMENT_IDS:
            last = _Segment(new_key, one.position, one.position, number, since_us=now_us)
            self._segments = [*self._segments, last]  # of the right size: most devices have this one alone
        else:
            last.last = one.position
        self._put(one, now_us)
        return last.key

    def payload(self, key: str) -> bytes | None:
        """Return a segment as it is to be stored, None when it is not there any more."""
        segment = next((one for one in self._segments if one.key == key), None)
        if segment is None or segment.start is None:
            return None if segment is None else segment.fixed
        begin = max(0, segment.start - self._first)
        return self._encoded(begin, self.up_to(segment.last), segment.since_us)

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Yield key and payload of each segment, as it may be stored once more. In this order no id is missing between
        any two: one that former owners stored in several segments stands in the earliest of them then.
        """
        done = 0  # up to there all stands in those that were yielded
        for segment in self._segments:
            begin, end = self._before(segment.first), self.up_to(segment.last)
            payload = self.payload(segment.key)
            if payload is None:
                begin = min(done, end)
                payload = self._encoded(begin, end, self.stays_since_us)
                segment.first = self.position(begin) if begin < end else segment.last
            if begin <= done:
                done = max(done, end)
            yield segment.key, payload

    def finish(self, position: CommandPosition) -> list[str]:
        """Forget all at or below ``position``. Returns the keys of the segments that are done with."""
        count = 0
        while count < len(self) and self.position(count) <= position:
            count += 1
        del self._ids[: count * _WIDTH]
        if self._places is None:
            self._staying -= count
        else:
            self._staying -= self._places[: count * _PLACE : _PLACE].count(-1)
            del self._places[: count * _PLACE]
            if self._staying == len(self):
                self._places = self.places_from = None
        if not self._staying:
            self.stays_since_us = 0
        self._first += count
        done = [segment.key for segment in self._segments if segment.last <= position]
        self._segments = [segment for segment in self._segments if segment.last > position]
        return done

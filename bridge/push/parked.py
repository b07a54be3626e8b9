"""The commands that wait in Pulsar for one device: their ids, in segments as they are stored. Pure.

An id is all that stays in memory; the payload stays in the commands topic, kept by a hold. The ids are stored in the
cursors partition under keys of their own, at most 256 in each, and only the last one is ever written again (H29). A
segment belongs to the owner that began it: a later owner reads it and removes it, and appends to segments of its own,
so that a write of a former owner that is stored late replaces nothing.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.commands import CommandPosition
from bridge.contract import CURSOR_VERSION
from bridge.errors import ContractError

__all__ = ["SEGMENT_IDS", "Parked", "ParkedId", "decode_segment", "segment_device", "segment_key"]

SEGMENT_IDS: Final = 256
_PREFIX: Final = "\0parked\0"
"""Keys of segments; no device is called so, MQTT topics have no U+0000."""
_WIDTH: Final = 5


class ParkedId(NamedTuple):
    """A command in Pulsar. ``maybe_seen``: the device may have had it, so that its push is a repetition; ``unsure``: it
    counted as delivered, and is sent again all the same (H26).
    """

    position: CommandPosition
    expires_at_ms: int = 0
    maybe_seen: bool = False
    unsure: bool = False

    def numbers(self) -> tuple[int, ...]:
        """Return it as it is stored."""
        return (*self.position, self.expires_at_ms, self.maybe_seen | self.unsure << 1)


@dataclass(slots=True)
class _Segment:
    key: str
    last: CommandPosition
    start: int | None  # number of its first id, counted from the first that was ever parked
    fixed: bytes | None = None  # instead of the start, as it was stored; None for a former owner's


def segment_key(device: str, owner: str, number: int) -> str:
    """Return the key of a segment that ``owner`` begins."""
    return f"{_PREFIX}{owner}.{number}\0{device}"


def segment_device(key: str) -> str | None:
    """Return whose segment is stored under ``key``, None when it is none."""
    return key.split("\0", 3)[3] if key.startswith(_PREFIX) else None


def decode_segment(payload: bytes) -> list[ParkedId]:
    """Read the ids of a segment. Raises ContractError when the payload is not one of this version."""
    try:
        body = json.loads(payload)
        if body["v"] != CURSOR_VERSION:
            raise ContractError(f"parked commands have version {body['v']!r}, this reads {CURSOR_VERSION!r}")
        flat = [int(number) for number in body["parked"]]
    except (KeyError, TypeError, ValueError) as e:
        raise ContractError(f"not a segment of parked commands: {payload[:80]!r}") from e
    if len(flat) % _WIDTH:
        raise ContractError(f"not a segment of parked commands: {payload[:80]!r}")
    return [_id_of(flat[at : at + _WIDTH]) for at in range(0, len(flat), _WIDTH)]


def _id_of(numbers: Iterable[int]) -> ParkedId:
    ledger, entry, index, expires, flags = numbers
    return ParkedId(CommandPosition(ledger, entry, index), expires, bool(flags & 1), bool(flags & 2))


def _encoded(flat: array[int]) -> bytes:
    return json.dumps({"v": CURSOR_VERSION, "parked": flat.tolist()}, separators=(",", ":")).encode()


class Parked:
    """The parked commands of one device, in the order of the log."""

    __slots__ = ("_first", "_ids", "_segments", "since_us")

    def __init__(self) -> None:
        self._ids = array("q")  # flat: a million of them take 40 MB
        self._first = 0  # number of the first one
        self._segments: list[_Segment] = []
        self.since_us = 0
        """When the device went away: an earlier sign of life is none (H31)."""

    @classmethod
    def loaded(cls, segments: Mapping[str, Sequence[ParkedId]], done: CommandPosition) -> Parked:
        """Return what former owners stored, less what is at or below ``done``."""
        parked = cls()
        merged: dict[CommandPosition, ParkedId] = {}
        for key, ids in segments.items():
            parked._segments.append(_Segment(key, max((i.position for i in ids), default=done), None))
            for one in ids:
                if one.position > done:
                    known = merged.get(one.position, one)
                    merged[one.position] = one._replace(
                        maybe_seen=one.maybe_seen or known.maybe_seen, unsure=one.unsure or known.unsure
                    )
        parked._segments.sort(key=lambda segment: segment.last)
        for position in sorted(merged):
            parked._put(merged[position])
        return parked

    def __len__(self) -> int:
        return len(self._ids) // _WIDTH

    def __getitem__(self, index: int) -> ParkedId:
        return _id_of(self._ids[index * _WIDTH : (index + 1) * _WIDTH])

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
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.position(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self.position(low) == position else None

    def key_of(self, position: CommandPosition) -> str:
        """Return the key of the segment in which a parked command stands."""
        return next(segment.key for segment in self._segments if segment.last >= position)

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
        self._ids[0:0] = flat
        self._first -= len(ids)
        self._segments.insert(0, _Segment(key, ids[-1].position, None, _encoded(flat)))

    def _put(self, one: ParkedId) -> None:
        self._ids.extend(one.numbers())

    def append(self, one: ParkedId, new_key: str) -> str:
        """Add the newest. Returns the key of the segment to be stored, ``new_key`` when a new one begins."""
        number = self._first + len(self)
        last = self._segments[-1] if self._segments else None
        if last is None or last.start is None or number - last.start >= SEGMENT_IDS:
            last = _Segment(new_key, one.position, number)
            self._segments.append(last)
        last.last = one.position
        self._put(one)
        return last.key

    def payload(self, key: str) -> bytes | None:
        """Return a segment as it is to be stored, None when it is not there any more."""
        for at, segment in enumerate(self._segments):
            if segment.key == key and segment.start is None:
                return segment.fixed
            if segment.key == key and segment.start is not None:
                after = self._segments[at + 1].start if at + 1 < len(self._segments) else None
                end = (self._first + len(self) if after is None else after) - self._first
                begin = max(0, segment.start - self._first)
                return _encoded(self._ids[begin * _WIDTH : end * _WIDTH])
        return None

    def finish(self, position: CommandPosition) -> list[str]:
        """Forget all at or below ``position``. Returns the keys of the segments that are done with."""
        count = 0
        while count < len(self) and self.position(count) <= position:
            count += 1
        del self._ids[: count * _WIDTH]
        self._first += count
        done = [segment.key for segment in self._segments if segment.last <= position]
        self._segments = [segment for segment in self._segments if segment.last > position]
        return done

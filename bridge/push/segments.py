"""The commands that are parked in Pulsar for one device, and the segments with their ids.

Only the ids stay in memory; the messages stay in the commands topic, kept by a retention subscription. Push stores the ids
in segments in the cursors partition, and writes only the last one again (H29). A segment belongs to the owner that began it:
a later owner reads it and removes it, and appends to segments of its own, so a late write of a former owner replaces nothing.

A command that is parked for very long is copied to a topic of its own (``retention``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from struct import Struct
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.segments import COPY_WIDTH, GONE, ID_WIDTH, NO_COPY, SEGMENT_IDS, ParkedId, encode_segment

__all__ = ["Parked"]

_PACKED: Final = Struct("<qqqqqq")


class _Segment:
    """A stored segment. Of most devices that are away there is one: its positions take 81 bytes, not 280."""

    __slots__ = ("_span", "fixed", "key", "since_us", "start")

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
        self.reach(first, last)
        self.start = start  # number of its first id, counted from the first that was ever parked
        self.fixed = fixed  # instead of the start, as it was stored; None for a former owner's
        self.since_us = since_us

    def reach(self, first: CommandPosition, last: CommandPosition) -> None:
        """Have it reach from one id to another. Ids of it before ``first`` are in another segment as well."""
        self._span = _PACKED.pack(*first, *last)

    @property
    def first(self) -> CommandPosition:
        """The position of its first id that no earlier segment has."""
        return CommandPosition(*_PACKED.unpack(self._span)[:3])

    @property
    def last(self) -> CommandPosition:
        """The position of its last id."""
        return CommandPosition(*_PACKED.unpack(self._span)[3:])


def _merged(known: ParkedId, one: ParkedId) -> ParkedId:
    # A command that is sent again names where it was found: an earlier copy may be trimmed.
    again = one if one.resend else known
    return one._replace(
        maybe_seen=one.maybe_seen or known.maybe_seen,
        resend=one.resend or known.resend,
        copy=one.copy or known.copy if one.resend == known.resend else again.copy,
    )


@dataclass(slots=True, eq=False)
class Parked:
    """The parked commands of one device, in the order of the log."""

    _ids: array[int] = field(default_factory=lambda: array("q"))  # flat: a million of them take 40 MB
    _first: int = 0  # number of the first one
    _segments: list[_Segment] = field(default_factory=list)
    since_us: int = 0  # when the device was parked: an earlier sign of life does not count (H31)
    probe_wait_us: int = 0  # how long the device waits for its next probe, 0 for the least time
    probe_at_us: int = 0  # when it is probed; ``probes.DUE`` while it waits for its turn
    probes: int = 0  # so many since the last sign of life: each goes to another broker, if there are several
    _copies: array[int] | None = None  # of the copies, once there is one
    originals: int = 0  # how many were not relocated
    originals_since_us: int = 0  # when the oldest that was not relocated was parked, or earlier; 0 if all were
    copies_from: CommandPosition | None = None  # no copy is before it; None without copies
    overflowed_to: CommandPosition = BEFORE_ALL
    """The last command that was given up because there were too many, until the cursor is behind it."""

    @classmethod
    def loaded(cls, segments: Mapping[str, Sequence[ParkedId]], done: CommandPosition, since_us: int = 0) -> Parked:
        """Return what former owners stored above ``done``; the oldest of it was parked at ``since_us``."""
        parked = cls()
        merged: dict[CommandPosition, ParkedId] = {}
        for key, ids in segments.items():
            all_of = [one.position for one in ids] or [done]
            parked._segments.append(_Segment(key, min(all_of), max(all_of), None))
            for one in ids:
                if one.position > done:
                    known = merged.get(one.position)
                    merged[one.position] = one if known is None else _merged(known, one)
        parked._segments.sort(key=lambda segment: segment.last)
        parked._insert(0, [merged[position] for position in sorted(merged)])
        parked.originals_since_us = since_us if parked.originals else 0
        return parked

    def __len__(self) -> int:
        return len(self._ids) // ID_WIDTH

    def __getitem__(self, index: int) -> ParkedId:
        copies = () if self._copies is None else self._copies[index * COPY_WIDTH : (index + 1) * COPY_WIDTH]
        return ParkedId.of(self._ids[index * ID_WIDTH : (index + 1) * ID_WIDTH], copies or NO_COPY)

    def first_original(self) -> int | None:
        """Return the index of the oldest that was not relocated, None when all were."""
        if not self.originals:
            return None
        return 0 if self._copies is None else self._copies[::COPY_WIDTH].index(-1)

    def to_relocate(self) -> list[CommandPosition]:
        """Return the positions of the oldest that were not relocated, as many as go into one segment."""
        first = self.first_original()
        if first is None:
            return []
        some = range(first, min(len(self), first + SEGMENT_IDS))
        return [self.position(index) for index in takewhile(lambda index: self[index].copy is None, some)]

    def relocate(
        self,
        wanted: Sequence[CommandPosition],
        copies: Sequence[CommandPosition],
        new_key: Callable[[], str],
        now_us: int,
    ) -> tuple[list[str], list[str]] | None:
        """Note the positions of the copies of ``wanted``, in segments of their own. Returns the keys of these, in the order in
        which they are to be stored, and of those that they replace then; None when ``wanted`` is not parked here.
        """
        first = self.find(wanted[0])
        if first is None or first + len(wanted) > len(self):
            return None
        if self.position(first + len(wanted) - 1) != wanted[-1] or self[first].copy is not None:
            return None
        if self._copies is None:
            self._copies = array("q", NO_COPY * len(self))
        last = first + len(wanted)
        self._copies[first * COPY_WIDTH : last * COPY_WIDTH] = array(
            "q", [number for copy in copies for number in copy]
        )
        self.originals -= len(wanted)
        self.originals_since_us = now_us if self.originals else 0
        self.copies_from = min((p for p in (self.copies_from, *copies) if p and p != GONE), default=None)
        return self._replace(first, last, new_key)

    def _replace(
        self, first: int, last: int, new_key: Callable[[], str], since_us: int = 0
    ) -> tuple[list[str], list[str]]:
        """Put the ids from index ``first`` to before ``last`` into new segments, instead of those that end among them.

        One of these may begin earlier, where former copies and ids that were not relocated were stored together: then its earlier
        ids go with them, because no other segment may have them.
        """
        begin, end = self.position(first), self.position(last - 1)
        replaced = [one for one in self._segments if begin <= one.last <= end]
        low = min((self._before(one.first) for one in replaced), default=first)
        low = min(low, first)
        left = [one for one in self._segments if one not in replaced]
        for one in left:
            if self.position(low) <= one.first <= end < one.last:
                one.reach(self.position(last), one.last)
        made = []
        for at in range(low, last, SEGMENT_IDS):
            to = min(at + SEGMENT_IDS, last)
            payload = self._encoded(at, to, since_us)  # it is not written again
            made.append(_Segment(new_key(), self.position(at), self.position(to - 1), None, payload))
        at = sum(1 for one in left if one.last < begin)
        self._segments = left[:at] + made + left[at:]
        self._segments.sort(key=lambda one: one.last)
        return [one.key for one in made], [one.key for one in replaced]

    def _encoded(self, begin: int, end: int, since_us: int) -> bytes:
        copies = [] if self._copies is None else self._copies[begin * COPY_WIDTH : end * COPY_WIDTH].tolist()
        return encode_segment(self._ids[begin * ID_WIDTH : end * ID_WIDTH].tolist(), copies, since_us)

    def __iter__(self) -> Iterator[ParkedId]:
        return (self[index] for index in range(len(self)))

    def position(self, index: int) -> CommandPosition:
        """Return the position of one; negative counts from the end."""
        at = (index % len(self)) * ID_WIDTH
        return CommandPosition(*self._ids[at : at + 3])

    def __contains__(self, position: CommandPosition) -> bool:
        return self.find(position) is not None

    def find(self, position: CommandPosition) -> int | None:
        """Return the index of a command, None when it is not parked."""
        at = self._before(position)
        return at if at < len(self) and self.position(at) == position else None

    def up_to(self, position: CommandPosition) -> int:
        """Return how many are at or below ``position``."""
        return bisect_right(range(len(self)), position, key=self.position)

    def _before(self, position: CommandPosition) -> int:
        return bisect_left(range(len(self)), position, key=self.position)

    def key_of(self, position: CommandPosition) -> str:
        """Return the key of the segment that has a parked command."""
        return next(segment.key for segment in self._segments if segment.last >= position)

    @property
    def names_settled(self) -> bool:
        """Whether a segment has a settled id beside others, which a cursor that goes back would send again."""
        return len(self) > 0 and any(one.first < self.position(0) for one in self._segments)

    def renew(self, new_key: Callable[[], str]) -> tuple[list[str], list[str]]:
        """Put ids that are stored together with settled ones into new segments, so that no stored segment names those.
        Returns the keys of these, in the order in which they are to be stored, and of those that they replace then.
        """
        stale = [self.up_to(one.last) for one in self._segments if one.first < self.position(0)]
        return self._replace(0, max(stale), new_key, self.originals_since_us) if stale else ([], [])

    def keys_before(self, position: CommandPosition) -> list[str]:
        """Return the keys of the segments that end at or below ``position``, the last one first."""
        return [segment.key for segment in reversed(self._segments) if segment.last <= position]

    def mark_seen(self, position: CommandPosition) -> None:
        """Note that the device may have had it; in memory alone."""
        index = self.find(position)
        if index is not None:
            self._ids[index * ID_WIDTH + ID_WIDTH - 1] |= 1

    def prepend(self, ids: list[ParkedId], key: str) -> None:
        """Put ids that precede all others into a segment of their own."""
        for segment in self._segments:  # what was before its first one is settled: its number is used again
            if segment.start is not None:
                segment.start = max(segment.start, self._first)
        self._insert(0, ids)
        self._first -= len(ids)
        payload = self._encoded(0, len(ids), self.originals_since_us)
        self._segments.insert(0, _Segment(key, ids[0].position, ids[-1].position, None, payload))

    def _insert(self, index: int, ids: Sequence[ParkedId]) -> None:
        if self._copies is None and any(one.copy for one in ids):
            self._copies = array("q", NO_COPY * len(self))
        at = index * ID_WIDTH
        self._ids[at:at] = array("q", [number for one in ids for number in one.numbers()])
        if self._copies is not None:
            at = index * COPY_WIDTH
            self._copies[at:at] = array("q", [number for one in ids for number in one.copy or NO_COPY])
        copies = [one.copy for one in ids if one.copy not in (None, GONE)]
        self.copies_from = min((copy for copy in (self.copies_from, *copies) if copy), default=None)
        self.originals += sum(one.copy is None for one in ids)

    def append(self, one: ParkedId, new_key: str, now_us: int) -> str:
        """Add the newest. Returns the key of the segment to be stored, ``new_key`` when a new one begins."""
        number = self._first + len(self)
        last = self._segments[-1] if self._segments else None
        if last is None or last.start is None or number - last.start >= SEGMENT_IDS:
            last = _Segment(new_key, one.position, one.position, number, since_us=now_us)
            self._segments = [*self._segments, last]  # of the right size: most devices have this one alone
        else:
            last.reach(last.first, one.position)
        if one.copy is None and not self.originals:
            self.originals_since_us = now_us
        self._insert(len(self), [one])
        return last.key

    def payload(self, key: str) -> bytes | None:
        """Return a segment as it is to be stored, None when it does not exist any more."""
        segment = next((one for one in self._segments if one.key == key), None)
        if segment is None or segment.start is None:
            return None if segment is None else segment.fixed
        begin = max(0, segment.start - self._first)
        return self._encoded(begin, self.up_to(segment.last), segment.since_us)

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Yield key and payload of each segment, to be stored again. In this order no id is missing between
        any two: one that former owners stored in several segments is in the earliest of them then.
        """
        done = 0  # up to there all ids are in those that were yielded
        for segment in self._segments:
            begin, end = self._before(segment.first), self.up_to(segment.last)
            payload = self.payload(segment.key)
            if payload is None:
                begin = min(done, end)
                payload = self._encoded(begin, end, self.originals_since_us)
                segment.reach(self.position(begin) if begin < end else segment.last, segment.last)
            if begin <= done:
                done = max(done, end)
            yield segment.key, payload

    def finish(self, position: CommandPosition) -> list[str]:
        """Forget all at or below ``position``. Returns the keys of the segments that have no other ids."""
        count = self.up_to(position)
        del self._ids[: count * ID_WIDTH]
        if self._copies is None:
            self.originals -= count
        else:
            self.originals -= self._copies[: count * COPY_WIDTH : COPY_WIDTH].count(-1)
            del self._copies[: count * COPY_WIDTH]
            if self.originals == len(self):
                self._copies = self.copies_from = None
        if not self.originals:
            self.originals_since_us = 0
        self._first += count
        done = [segment.key for segment in self._segments if segment.last <= position]
        self._segments = [segment for segment in self._segments if segment.last > position]
        return done

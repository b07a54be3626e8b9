"""Waiting commands of a partition's devices, from cursors, parked ids, backlog and presence.

A command waits if the device's cursor has not passed it and it is parked or not acknowledged. A command at or below the
cursor is settled, also before its acknowledgement reaches Pulsar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from bridge.contract.commands import BEFORE_ALL, CommandPosition, is_broadcaster
from bridge.contract.cursors import OwnerRecord
from bridge.contract.presence import PresenceRecord
from bridge.contract.segments import ParkedId, read_segment
from bridge.errors import ContractError
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords
from bridge.push.segments import Parked

__all__ = ["DeviceView", "PartitionView", "Waiting"]


_CURSOR_KEY: Final = ""
"""Segment key of the ids that a cursor lists for a retry, whether or not their segment is stored (H26)."""


class Waiting(NamedTuple):
    """A waiting command; ``parked`` is its stored id, None if it is not parked."""

    position: CommandPosition
    parked: ParkedId | None = None


@dataclass(slots=True)
class DeviceView:
    """State of one device. Times are since the epoch, 0 if they are not known."""

    device: str
    partition: int
    cursor: CommandPosition = BEFORE_ALL
    delivered_at_ms: int = 0
    seen_us: int = 0
    """Time of its last message to ingest."""
    parked: int = 0
    pending: int = 0
    """Waiting commands, with the parked ones."""
    oldest: Waiting | None = None
    oldest_us: int = 0
    """Time at which the oldest of them was emitted, or published if it has no emit time."""
    link: str = ""
    """The link of ingest at which it was last seen, empty if unknown."""

    def silent(self, silence_us: int, now_us: int) -> bool:
        """Return whether its last message is at least ``silence_us`` old; never with ``silence_us`` 0."""
        return bool(silence_us and self.seen_us and now_us - self.seen_us >= silence_us)


class PartitionView:
    """State of one partition. The caller adds all records, then the unacknowledged commands, then queries."""

    def __init__(self, partition: int, records: CursorRecords | None = None) -> None:
        """``records`` are those of the cursors partition, if they are known."""
        self.partition = partition
        self._records = records or CursorRecords(0)  # the ids of settled commands are not needed
        self._seen: dict[str, PresenceRecord] = {}
        self._last: tuple[str, Cursor | None] = "", None  # the device of the last look
        self._live: dict[str, list[Waiting]] = {}
        self._parked: dict[str, Parked] = {}
        self.bad = 0
        """Number of records that this version cannot read."""

    @property
    def owner(self) -> OwnerRecord | None:
        """The last record of an owner."""
        return self._records.owner

    def take_record(self, key: str, payload: bytes) -> None:
        """Add the next record of the cursors partition."""
        self._last = "", None
        try:
            self.bad += not self._records.take(key, payload)
        except ContractError:
            self.bad += 1

    def take_presence(self, device: str, payload: bytes) -> None:
        """Add the next record of the presence partition; an empty payload deletes the device."""
        if not payload:
            self._seen.pop(device, None)
            return
        try:
            self._seen[device] = PresenceRecord.decode(payload)
        except ContractError:
            self.bad += 1

    def take_unacknowledged(self, position: CommandPosition, device: str) -> bool:
        """Add an unacknowledged command, after all records. Return whether it waits and is not parked."""
        if position <= self.cursor(device) or position in self.parked(device):
            return False
        self._live.setdefault(device, []).append(Waiting(position))
        return True

    def cursor(self, device: str) -> CommandPosition:
        """Return the position up to which the device's commands are settled."""
        found = self._cursor(device)
        return BEFORE_ALL if found is None else found.position

    def _cursor(self, device: str) -> Cursor | None:
        if self._last[0] != device:
            self._last = device, self._records.by_device.get(device)
        return self._last[1]

    def parked(self, device: str) -> Parked:
        """Return the ids that are parked for a device and still to be pushed."""
        found = self._parked.get(device)
        if found is None:
            cursor = self._cursor(device)
            done = BEFORE_ALL if cursor is None else cursor.done
            segments = {}
            for key, payload in self._records.parked.get(device, {}).items():
                try:
                    segments[key] = read_segment(payload).ids
                except ContractError:
                    self.bad += 1
            if cursor is not None and cursor.resend:
                segments[_CURSOR_KEY] = cursor.resend
            found = self._parked[device] = Parked.loaded(segments, done)
        return found

    def waiting(self, device: str) -> list[Waiting]:
        """Return the waiting commands of a device, in order."""
        parked = [Waiting(one.position, one) for one in self.parked(device)]
        return sorted([*parked, *self._live.get(device, ())], key=lambda one: one.position)

    def device(self, name: str) -> DeviceView:
        """Return the state of a device; only its name if nothing is known."""
        cursor, seen = self._cursor(name), self._seen.get(name, PresenceRecord(0))
        parked, live = self.parked(name), self._live.get(name, [])
        del self._parked[name]  # bounds the memory: one entry for each device
        firsts = [Waiting(parked.position(0), parked[0])] if len(parked) else []
        firsts += live[:1]
        return DeviceView(
            name,
            self.partition,
            self.cursor(name),
            0 if cursor is None else cursor.delivered_at_ms,
            seen.seen_us,
            len(parked),
            len(parked) + len(live),
            min(firsts, key=lambda one: one.position, default=None),
            link=cursor.link if cursor is not None and cursor.link_at_us > seen.seen_us else seen.link,
        )

    def devices(self) -> Iterator[DeviceView]:
        """Yield every known device; broadcasts to groups are not of a device."""
        more = dict.fromkeys((*self._records.parked, *self._live, *self._seen))
        for name in chain(self._records.by_device, (one for one in more if one not in self._records.by_device)):
            if not is_broadcaster(name):
                yield self.device(name)

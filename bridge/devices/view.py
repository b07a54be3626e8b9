"""What waits for each device of a partition, from what stands in Pulsar: cursors, parked ids, backlog, presence. Pure.

A command waits when the device's cursor has not passed it and it is parked, or not acknowledged. What is at or below
the cursor is settled, whether or not its acknowledgement has reached Pulsar yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge.commands import Command, CommandPosition
from bridge.errors import ContractError
from bridge.presence_record import PresenceRecord
from bridge.push.cursor import NOWHERE, Cursor, OwnerRecord
from bridge.push.parked import Parked, ParkedId, decode_segment
from bridge.push.records import CursorRecords

__all__ = ["DeviceView", "PartitionView", "Waiting"]


_AGAIN: Final = ""
"""In the place of a segment's key: what a cursor says goes again, whether or not its segment is stored (H26)."""


class Waiting(NamedTuple):
    """A command that waits; ``parked`` is its id as it is stored, None for one that is not parked."""

    position: CommandPosition
    parked: ParkedId | None = None
    command: Command | None = None
    """None until it is read."""


@dataclass(slots=True)
class DeviceView:
    """What is known of one device. Times are since the epoch, 0 where they are not known."""

    device: str
    partition: int
    cursor: CommandPosition = NOWHERE
    delivered_at_ms: int = 0
    seen_us: int = 0
    """When a message of it came to ingest last."""
    parked: int = 0
    pending: int = 0
    """Commands that wait, the parked ones among them."""
    oldest: Waiting | None = None
    oldest_us: int = 0
    """When the oldest of them was emitted, or published where it does not say."""

    def silent(self, silence_us: int, now_us: int) -> bool:
        """Whether it was heard of, and not for so long; ``silence_us`` 0: never."""
        return bool(silence_us and self.seen_us and now_us - self.seen_us >= silence_us)


class PartitionView:
    """One partition. Take all records, then what is not acknowledged, then ask."""

    def __init__(self, partition: int, *, remembered_ids: int = 0) -> None:
        """``remembered_ids``: how many settled ids are kept of each device; none saves memory."""
        self.partition = partition
        self._records = CursorRecords(remembered_ids)
        self._seen: dict[str, int] = {}
        self._live: dict[str, list[Waiting]] = {}
        self._parked: dict[str, Parked] = {}
        self.bad = 0
        """Records that are none of this version."""

    @property
    def owner(self) -> OwnerRecord | None:
        """The last record of an owner."""
        return self._records.owner

    def take_record(self, key: str, payload: bytes) -> None:
        """Take the next record of the cursors partition."""
        try:
            self.bad += not self._records.take(key, payload)
        except ContractError:
            self.bad += 1

    def take_presence(self, device: str, payload: bytes) -> None:
        """Take the next record of the presence partition; an empty one forgets the device."""
        if not payload:
            self._seen.pop(device, None)
            return
        try:
            self._seen[device] = PresenceRecord.decode(payload).seen_us
        except ContractError:
            self.bad += 1

    def take_unacknowledged(self, position: CommandPosition, command: Command, *, keep: bool = False) -> bool:
        """Take a command that is not acknowledged, once all records were taken; ``keep`` keeps it whole.

        Returns whether it waits, and is not parked.
        """
        if position <= self.cursor(command.device) or position in self.parked(command.device):
            return False
        kept = command if keep else Command(command.command_id, command.device, "", b"")
        self._live.setdefault(command.device, []).append(Waiting(position, None, kept))
        return True

    def cursor(self, device: str) -> CommandPosition:
        """Return up to where the device's commands are settled."""
        found = self._records.by_device.get(device)
        return NOWHERE if found is None else found.position

    def settled(self, device: str, command_id: str) -> bool:
        """Whether the device's cursor remembers this command, once all records were taken."""
        found = self._whole().get(device)
        return found is not None and found.knows(command_id)

    def _whole(self) -> dict[str, Cursor]:
        found = self._records.whole()
        self.bad += len(self._records.unread_ids)
        self._records.unread_ids.clear()
        return found

    def parked(self, device: str) -> Parked:
        """Return the ids that are parked for a device and still to be pushed."""
        found = self._parked.get(device)
        if found is None:
            cursor = self._records.by_device.get(device)
            done = NOWHERE if cursor is None else cursor.done
            segments = {}
            for key, payload in self._records.parked.get(device, {}).items():
                try:
                    segments[key] = decode_segment(payload)
                except ContractError:
                    self.bad += 1
            if cursor is not None and cursor.again:
                segments[_AGAIN] = cursor.again
            found = self._parked[device] = Parked.loaded(segments, done)
        return found

    def waiting(self, device: str) -> list[Waiting]:
        """Return what waits for a device, in order."""
        parked = [Waiting(one.position, one) for one in self.parked(device)]
        return sorted([*parked, *self._live.get(device, ())], key=lambda one: one.position)

    def device(self, name: str) -> DeviceView:
        """Return what is known of a device; nothing but its name where nothing is."""
        cursor = self._records.by_device.get(name)
        parked, live = self.parked(name), self._live.get(name, [])
        del self._parked[name]  # one for each device would be many
        firsts = [Waiting(parked.position(0), parked[0])] if len(parked) else []
        firsts += live[:1]
        return DeviceView(
            name,
            self.partition,
            self.cursor(name),
            0 if cursor is None else cursor.delivered_at_ms,
            self._seen.get(name, 0),
            len(parked),
            len(parked) + len(live),
            min(firsts, key=lambda one: one.position, default=None),
        )

    def devices(self) -> Iterator[DeviceView]:
        """Yield every device of which anything is known, one after another."""
        names = {**self._records.by_device, **dict.fromkeys(self._records.parked), **self._live, **self._seen}
        for name in names:
            yield self.device(name)

"""The segments of parked ids that a partition writes: gathered, in order, and behind the cursors that precede them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.contract.segments import ParkedId, segment_key
from bridge.push.actions import Outbox, StoreSegment
from bridge.push.command import CommandRegistry
from bridge.push.device import Device, Devices
from bridge.push.segments import Parked

__all__ = ["SegmentLog"]

_AT_ONCE: Final = 1000  # actions of one flush: the queue of the producer is bounded


@dataclass(eq=False)
class SegmentLog:
    """Which segments are to be written."""

    _owner: str  # names this owner in the keys of its segments
    _coalesce_us: int
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _count: int = 0
    unwritten: dict[str, Device] = field(default_factory=dict)  # devices with parked ids to be stored
    _rewrites: deque[str] = field(default_factory=deque)  # devices whose segments Pulsar lost
    _flush_at_us: int = 0
    parked: int = 0  # commands of which only the ids are in memory

    @property
    def pending(self) -> bool:
        """Whether ids wait to be stored."""
        return bool(self.unwritten or self._rewrites)

    @property
    def flush_at_us(self) -> int | None:
        """When the waiting ids are to be stored, None without any."""
        return self._flush_at_us if self.pending else None

    def new_key(self, device: str) -> str:
        """Return the key of a new segment."""
        self._count += 1
        return segment_key(device, self._owner, self._count)

    def append(self, device: Device, one: ParkedId, now_us: int) -> None:
        """Park a command behind the others of its device."""
        self.parked += 1
        key = device.parked.append(one, self.new_key(device.name), now_us)
        self.write_later(device, key, now_us)

    def prepend(self, device: Device, ids: list[ParkedId], now_us: int) -> None:
        """Park commands before the others of their device."""
        key = self.new_key(device.name)
        device.parked.prepend(ids, key)
        self.parked += len(ids)
        self.write_later(device, key, now_us)

    def finish(self, device: Device, position: CommandPosition) -> list[str]:
        """Forget the ids up to ``position``. Returns the keys of the segments to be removed."""
        before = len(device.parked)
        removed = device.parked.finish(position)
        self.parked -= before - len(device.parked)
        return removed

    def write_later(self, device: Device, key: str, now_us: int) -> None:
        """Have a segment written with the next flush."""
        if not self.pending:
            self._flush_at_us = now_us + self._coalesce_us
        device.segment_write.keys[key] = None
        self.unwritten[device.name] = device

    def write_fixed(self, parked: Parked, key: str, *, relocation: int = 0) -> None:
        """Write a segment that is not written again."""
        payload = parked.payload(key)
        assert payload is not None
        self._outbox.write(StoreSegment(key, payload, relocation=relocation))

    def acknowledge(self, parked: Sequence[CommandPosition]) -> None:
        """Acknowledge messages whose ids are stored."""
        name = ""
        for position in parked:
            name = self._commands.acknowledge(position).command.device
        if name in self._devices.awake:
            self._devices.sleep(self._devices.awake[name])

    def flush(self, now_us: int) -> None:
        """Store the parked ids; a cursor that was moved back is stored before them."""
        outbox, dirty = self._outbox, self._devices.dirty
        while self._rewrites and len(outbox) < _AT_ONCE:
            self.rewrite(self._rewrites.popleft())
        waiting, self.unwritten = self.unwritten, {}
        for name, device in waiting.items():
            full = len(outbox) >= _AT_ONCE
            cursor_first = name in dirty or device.cursor_write.under_way
            if full or cursor_first or _gives_up_earlier(device):
                self.unwritten[name] = device
            else:
                self._write(device)
        self._flush_at_us = now_us + self._coalesce_us

    def _write(self, device: Device) -> None:
        write = device.segment_write
        keys, write.keys = list(write.keys), {}
        ids, write.ids = tuple(write.ids), []
        payloads = [(key, device.parked.payload(key)) for key in keys]
        found = [(key, payload) for key, payload in payloads if payload is not None]
        for at, (key, payload) in enumerate(found, 1):
            self._outbox.write(StoreSegment(key, payload, ids if at == len(found) else ()))
        if not found:
            self.acknowledge(ids)  # replayed and settled meanwhile

    def rewrite(self, name: str) -> None:
        """Store the ids of a device's parked commands again, under the keys that they have."""
        parked = self._devices.parked_of(name)
        if parked is None:
            return
        device = self._devices.awake.get(name)
        unwritten = {} if device is None else device.segment_write.keys
        for key, payload in parked.stored():
            if key not in unwritten:
                self._outbox.write(StoreSegment(key, payload))

    def rewrite_all(self, now_us: int) -> None:
        """Pulsar lost the cursors partition: store the ids of all parked commands again, as they are."""
        if not self.pending:
            self._flush_at_us = now_us + self._coalesce_us
        self._rewrites = deque(name for name, _ in self._devices.all_parked())


def _gives_up_earlier(device: Device) -> bool:
    """Return whether an earlier dead letter is not stored: behind a stored id its command would count as settled."""
    return len(device.parked) > 0 and device.gives_up_before(device.parked.position(-1))

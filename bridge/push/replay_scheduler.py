"""In which order the parked commands of devices are read.

They are read in rounds, each in the order of the log by the first command that each device still waits for: so reads lie
close together, with any number of devices. A device that wants more waits for the next round. One of eight turns is for
devices that are probed, in rounds of their own, so that they get their turn beside any number of online devices.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.push.device import Device

__all__ = ["PROBE_EVERY", "ReplayScheduler"]

PROBE_EVERY: Final = 8


class _Entry(NamedTuple):
    head: CommandPosition
    name: str
    device: Device


class ReplayScheduler:
    """Devices that want some of their parked commands, each once."""

    def __init__(self) -> None:
        self._online, self._tried = _Rounds(), _Rounds()
        self._turns = 0

    def __bool__(self) -> bool:
        return bool(self._online or self._tried)

    @property
    def online(self) -> bool:
        """Whether any of them gave a sign of life."""
        return bool(self._online)

    @property
    def tried(self) -> int:
        """How many of them are probed or swept."""
        return len(self._tried)

    def add(self, device: Device, head: CommandPosition) -> None:
        """The device waits for commands from ``head`` on; its former entry is removed."""
        tried = device.replay.tried
        (self._online if tried else self._tried).discard(device)
        (self._tried if tried else self._online).add(device, head)

    def discard(self, device: Device) -> None:
        """The device waits no more."""
        self._online.discard(device)
        self._tried.discard(device)

    def next(self) -> Device:
        """Remove and return the next device. Raises IndexError without one."""
        self._turns += 1
        tried = self._tried and (self._turns % PROBE_EVERY == 0 or not self._online)
        return (self._tried if tried else self._online).next()


class _Rounds:
    def __init__(self) -> None:
        self._round: list[_Entry] = []  # the last one is the next
        self._following: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}  # others in the lists were removed

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, device: Device, head: CommandPosition) -> None:
        entry = self._entries[device.name] = _Entry(head, device.name, device)
        self._following.append(entry)

    def discard(self, device: Device) -> None:
        self._entries.pop(device.name, None)

    def next(self) -> Device:
        while True:
            if not self._round:
                self._round, self._following = sorted(self._following, key=lambda one: one[:2], reverse=True), []
            entry = self._round.pop()
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
                return entry.device

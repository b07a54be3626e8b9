"""Content of ``pulsebridge devices list``: a line for each selected device, and totals."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from bridge.inspect.devices.reading import Budget, PushTopics, emitted_us
from bridge.inspect.devices.view import DeviceView, PartitionView
from bridge.settings import Settings

__all__ = ["Overview", "Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of devices. Times are in µs."""

    absent: bool = False
    pending: bool = False
    silence_us: int = 0
    """A known device without a message for this time is absent; 0: never."""
    recent_us: int = 90_000_000
    """A device with a message in this time is present, if ``silence_us`` is 0."""

    @classmethod
    def of(cls, settings: Settings, *, absent: bool = False, pending: bool = False) -> Selection:
        """Return a selection with the silence and the presence interval of the settings."""
        recent_us = int(3 * settings.ingest.presence_interval * 1e6)
        return cls(absent, pending, int(settings.push.presence.silence * 1e6), recent_us)

    def presence(self, device: DeviceView, now_us: int) -> str:
        """Return ``absent``, ``present`` or ``unknown``."""
        if self.is_absent(device, now_us):
            return "absent"
        seen = device.seen_us and now_us - device.seen_us < (self.silence_us or self.recent_us)
        return "present" if seen else "unknown"

    def means(self, device: DeviceView, now_us: int) -> bool:
        """Return whether the selection contains a device."""
        if self.pending and not device.pending:
            return False
        return not self.absent or self.is_absent(device, now_us)

    def is_absent(self, device: DeviceView, now_us: int) -> bool:
        """Return whether a device has parked commands, or is silent."""
        return device.parked > 0 or device.silent(self.silence_us, now_us)


class Overview:
    """Counts devices and keeps those with the most pending commands."""

    def __init__(self, selection: Selection, limit: int, now_us: int) -> None:
        self.selection = selection
        self._limit = limit
        self._now_us = now_us
        self._kept: list[tuple[int, int, DeviceView]] = []  # a heap, the least pending first
        self.devices = 0
        self.absent = 0
        self.parked = 0
        self.pending = 0
        self.selected = 0

    def read(self, topics: PushTopics, budget: Budget, *, oldest_of_all: bool = True) -> None:
        """Add the devices of all partitions, with their waiting commands as far as the budget allows.

        Without ``oldest_of_all``, the age of the oldest command is known only if none is parked.
        """
        for partition in range(topics.partitions):
            view = topics.records(partition)
            oldest = _backlog_of(topics, view, budget)
            for device in view.devices():
                if device.pending > device.parked == 0:
                    device.oldest_us = oldest.get(device.device, 0)
                self.add(device)
        if oldest_of_all:
            topics.oldest(self.lines)

    def add(self, device: DeviceView) -> None:
        """Add a device."""
        self.devices += 1
        self.absent += self.selection.is_absent(device, self._now_us)
        self.parked += device.parked
        self.pending += device.pending
        if not self.selection.means(device, self._now_us):
            return
        self.selected += 1
        entry = (device.pending, -self.devices, device)
        if not self._limit or len(self._kept) < self._limit:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)

    @property
    def lines(self) -> list[DeviceView]:
        """The devices to show: the most pending commands first, then by name."""
        return sorted((one for _, _, one in self._kept), key=lambda one: (-one.pending, one.device))

    def totals(self) -> dict[str, Any]:
        """Return the totals of all devices."""
        return {
            "devices": self.devices,
            "absent": self.absent,
            "pending": self.pending,
            "parked": self.parked,
            "selected": self.selected,
        }


def _backlog_of(topics: PushTopics, view: PartitionView, budget: Budget) -> dict[str, int]:
    """Add the unacknowledged commands to ``view``; return the emit time of the first one of each device."""
    oldest: dict[str, int] = {}
    for position, command, published_ms in topics.unacknowledged(view.partition, budget):
        if view.take_unacknowledged(position, command.device):
            oldest.setdefault(command.device, emitted_us(command, published_ms))
    return oldest

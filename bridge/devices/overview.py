"""What ``pulsebridge devices list`` tells: a line for each device, and what all of them come to. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from bridge.devices.view import DeviceView
from bridge.settings import Settings

__all__ = ["Overview", "Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which devices are wanted. Times in µs."""

    absent: bool = False
    pending: bool = False
    silence_us: int = 0
    """A device that was heard of, and not for so long, counts as absent; 0: never."""
    heard_us: int = 90_000_000
    """A device that was heard of in this time is there, where no silence is set."""

    @classmethod
    def of(cls, settings: Settings, *, absent: bool = False, pending: bool = False) -> Selection:
        """Return a selection by what the settings say of silence and of how often presence is noted."""
        heard_us = int(3 * settings.ingest.presence_every_s * 1e6)
        return cls(absent, pending, int(settings.push.silence_s * 1e6), heard_us)

    def presence(self, device: DeviceView, now_us: int) -> str:
        """Return ``absent``, ``present``, or ``unknown`` where nothing tells."""
        if self.is_absent(device, now_us):
            return "absent"
        heard = device.seen_us and now_us - device.seen_us < (self.silence_us or self.heard_us)
        return "present" if heard else "unknown"

    def means(self, device: DeviceView, now_us: int) -> bool:
        """Whether a device is one of them."""
        if self.pending and not device.pending:
            return False
        return not self.absent or self.is_absent(device, now_us)

    def is_absent(self, device: DeviceView, now_us: int) -> bool:
        """Whether push holds its commands back, or it is silent."""
        return device.parked > 0 or device.silent(self.silence_us, now_us)


class Overview:
    """Takes device after device, counts all of them, and keeps those with the most pending commands."""

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

    def add(self, device: DeviceView) -> None:
        """Take one."""
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
        """Those that are shown: the most pending first, then by name."""
        return sorted((one for _, _, one in self._kept), key=lambda one: (-one.pending, one.device))

    def totals(self) -> dict[str, Any]:
        """Return what all devices come to."""
        return {
            "devices": self.devices,
            "absent": self.absent,
            "pending": self.pending,
            "parked": self.parked,
            "selected": self.selected,
        }

"""Retention: up to where Pulsar may trim the commands, and the copies of relocated ones.

Pulsar must keep every message from the oldest command on that push may still read. To find it push scans all devices; for a
hundred thousand of them that takes a tenth of a second without a push. So a scan takes many turns, some devices in each,
while commands come and go. Its result is right all the same, or further back than needed: it counts what was not
acknowledged and the last command that had come when it began, and all later commands are behind these. Commands that push
wants again, because a device asked for them, are noted.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.push.command_registry import CommandRegistry
from bridge.push.device import Devices
from bridge.push.limits import Limits
from bridge.push.relocation import Relocation
from bridge.push.segments import GONE

__all__ = ["Retention"]

_DEVICES: Final = 500
"""So many are scanned together: about a millisecond."""


@dataclass(slots=True)
class _Scan:
    """What a scan has found so far."""

    names: list[str]
    """Devices that are not scanned; the last one is the next."""
    highest: CommandPosition
    """Of what had come when it began."""
    oldest: CommandPosition | None
    oldest_copy: CommandPosition | None = None

    def want(self, position: CommandPosition | None, copy: CommandPosition | None = None) -> None:
        """Keep a command, and a copy of one."""
        self.oldest = _earlier(self.oldest, position)
        self.oldest_copy = _earlier(self.oldest_copy, None if copy == GONE else copy)


def _earlier(one: CommandPosition | None, other: CommandPosition | None) -> CommandPosition | None:
    return min((position for position in (one, other) if position is not None), default=None)


class Retention:
    """Finds the oldest command and the oldest copy that push may still read."""

    def __init__(self, limits: Limits, commands: CommandRegistry, devices: Devices, relocation: Relocation) -> None:
        self._limits = limits
        self._commands = commands
        self._devices = devices
        self._relocation = relocation
        self._scan: _Scan | None = None
        self._last_scan: _Scan | None = None
        self._former: deque[tuple[int, CommandPosition]] = deque()  # when what was the oldest

    @property
    def scanning(self) -> bool:
        """Whether a scan is under way."""
        return self._scan is not None

    def begin_scan(self) -> None:
        """Begin a scan."""
        devices = self._devices
        names = [*devices.dormant, *devices.awake]
        names += [name for name in devices.cursors if name not in devices.dormant]
        names.reverse()
        self._scan = _Scan(names, self._commands.highest, self._commands.oldest)
        if self._commands.highest != BEFORE_ALL:
            self._scan.want(self._commands.highest)
        self._relocation.begin_scan()

    def scan(self, now_us: int, most: int = _DEVICES) -> bool:
        """Scan some more devices. Returns whether all are scanned."""
        scan = self._scan
        if scan is None:
            return False
        for _ in range(min(most, len(scan.names))):
            name = scan.names.pop()
            self._relocation.scan(name, now_us)
            self._scan_device(scan, name, now_us)
        return not scan.names

    def _scan_device(self, scan: _Scan, name: str, now_us: int) -> None:
        cursor = self._devices.any_cursor(name)
        if cursor is not None and cursor.unproven:
            # Of a device without signs of life they are not kept for ever.
            cursor.device_seen(now_us - self._limits.unsure_us)
            scan.want(cursor.unproven[0].one.position if cursor.unproven else None)
        parked = self._devices.parked_of(name)
        if parked is not None:
            first = parked.first_original()
            scan.want(None if first is None else parked.position(first), parked.copies_from)

    def want(self, position: CommandPosition, copy: CommandPosition | None) -> None:
        """Keep a command that no component wanted before: a scan may have passed its device."""
        if self._scan is not None:
            self._scan.want(position, copy)

    def keeps_from(self, now_us: int) -> CommandPosition | None:
        """Return the oldest command that push may still read from Pulsar, the last one that came if there is no other;
        None when none has come (H25). Ends the scan that is under way, or makes one.
        """
        return self._end_scan(now_us).oldest

    def _end_scan(self, now_us: int) -> _Scan:
        if self._scan is None:
            self.begin_scan()
        self.scan(now_us, sys.maxsize)
        scan = self._scan
        assert scan is not None
        position, copies = self._relocation.wanted()
        scan.want(position)
        for copy in copies:
            scan.want(None, copy)
        self._scan = None
        self._last_scan = scan
        return scan

    def trims_to(self, now_us: int) -> CommandPosition | None:
        """Return up to where Pulsar may trim, that position excluded, as ``keeps_from``; None where it may not trim more
        than it has.

        A later owner may send again what was confirmed within ``unsure_us``, since it may not know the sign of life that
        came since (H26). So this is where it was that long ago.
        """
        scan = self._end_scan(now_us)
        oldest = scan.oldest
        # A command that is not acknowledged may have to be parked. A command that a former owner did not acknowledge may
        # come last and be older than all that is parked: so the scan counts the last one that came.
        if scan.highest == BEFORE_ALL or oldest is None or self._limits.answers:
            return None if scan.highest == BEFORE_ALL else oldest
        if not self._former or self._former[-1][1] != oldest:
            self._former.append((now_us, oldest))
        past_us = now_us - self._limits.unsure_us
        while len(self._former) > 1 and self._former[1][0] <= past_us:
            self._former.popleft()
        since_us, former = self._former[0]
        return min(former, oldest) if since_us <= past_us else None

    def keeps_copies_from(self) -> CommandPosition | None:
        """Return the oldest copy that the last scan found; without one the last copy that was made, None without any."""
        found = None if self._last_scan is None else self._last_scan.oldest_copy
        return found or self._relocation.last_copy

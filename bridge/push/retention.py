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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.segments import GONE
from bridge.push.actions import Copy, Outbox
from bridge.push.command import CommandRegistry
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.probes import Probes
from bridge.push.replay import Replay
from bridge.push.segment_log import SegmentLog
from bridge.push.segments import Parked

__all__ = ["Relocation", "Retention"]

_DEVICES: Final = 500  # so many are scanned together: about a millisecond


@dataclass(slots=True)
class _Scan:
    """What a scan has found so far."""

    names: list[str]  # devices that are not scanned; the last one is the next
    highest: CommandPosition  # of what had come when it began
    oldest: CommandPosition | None
    oldest_copy: CommandPosition | None = None

    def want(self, position: CommandPosition | None, copy: CommandPosition | None = None) -> None:
        """Keep a command, and a copy of one."""
        self.oldest = _earlier(self.oldest, position)
        self.oldest_copy = _earlier(self.oldest_copy, None if copy == GONE else copy)


def _earlier(one: CommandPosition | None, other: CommandPosition | None) -> CommandPosition | None:
    return min((position for position in (one, other) if position is not None), default=None)


@dataclass(eq=False)
class Retention:
    """Finds the oldest command and the oldest copy that push may still read."""

    _limits: Limits
    _commands: CommandRegistry
    _devices: Devices
    _relocation: Relocation
    _scan: _Scan | None = None
    _last_scan: _Scan | None = None
    _former: deque[tuple[int, CommandPosition]] = field(default_factory=deque)  # when what was the oldest

    @property
    def scanning(self) -> bool:
        """Whether a scan is under way."""
        return self._scan is not None

    def begin_scan(self) -> None:
        """Begin a scan."""
        devices = self._devices
        names = [*devices.dormant, *devices.awake]
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
        device = self._devices.awake.get(name)
        if device is not None and device.cursor.unproven:
            # Of a device without signs of life they are not kept for ever.
            device.cursor.device_seen(now_us - self._limits.parked.unsure_us)
            scan.want(device.cursor.unproven[0].one.position if device.cursor.unproven else None)
        parked = self._devices.parked_of(name)
        if device is not None:
            self._devices.rest(device)
        if parked is not None:
            first = parked.first_original()
            scan.want(None if first is None else parked.position(first), parked.copies_from)

    def want(self, position: CommandPosition, copy: CommandPosition | None) -> None:
        """Keep a command that no component wanted before: a scan may have passed its device."""
        if self._scan is not None:
            self._scan.want(position, copy)

    def end_scan(self, now_us: int) -> _Scan:
        """Return a whole scan. Its ``oldest`` command that push may still read is the last one that came if there is no
        other, None if none has come (H25).
        """
        if self._scan is None:
            self.begin_scan()
        self.scan(now_us, sys.maxsize)
        scan = self._scan
        assert scan is not None
        scan.want(self._devices.cursors.oldest_unproven(now_us - self._limits.parked.unsure_us))
        position, copies = self._relocation.wanted()
        scan.want(position)
        for copy in copies:
            scan.want(None, copy)
        self._scan = None
        self._last_scan = scan
        return scan

    def trims_to(self, now_us: int) -> CommandPosition | None:
        """Return up to where Pulsar may trim, that position excluded; None where it may not trim more than it has.

        A later owner may send again what was confirmed within ``unsure_us``, since it may not know the sign of life that
        came since (H26). So this is where it was that long ago.
        """
        scan = self.end_scan(now_us)
        oldest = scan.oldest
        # A command that is not acknowledged may have to be parked. A command that a former owner did not acknowledge may
        # come last and be older than all that is parked: so the scan counts the last one that came.
        if scan.highest == BEFORE_ALL or oldest is None or self._limits.answers.confirm:
            return None if scan.highest == BEFORE_ALL else oldest
        if not self._former or self._former[-1][1] != oldest:
            self._former.append((now_us, oldest))
        past_us = now_us - self._limits.parked.unsure_us
        while len(self._former) > 1 and self._former[1][0] <= past_us:
            self._former.popleft()
        since_us, former = self._former[0]
        return min(former, oldest) if since_us <= past_us else None

    def keeps_copies_from(self) -> CommandPosition | None:
        """Return the oldest copy that the last scan found; without one the last copy that was made, None without any."""
        found = None if self._last_scan is None else self._last_scan.oldest_copy
        return found or self._relocation.last_copy


_AT_ONCE: Final = 8


@dataclass(slots=True)
class _Current:
    """The relocation of one segment."""

    number: int
    name: str
    parked: Parked
    wanted: list[CommandPosition]
    copies: list[CommandPosition] = field(default_factory=list)
    waiting: bool = False  # Pulsar has to answer first

    @property
    def copied(self) -> bool:
        """Whether all copies are made, and their segment is being stored."""
        return len(self.copies) == len(self.wanted)


@dataclass(eq=False)
class Relocation:
    """Relocates the commands of devices that are offline for long, one segment after the other.

    Pulsar keeps the commands partition from the oldest command on that is wanted from there. One device that is offline
    for a month would keep a month of all commands. So push copies what is parked for longer than ``relocate_after_us`` to
    the topic ``parked-commands``, which has such commands alone, and lets Pulsar trim the commands (H30).

    Commit order of a relocation; the process may die between any two steps:

    1. ``Copy`` → ``copied``: the commands, in order, are in the other topic. After a crash before it: copies that no
       segment names.
    2. ``StoreSegment`` → ``stored``: a segment with the positions of the copies, and with what the segments that it
       replaces have besides; then these are removed. After a crash before it as after 1. After a crash in between an id
       is in both segments, and its copy counts.
    3. The retention subscription passes the old position. After a crash before it Pulsar keeps more than needed.

    A relocated command keeps its position: order, cursor and devices use it, so a second copy is no second command. A
    device that comes online during a relocation is served from the old position, and the relocation is given up.
    """

    _limits: Limits
    _outbox: Outbox
    _devices: Devices
    _links: Links
    _segments: SegmentLog
    _replay: Replay
    _probes: Probes
    _names: deque[str] = field(default_factory=deque)  # devices with commands to relocate
    _current: _Current | None = None
    _count: int = 0
    _finds: bool = False  # this scan looks for more
    _scanned_copies: list[CommandPosition] = field(default_factory=list)  # stored since the scan began
    has_turn: bool = True  # relocation comes before the next probe
    last_copy: CommandPosition | None = None  # the last copy that was made

    # --- the scan of ``retention`` ---

    def begin_scan(self) -> None:
        """A scan begins: it also finds what is parked for too long, unless some of that is left from before."""
        self._finds = bool(self._limits.parked.relocate_after_us) and not self._names
        self._scanned_copies.clear()

    def scan(self, name: str, now_us: int) -> None:
        """Look whether a device has commands to relocate."""
        if not self._finds:
            return
        device = self._devices.awake.get(name)
        if device is not None and self._precedes_probe(device, now_us):
            self._probes.defer(device, now_us)
        dormant = self._devices.dormant.get(name)
        if dormant is not None and self._is_parked_for_long(dormant, now_us):
            self._names.append(name)

    def wanted(self) -> tuple[CommandPosition | None, list[CommandPosition]]:
        """Return what this relocation still reads from the commands, and the copies that were made since the scan began."""
        current = self._current
        copies = list(self._scanned_copies)
        if current is None:
            return None, copies
        return current.wanted[0] if current.copied else None, copies + current.copies

    def _precedes_probe(self, device: Device, now_us: int) -> bool:
        """Whether the device only waits to be probed, which may take any time, and has commands to relocate."""
        replay = device.replay
        idle = replay.probing and replay.waiting and not replay.coming and not device.queue
        return idle and self._is_parked_for_long(device.parked, now_us)

    def _is_parked_for_long(self, parked: Parked, now_us: int) -> bool:
        return parked.originals > 0 and now_us - parked.originals_since_us >= self._limits.parked.relocate_after_us

    # --- the copies ---

    @property
    def copying(self) -> bool:
        """Whether commands are being copied."""
        return self._current is not None and self._current.waiting and not self._current.copied

    @property
    def _may_copy(self) -> bool:
        """Whether relocation may continue: online devices come first, and it takes turns with probes."""
        if (self._current is None and not self._names) or not self._links.sends:
            return False
        scheduler = self._replay.scheduler
        return not scheduler.online and (self.has_turn or not (scheduler and self._replay.may_pull))

    def next_time_us(self) -> int | None:
        """Return when the next copies may be ordered, None without any."""
        if not self._may_copy or (self._current is not None and self._current.waiting):
            return None
        budget = self._replay.budget
        return budget.available_us(budget.at_once)

    def copy(self) -> None:
        """Order the next copies."""
        budget = self._replay.budget
        if not self._may_copy or budget.tokens < budget.at_once:
            return
        current = self._current or self._next()
        if current is None or current.waiting:
            return
        if not self._is_dormant(current):
            self._current = None
            return
        left = current.wanted[len(current.copies) :]
        count = min(_AT_ONCE, len(left), int(budget.tokens))
        if count:
            budget.tokens -= count
            self.has_turn = False
            current.waiting = True
            self._outbox.add(Copy(current.number, tuple(left[:count])))

    def _next(self) -> _Current | None:
        while self._names:
            name = self._names.popleft()
            dormant = self._devices.dormant.get(name)
            wanted = [] if dormant is None else dormant.to_relocate()
            if dormant is not None and wanted:
                self._count += 1
                self._current = _Current(self._count, name, dormant, wanted)
                return self._current
        return None

    def _is_dormant(self, current: _Current) -> bool:
        return self._devices.dormant.get(current.name) is current.parked

    def copied(self, number: int, copies: Sequence[CommandPosition], now_us: int) -> None:
        """The commands of a ``Copy`` are in the other topic; ``GONE`` for each that Pulsar had no more."""
        made = [copy for copy in copies if copy != GONE]
        self.last_copy = max([*made, *([self.last_copy] if self.last_copy else [])], default=None)
        current = self._current
        if current is None or current.number != number:
            return
        current.waiting = False
        current.copies += copies
        if current.copied:
            self._store(current, now_us)

    def _store(self, current: _Current, now_us: int) -> None:
        name = current.name
        replaced = None
        if self._is_dormant(current):
            new_key = self._segments.new_key
            replaced = current.parked.relocate(current.wanted, current.copies, lambda: new_key(name), now_us)
        if replaced is None:
            self._current = None
            return
        made, removed = replaced
        self._scanned_copies += current.copies
        current.waiting = True
        for key in made:
            self._segments.write_fixed(current.parked, key, relocation=current.number if key == made[-1] else 0)
        for old in removed:
            self._outbox.remove_segment(old)

    def copy_failed(self, number: int) -> None:
        """The commands of a ``Copy`` could not be copied. The next scan looks again for what to relocate."""
        self._names.clear()
        if self._current is not None and self._current.number == number:
            self._current = None

    def stored(self, number: int) -> None:
        """The segment with the positions of the copies is stored."""
        current = self._current
        if current is not None and current.number == number:
            self._current = None
            if self._is_dormant(current) and current.parked.originals:
                self._names.appendleft(current.name)

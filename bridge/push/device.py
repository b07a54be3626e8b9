"""The devices of a partition: queue, mode, cursor and parked commands of each, and whose turn it is."""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from bridge.contract.commands import BEFORE_ALL, CommandPosition, is_broadcaster
from bridge.push.command import TrackedCommand
from bridge.push.cursor import Cursor
from bridge.push.cursor_store import CursorStore, Resting
from bridge.push.limits import Limits
from bridge.push.segments import Parked
from bridge.push.states import DeviceEvent, Mode, next_mode

__all__ = ["Device", "Devices"]


@dataclass(slots=True, eq=False)
class CursorWrite:
    """What a device's cursor has passed and Pulsar does not know so far."""

    unstored: list[TrackedCommand] = field(default_factory=list)  # passed since the last StoreCursor
    storing: list[TrackedCommand] = field(default_factory=list)  # covered by the StoreCursor under way
    under_way: bool = False

    @property
    def pending(self) -> bool:
        """Whether Pulsar does not know of a command that the cursor has passed."""
        return bool(self.unstored or self.storing)


@dataclass(slots=True, eq=False)
class SegmentWrite:
    """What is parked and not stored so far."""

    ids: list[CommandPosition] = field(default_factory=list)
    """Messages that are acknowledged when the segments are stored."""
    keys: dict[str, None] = field(default_factory=dict)  # segments to be written, in order
    removed: list[str] = field(default_factory=list)  # segments to be removed when the cursor is stored


@dataclass(slots=True, eq=False)
class Place:
    """Where a device gets its commands."""

    link: str = ""  # name of the broker
    certain: bool = False
    """A sign of life, a probe or an earlier command chose the broker: one that a command names does not count."""
    ready: bool = False  # the device is in the list of those to look at, of its broker


@dataclass(slots=True, eq=False)
class ReplayProgress:
    """How far the replay of a device's parked commands is."""

    coming: int = 0  # parked commands that are being read
    epoch: int = 0  # pulls of an earlier epoch do not count
    probing: bool = False  # no sign of life so far: one command at a time
    sweeping: bool = False  # only expired commands are read
    waiting: bool = False  # it waits for its turn to be read
    resuming: bool = False  # A resume request is under way: the device stays parked

    @property
    def tried(self) -> bool:
        """Whether the device is probed or swept, without a sign of life."""
        return self.probing or self.sweeping


@dataclass(slots=True, eq=False)
class Device:
    """One device with a command under way."""

    name: str
    cursor: Cursor
    loaded: CommandPosition  # the cursor's position as the former owner left it
    mode: Mode = Mode.LIVE
    suspected: bool = True  # its first push may repeat one of the former owner
    queue: deque[TrackedCommand] = field(default_factory=deque)
    """In log order; settled ones leave from the head only."""
    ids: set[str] = field(default_factory=set)  # command ids of what is in the queue
    given_up: set[CommandPosition] = field(default_factory=set)
    """Of which dead letter or receipt is not stored, or which are in the queue."""
    cursor_write: CursorWrite = field(default_factory=CursorWrite)
    failures: int = 0  # in a row
    retry_at_us: int = 0
    place: Place = field(default_factory=Place)
    parked: Parked = field(default_factory=Parked)
    segment_write: SegmentWrite = field(default_factory=SegmentWrite)
    replay: ReplayProgress = field(default_factory=ReplayProgress)

    @property
    def link(self) -> str:
        """The broker at which it gets its commands."""
        return self.place.link

    def on(self, event: DeviceEvent) -> None:
        """Change the mode. Raises IllegalTransitionError."""
        self.mode = next_mode(self.mode, event)

    @property
    def last_waiting(self) -> CommandPosition:
        """The last command that waits: in the queue if the device is LIVE, else parked; BEFORE_ALL without one."""
        if self.mode is Mode.LIVE:
            return self.queue[-1].position if self.queue else BEFORE_ALL
        return self.parked.position(-1) if len(self.parked) else BEFORE_ALL

    def queues(self, tracked: TrackedCommand) -> bool:
        """Return whether this very command waits for the cursor to pass it."""
        return any(one is tracked for one in self.queue)

    def gives_up_before(self, position: CommandPosition) -> bool:
        """Return whether the dead letter, or its receipt, of an earlier command is not stored."""
        return any(one < position for one in self.given_up)

    @property
    def pulled(self) -> int:
        """How many from the head of the parked list are read, or being read, and not settled."""
        write = self.cursor_write
        tracked = chain(self.queue, write.unstored, write.storing)
        return self.replay.coming + sum(1 for one in tracked if one.pulled or one.listed)


def _is_idle(device: Device) -> bool:
    """Return whether nothing is under way for a device, but for a write of its cursor that is due."""
    cursor, segments, replay = device.cursor_write, device.segment_write, device.replay
    busy = device.queue or cursor.pending or cursor.under_way or device.given_up or replay.resuming
    return not (busy or segments.ids or segments.keys or segments.removed or device.place.ready or replay.waiting)


_LOOKS: Final = 2


class Devices:
    """Every device that the partition knows."""

    def __init__(
        self,
        limits: Limits,
        cursors: Mapping[str, Cursor],
        locate: Callable[[Device], None] = lambda device: None,
        term: str = "",
    ) -> None:
        """``locate`` gives a device the broker at which it is, as far as is known. ``term`` is that of this owner."""
        self._limits = limits
        self.term = term
        self.locate = locate
        self.awake: OrderedDict[str, Device] = OrderedDict()
        """With something under way, and some more that had something lately."""
        self.dormant: dict[str, Parked] = {}
        """Parked devices with nothing under way: their ids are all that stays in memory."""
        self.cursors = cursors if isinstance(cursors, CursorStore) else CursorStore(limits.remembered_ids, cursors)
        """Of devices that are not awake."""
        self.dirty: dict[str, Device] = {}
        """Whose cursor is to be written."""
        self._ready: defaultdict[str, deque[Device]] = defaultdict(deque)  # by broker; of some the entry is outdated
        self._retries: list[tuple[int, str]] = []

    def get(self, name: str) -> Device:
        """Return a device, awake from now on."""
        device = self.awake.get(name)
        if device is None:
            resting = self.cursors.pop(name) or Resting(Cursor(self._limits.remembered_ids), BEFORE_ALL)
            device = self.awake[name] = Device(name, *resting[:2], suspected=resting.suspected)
            parked = self.dormant.pop(name, None)
            if parked is not None:
                device.mode, device.parked = Mode.PARKED, parked
            self.locate(device)
            self._rest_some()
        return device

    def known(self, name: str) -> Device | None:
        """Return a device that is awake or has parked commands, None for any other."""
        return self.get(name) if name in self.awake or name in self.dormant else None

    def sleep(self, device: Device) -> None:
        """Keep only the ids of a parked device for which nothing is under way."""
        if device.mode is Mode.PARKED and len(device.parked) and _is_idle(device) and device.name not in self.dirty:
            self._put_aside(device)
            self.dormant[device.name] = device.parked

    def _rest_some(self) -> None:
        """Put idle devices aside if too many are awake, those first that are awake the longest."""
        for _ in range(min(_LOOKS, len(self.awake) - 1)):  # not the newest one
            if len(self.awake) <= self._limits.awake:
                return
            oldest = next(iter(self.awake.values()))
            if not self.rest(oldest):
                self.awake.move_to_end(oldest.name)

    def rest(self, device: Device) -> bool:
        """Keep nothing of an idle device in memory if too many are awake. Returns whether it is put aside."""
        parked = len(device.parked) or device.parked.overflowed_to > device.cursor.position
        if len(self.awake) <= self._limits.awake or device.mode is not Mode.LIVE or parked:
            return False
        if device.name in self.dirty or not _is_idle(device):
            return False
        self._put_aside(device)
        return True

    def _put_aside(self, device: Device) -> None:
        del self.awake[device.name]
        if device.cursor.has_state:
            self.cursors.put(device.name, Resting(device.cursor, device.loaded, device.suspected))

    def mode_of(self, name: str) -> Mode:
        """Return the mode of a device; one without a command is LIVE."""
        if name in self.dormant:
            return Mode.PARKED
        device = self.awake.get(name)
        return Mode.LIVE if device is None else device.mode

    def knows(self, name: str) -> bool:
        """Return whether there was ever a command to a device; any client may invent names, also that of a broadcast."""
        if is_broadcaster(name):
            return False
        return name in self.awake or name in self.cursors or name in self.dormant

    # --- cursors ---

    @property
    def with_cursors(self) -> Iterator[str]:
        """The devices that have a cursor. None is missed that wakes, or is put aside, before the end."""
        yield from self.cursors
        yield from [one.name for one in self.awake.values() if one.cursor.has_state]

    @property
    def known_count(self) -> int:
        """How many devices it knows, at most."""
        return len(self.cursors) + len(self.awake) + len(self.dormant)

    def any_cursor(self, name: str) -> Cursor | None:
        """Return the cursor of a device, also a new one, None without one. If the device is not awake, it is a copy."""
        device = self.awake.get(name)
        return self.cursors.get(name) if device is None else device.cursor

    def cursor_of(self, name: str) -> Cursor | None:
        """Return the present cursor of a device, None without one."""
        cursor = self.any_cursor(name)
        return cursor if cursor is not None and cursor.has_state else None

    def records_of(self, name: str, *, whole: bool = False, all_keys: bool = False) -> tuple[tuple[str, bytes], ...]:
        """Return what is to be written of a device's cursor, as ``Cursor.records``; nothing without one."""
        device = self.awake.get(name)
        resting = self.cursors.look(name) if device is None else Resting(device.cursor, device.loaded)
        if resting is None or not resting.cursor.has_state:
            return ()
        records = resting.cursor.records(name, self.term, whole=whole, all_keys=all_keys)
        if device is None:
            self.cursors.put(name, resting)
        return records

    def mark_dirty(self, device: Device) -> None:
        """Have the device's cursor written."""
        self.dirty[device.name] = device

    # --- parked commands ---

    def parked_of(self, name: str) -> Parked | None:
        """Return what is parked for a device, None for an unknown one."""
        device = self.awake.get(name)
        return self.dormant.get(name) if device is None else device.parked

    def all_parked(self) -> Iterator[tuple[str, Parked]]:
        """Yield each device with parked commands, and these."""
        yield from self.dormant.items()
        for name, device in self.awake.items():
            if len(device.parked):
                yield name, device.parked

    @property
    def parked(self) -> int:
        """How many devices have parked commands."""
        return len(self.dormant) + sum(1 for device in self.awake.values() if len(device.parked))

    @property
    def stored(self) -> Iterator[str]:
        """The devices of which a record is in the cursors partition."""
        yield from self.with_cursors
        yield from [name for name, _ in self.all_parked() if self.cursor_of(name) is None]

    # --- whose turn it is ---

    def look_at(self, device: Device) -> None:
        """Have the device's next command sent when it is its turn."""
        if not device.place.ready:
            device.place.ready = True
            self._ready[device.place.link].append(device)

    def next_ready(self, link: str) -> Device | None:
        """Return whose turn it is at a broker, None without one."""
        ready = self._ready[link]
        while ready:
            device = ready.popleft()
            place = device.place
            if place.ready and place.link == link:
                place.ready = False
                return device
        return None

    def move(self, device: Device, link: str, *, certain: bool) -> None:
        """The device gets its commands at another broker from now on."""
        place = device.place
        place.certain = certain
        if place.link == link:
            return
        place.link = link
        if place.ready:
            place.ready = False
            self.look_at(device)

    def retry_at(self, device: Device, at_us: int) -> None:
        """Send nothing to the device before ``at_us``."""
        device.retry_at_us = at_us
        heapq.heappush(self._retries, (at_us, device.name))

    @property
    def next_retry_us(self) -> int | None:
        """When the next retry is due, None without one."""
        return self._retries[0][0] if self._retries else None

    def retry_due(self, now_us: int) -> None:
        """Look at the devices whose wait is over."""
        while self._retries and self._retries[0][0] <= now_us:
            device = self.awake.get(heapq.heappop(self._retries)[1])
            if device is not None:
                self.look_at(device)

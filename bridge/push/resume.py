"""Resume: a device that keeps its own offset gets every command after a position that it names, in order (H27).

Such a command was settled long ago, or waits, or is in flight. So the device is parked first, what arrives for it meanwhile
is parked behind, and what it has had since that position is put before all that is parked. Then the replay sends it like
any parked command, marked ``repeat=1``.

Commit order; the process may die between any two steps:

1. The device is parked, and what was in flight is parked with it. Its writes end.
2. ``FindCommands`` → ``found``: the positions of its commands in Pulsar, up to its cursor.
3. ``StoreSegment``: their ids. After a crash before 4 they are at or below the cursor, so the next owner drops them.
4. ``StoreCursor``, moved back to before the first of them → ``cursor_stored``: the next owner replays them as well. This
   write goes through the exclusive producer, so only the partition's owner can complete it (H23).
5. ``AnswerRequest`` → ``answered``; then the device is woken and the request is acknowledged. After a crash before it the
   request comes again, and the device gets the same sequence again. The device is not woken before: its first command
   would precede the answer in one of ten cases at Artemis, because MQTT orders one subscription only (4.6.0-6).

A further request of the device waits until the former one is answered, and for a minimum time; the latest one counts.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bridge.bounded_map import BoundedMap
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.segments import GONE, SEGMENT_IDS, ParkedId
from bridge.push.actions import AnswerRequest, DropRequest, FindCommands, Outbox, ResumeAnswer, ResumeRequest
from bridge.push.command import CommandRegistry, LateAnswers
from bridge.push.device import Device, Devices
from bridge.push.limits import ResumeLimits
from bridge.push.parking import Parking
from bridge.push.replay import Replay
from bridge.push.retention import Retention
from bridge.push.segment_log import SegmentLog
from bridge.push.segments import Parked
from bridge.push.states import Mode

__all__ = ["FOUND_WIDTH", "SERVED_AT_ONCE", "Resume"]

FOUND_WIDTH: Final = 4
"""Numbers of a command that was found: ledger, entry, index, and when it expires in ms since the epoch."""
SERVED_AT_ONCE: Final = 16
"""Requests that are served at a time, so that what was found for them stays small."""
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024
_BEYOND: Final = "there is no such command yet: this position is after the last one"


class _Stage(Enum):
    PARKING = 1  # the device is parked, some of its writes are under way
    FINDING = 2
    STORING = 3
    ANSWERING = 4  # all is stored, the broker has not confirmed the answer


@dataclass(slots=True, eq=False)
class _Served:
    request: ResumeRequest
    stage: _Stage = _Stage.PARKING
    epoch: int = 0
    trimmed: bool = False
    first: CommandPosition | None = None
    answer: ResumeAnswer | None = None  # given, and not confirmed by the broker so far


@dataclass(slots=True, eq=False)
class Resume:
    """The resume requests of a partition."""

    _limits: ResumeLimits
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _segments: SegmentLog
    _late: LateAnswers
    _replay: Replay
    _parking: Parking
    _retention: Retention
    _waiting: dict[str, ResumeRequest] = field(default_factory=dict)
    """For the former one of their device, and for some time."""
    _times: list[tuple[int, str]] = field(default_factory=list)  # when they may be served
    _began: BoundedMap[int] = field(default_factory=lambda: BoundedMap(_REMEMBERED_BYTES, each=32))
    """When a device's last one did."""
    _served: dict[str, _Served] = field(default_factory=dict)
    resends_from: CommandPosition | None = None
    """From here on Pulsar must keep what the device of the last request gets again; None if it gets nothing."""

    @property
    def pending(self) -> int:
        """Requests that are not answered."""
        return len(self._served) + len(self._waiting)

    @property
    def next_time_us(self) -> int | None:
        """When the next request may be served, None without one."""
        return self._times[0][0] if self._times and len(self._served) < SERVED_AT_ONCE else None

    def asked(self, request: ResumeRequest, now_us: int) -> ResumeAnswer | None:
        """A device asks for everything after a position. Returns the answer if there is nothing to send."""
        name = request.device
        cursor, parked = self._devices.any_cursor(name), self._devices.parked_of(name)
        settled = BEFORE_ALL if cursor is None else cursor.position
        # What is parked may have been sent, and after a clean takeover no other record shows it.
        last_parked = parked.position(-1) if parked is not None and len(parked) else BEFORE_ALL
        if request.after > max(self._commands.last, settled, last_parked):
            return ResumeAnswer(0, error=_BEYOND)
        if cursor is None and name not in self._devices.dormant:
            return ResumeAnswer(0)
        former = self._waiting.get(name)
        self._waiting[name] = request
        if former is not None:
            self._outbox.add(DropRequest(former))
        elif name not in self._served:
            self._wait(name, now_us)
        return None

    def _wait(self, name: str, now_us: int) -> None:
        every_us = self._limits.every_us
        heapq.heappush(self._times, (max(now_us, self._began.get(name, -every_us) + every_us), name))

    def advance(self, now_us: int, *, serves: bool) -> None:
        """Begin the requests whose turn it is, unless ``serves`` is False, and search for those whose device is parked."""
        while serves and (due := self.next_time_us) is not None and due <= now_us:
            self._begin(heapq.heappop(self._times)[1], now_us)
        for served in self._served.values():
            if served.stage is _Stage.PARKING:
                self._find(served, now_us)

    def _begin(self, name: str, now_us: int) -> None:
        self._began.put(name, now_us)
        self._served[name] = _Served(self._waiting.pop(name))
        device = self._devices.get(name)
        device.replay.resuming = True
        device.cursor.unproven.clear()  # the device itself knows what it has had
        if device.mode is not Mode.PARKED:
            self._parking.park(device, now_us)

    def _find(self, served: _Served, now_us: int) -> None:
        name = served.request.device
        device = self._devices.awake[name]
        write = device.cursor_write
        if device.queue or write.pending or write.under_way or name in self._devices.dirty:
            return
        served.stage = _Stage.FINDING
        served.epoch = self._replay.new_epoch()
        until = device.cursor.position
        if served.request.after < until:
            self._outbox.add(FindCommands(name, served.epoch, served.request.after, until))
        else:
            self._put_first(served, device, array("q"), now_us)

    def found(
        self, name: str, epoch: int, ids: array[int], *, trimmed: bool, first: CommandPosition | None, now_us: int
    ) -> None:
        """What is in Pulsar for the device between the positions of a ``FindCommands``, in the order of the log.

        ``ids`` has ``FOUND_WIDTH`` numbers for each command. ``trimmed``: Pulsar has not all of it any more; ``first`` is
        the first command of the partition that it has, None without any.
        """
        served = self._served.get(name)
        if served is None or served.stage is not _Stage.FINDING or served.epoch != epoch:
            return
        served.trimmed, served.first = trimmed, first
        self._put_first(served, self._devices.awake[name], ids, now_us)

    def _put_first(self, served: _Served, device: Device, ids: array[int], now_us: int) -> None:
        cursor, parked, removed = device.cursor, device.parked, device.segment_write.removed
        found = self._wanted(served, cursor.position, ids, now_us)
        before = len(parked)
        _add_copies(parked, found, served.request.after, cursor.position)
        # What is parked up to the cursor is sent again for a former request, or because the broker alone confirmed it:
        # now the device itself reports. All of it is settled.
        removed += parked.finish(cursor.position)
        self._renew(device)
        if not parked.originals:
            parked.originals_since_us = now_us
        for one in found:
            self._retention.want(one.position, one.copy)
        for at in reversed(range(0, len(found), SEGMENT_IDS)):
            parked.prepend(found[at : at + SEGMENT_IDS], self._segments.new_key(device.name))
        self._segments.parked += len(parked) - before
        self._late.forget_device(device.name)
        self.resends_from = found[0].position if found else None
        cursor.replay_from(self.resends_from)
        for key in parked.keys_before(cursor.position):
            self._segments.write_fixed(parked, key)
        for key in removed:
            device.segment_write.keys.pop(key, None)
        self._devices.mark_dirty(device)  # written behind the segments
        served.stage = _Stage.STORING

    def _wanted(self, served: _Served, until: CommandPosition, ids: array[int], now_us: int) -> list[ParkedId]:
        """Return what the device gets again; of too many commands the newest."""
        found: list[ParkedId] = []
        for at in range(0, len(ids), FOUND_WIDTH):
            ledger, entry, index, expires = ids[at : at + FOUND_WIDTH]
            position = CommandPosition(ledger, entry, index)
            if served.request.after < position <= until and not 0 < expires * 1000 <= now_us:
                found.append(ParkedId(position, expires, True, True))
        if len(found) > self._limits.most:
            del found[: -self._limits.most]
            served.trimmed, served.first = True, found[0].position
        return found

    def _renew(self, device: Device) -> None:
        """Have no stored segment name a command that is settled."""
        if not len(device.parked):
            return
        made, replaced = device.parked.renew(lambda: self._segments.new_key(device.name))
        write = device.segment_write
        write.removed += replaced
        if any(key in write.keys for key in replaced):  # commands are acknowledged when it is stored
            write.keys[made[-1]] = None
        for key in made:
            self._segments.write_fixed(device.parked, key)

    def cursor_stored(self, device: Device) -> None:
        """Pulsar has the device's cursor: its request is answered if the cursor was moved back for it."""
        served = self._served.get(device.name)
        if served is None or served.stage is not _Stage.STORING:
            return
        for key in device.segment_write.removed:
            self._outbox.remove_segment(key)
        device.segment_write.removed.clear()
        served.stage = _Stage.ANSWERING
        served.answer = ResumeAnswer(len(device.parked), served.trimmed, served.first)
        self._outbox.add(AnswerRequest(served.request, served.answer, device.link))

    def moved(self, device: Device) -> None:
        """The device is at another broker now: it gets the answer there."""
        served = self._served.get(device.name)
        if served is not None and served.answer is not None:
            self._outbox.add(AnswerRequest(served.request, served.answer, device.link))

    def answered(self, request: ResumeRequest, now_us: int) -> Device | None:
        """The broker has the answer, or cannot accept it. Returns the device to be replayed, None if it is not served."""
        served = self._served.get(request.device)
        if served is None or served.request is not request:
            return None
        del self._served[request.device]
        if request.device in self._waiting:
            self._wait(request.device, now_us)
        device = self._devices.awake[request.device]
        device.replay.resuming = False
        return device


def _add_copies(parked: Parked, found: list[ParkedId], after: CommandPosition, until: CommandPosition) -> None:
    """Add to ``found`` what is parked between these positions and is in Pulsar as a copy alone."""
    known = {one.position for one in found}
    kept = [one for one in (parked[at] for at in range(parked.up_to(until))) if one.copy not in (None, GONE)]
    more = [one for one in kept if one.position > after and one.position not in known]
    if more:
        found[:] = sorted([*found, *more])

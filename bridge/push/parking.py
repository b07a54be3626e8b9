"""Parking: the commands of offline devices, of failing devices, and of a full partition wait in Pulsar.

Only their ids stay in memory. A sign of life, a probe or the expiry of a command wakes the device (``replay``, ``probes``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.contract.segments import ParkedId, read_segment
from bridge.errors import ContractError
from bridge.push.actions import Outbox
from bridge.push.command import CommandRegistry, LateAnswers, TrackedCommand
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.probes import Presence, Probes
from bridge.push.replay import Replay
from bridge.push.segment_log import SegmentLog
from bridge.push.segments import Parked
from bridge.push.settlement import Settlement
from bridge.push.states import WAITING, CommandEvent, CommandState, DeviceEvent, Mode

__all__ = ["Parking"]

_PART: Final = 8  # such a part of the room is made at once, so that not every arriving command has to make its own
_ROOM_US: Final = 500_000


def _waiting_for(device: Device) -> Iterator[TrackedCommand]:
    return (one for one in device.queue if one.state in WAITING and not one.pulled)


def _count(device: Device) -> int:
    return sum(1 for _ in _waiting_for(device))


def _bytes(device: Device) -> int:
    return sum(one.size for one in _waiting_for(device))


_FULL: Final = "too many commands wait in Pulsar for a device that is away"


@dataclass(eq=False)
class Parking:
    """Decides what is parked, and parks it."""

    _limits: Limits
    _horizon: CommandPosition | None
    """Up to there the former owner may have sent more than the cursors show; None if it did not."""
    _links: Links
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _segments: SegmentLog
    _settlement: Settlement
    _late: LateAnswers
    _replay: Replay
    _probes: Probes
    _presence: Presence
    room_at_us: int = 0  # when ``look_for_room`` is due in a full partition
    begun: list[str] = field(default_factory=list)  # devices whose replay a former owner had begun
    unread: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of the segments that could not be read: Pulsar has their commands, and none waits for them."""

    def restore(self, name: str, segments: Mapping[str, bytes], now_us: int, left_us: int) -> None:
        """Load what former owners parked for a device; until ``left_us`` the last one has evaluated the signs of life."""
        plain = self._devices.cursors.plain(name)
        cursor = None if plain is not None else self._devices.cursors.get(name)
        done = BEFORE_ALL if cursor is None else cursor.done
        online = cursor is not None and (cursor.online or (cursor.resend_from is not None and not cursor.resend))
        if plain is not None:
            done, online = CommandPosition(*plain.position), plain.online
        read = {}
        for key, payload in segments.items():
            try:
                read[key] = read_segment(payload)
            except ContractError as e:
                self.unread.append((key, str(e)))
        ids = {key: segment.ids for key, segment in read.items()}
        since_us = min((segment.since_us for segment in read.values() if segment.since_us), default=now_us)
        if cursor is not None and cursor.resend:
            ids[self._segments.new_key(name)] = cursor.resend
        parked = Parked.loaded(ids, done, since_us)
        parked.since_us = min(left_us, now_us)  # a clock that was ahead must not hide later signs of life
        for key in parked.finish(done):
            self._outbox.remove_segment(key)
        if not len(parked):
            return
        self._segments.parked += len(parked)
        if self._horizon is not None:
            self._replay.unmarked.add(name)
        if online:
            self.begun.append(name)
        self._probes.restore(name, parked, now_us)

    def is_uncertain(self, device: Device) -> bool:
        """Return whether the device may have received a queued command that no stored record shows."""
        horizon = self._horizon
        return any(
            tracked.attempts or (device.suspected and horizon is not None and tracked.position <= horizon)
            for tracked in device.queue
        )

    # --- arrivals ---

    def arrived(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> bool:
        """A command arrived; an absent device is parked. Returns whether the command was parked before."""
        if device.mode is Mode.LIVE and self._probes.is_away(device, now_us):
            self.park(device, now_us)
        if position <= device.cursor.position or position not in device.parked:
            return False
        self._arrived_again(device, position, command, now_us)
        return True

    def park_arrived(self, device: Device, tracked: TrackedCommand, now_us: int) -> None:
        """Park a command that arrived for a device that is not LIVE."""
        if self._is_full(device):
            self._overflow(device, tracked)
        else:
            self._park_command(device, tracked, now_us)
            self._replay.want(device)

    def _overflow(self, device: Device, tracked: TrackedCommand) -> None:
        """Give up a command that is one too many. It is in no queue, so ``passes_overflow`` has the next one wait for it."""
        self._settlement.give_up(device, tracked, "overflowed", _FULL)
        device.parked.overflowed_to = max(device.parked.overflowed_to, tracked.position)

    def _arrived_again(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> None:
        """Its acknowledgement was lost; or the former owner died before it, or the command is pending again (H26)."""
        key = device.parked.key_of(position)
        if not self._outbox.writes and device.name not in self._devices.dirty and key not in device.segment_write.keys:
            self._outbox.acknowledge(position)
            return
        # Its id may be on its way to Pulsar, or wait for the cursor: it is acknowledged with the next write of the id.
        self._commands.add(TrackedCommand(position, command, CommandState.PARKED))
        device.segment_write.ids.append(position)
        self._segments.write_later(device, key, now_us)

    def overflows(self, device: Device) -> bool:
        """Return whether too many commands of a failing device wait in memory."""
        return device.failures > 0 and len(device.queue) > self._limits.device_pending

    # --- parking ---

    def parks_for(self, device: Device, tracked: TrackedCommand, *, absent: bool) -> bool:
        """Return whether a failed push parks the device; ``absent``: the broker reports that no client is subscribed."""
        if absent or tracked.command.is_broadcast:
            return absent
        lives = self._presence.seen_us(device.name) >= tracked.pushed_at_us
        return not lives and (device.replay.probing or device.failures >= self._limits.presence.park_after)

    def park(self, device: Device, now_us: int) -> None:
        """Have the device's commands wait in Pulsar."""
        device.parked.since_us = now_us
        self._move_queue(device, now_us)
        self._devices.locate(device)  # it may have been probed at another broker
        self._probes.plan(device.name, device.parked, now_us)
        self._probes.watch_expiry(device.name, device.parked)
        self._devices.sleep(device)

    def interrupt(self, device: Device, now_us: int) -> None:
        """Have the commands of a device whose broker is away wait in Pulsar until the broker accepts commands again."""
        tried = device.replay.tried
        self.park(device, now_us)
        if not tried:
            device = self._devices.get(device.name)
            self._probes.interrupt(device, now_us)
            self._replay.mark_online(device, True)  # for the next owner

    def leave_broker(self, device: Device, now_us: int) -> None:
        """The device was seen elsewhere: what its former broker confirmed since its last sign of life is pending again (H26)."""
        if device.mode is Mode.PARKED:
            self.doubt(device, now_us)
        elif self._unproven(device, now_us):
            self.park(device, now_us)

    def doubt(self, device: Device, now_us: int) -> None:
        """A parked device is absent: what its broker confirmed before others were parked is pending again (H26)."""
        if self._unproven(device, now_us) and not device.parked.names_settled:
            self._resend_unproven(device, now_us)
            self._probes.watch_expiry(device.name, device.parked)
        self._devices.sleep(device)

    def end_sweep(self, device: Device, now_us: int) -> None:
        """The expired commands are settled: the device is parked as before, with the probe that was planned."""
        self._move_queue(device, now_us)
        self._probes.plan_again(device.name, device.parked)
        self._probes.watch_expiry(device.name, device.parked)
        self._devices.sleep(device)

    def _move_queue(self, device: Device, now_us: int) -> None:
        """Park a device with all of its queue that still needs a push."""
        device.on(DeviceEvent.PARK)
        self._replay.mark_online(device, False)
        self._replay.stop(device)
        device.failures = device.retry_at_us = 0
        staying: deque[TrackedCommand] = deque()
        while device.queue and device.queue[0].state not in WAITING:  # it needs no push any more
            staying.append(device.queue.popleft())
        moving, device.queue = device.queue, staying
        device.ids = {tracked.command.command_id for tracked in staying}
        empty = not len(device.parked)
        if not staying and empty:
            self._resend_unproven(device, now_us)
        first: list[ParkedId] = []
        for tracked in moving:
            self._commands.stop_awaiting(tracked)
            if tracked.pulled:
                self._replay.put_back(device, tracked)
            elif not tracked.attempts and self._is_full(device, len(first)):
                if tracked.state is CommandState.QUEUED:
                    self._overflow(device, tracked)
            elif tracked.state is CommandState.DEAD:
                device.given_up.discard(tracked.position)
                if tracked.maybe_had:
                    self._commands.acknowledge(tracked.position)
            elif tracked.state not in (CommandState.DYING, CommandState.NOTED, CommandState.SETTLED):
                first += self._park_command(device, tracked, now_us, before=len(device.parked) > 0)
        if first:
            self._segments.prepend(device, first, now_us)
        if not staying and not empty and not device.parked.names_settled:
            self._resend_unproven(device, now_us)

    def _is_full(self, device: Device, more: int = 0) -> bool:
        """Return whether no further command may be parked; those that are sent again do not count."""
        most = self._limits.parked.most
        count = len(device.parked) + more
        return count >= most and count - device.parked.up_to(device.cursor.position) >= most

    def _park_command(
        self, device: Device, tracked: TrackedCommand, now_us: int, *, before: bool = False
    ) -> list[ParkedId]:
        """Park a command that is not acknowledged. With ``before`` return it instead if it precedes the parked ones."""
        self._late.attempted(tracked)
        seen = tracked.maybe_had
        tracked.on(CommandEvent.PARK)
        device.segment_write.ids.append(tracked.position)
        if tracked.listed:  # it was in flight when the rest of its queue was parked
            self._segments.write_later(device, device.parked.key_of(tracked.position), now_us)
            return []
        if not tracked.attempts and device.suspected and self._horizon is not None:
            seen = seen or tracked.position <= self._horizon
        one = ParkedId(tracked.position, tracked.command.expires_at_ms, seen)
        if before and device.parked.position(0) > tracked.position:
            return [one]
        self._append(device, one, now_us)
        return []

    def _append(self, device: Device, one: ParkedId, now_us: int) -> None:
        self._segments.append(device, one, now_us)
        if len(device.parked) == 1:
            self._probes.watch_expiry(device.name, device.parked)

    def _resend_unproven(self, device: Device, now_us: int) -> None:
        """What the broker confirmed since the last sign of life perhaps did not arrive (H26)."""
        resend = self._unproven(device, now_us)
        device.cursor.unproven.clear()
        if resend:
            device.cursor.resend_parked(resend)
            self._devices.mark_dirty(device)
            if len(device.parked):
                self._segments.prepend(device, resend, now_us)
                return
            for one in resend:
                self._append(device, one, now_us)

    def _unproven(self, device: Device, now_us: int) -> list[ParkedId]:
        since = self.unsure_since(device.name, now_us)
        unproven = sorted(one for one, at_us in device.cursor.unproven if at_us > since)
        if len(device.parked):  # what a former owner had pending again is parked
            return [one for one in unproven if one.position < device.parked.position(0)]
        return unproven

    def unsure_since(self, name: str, now_us: int) -> int:
        """Return up to when the device certainly has what the broker confirmed, or is not sent it again after so long."""
        return max(self._presence.seen_us(name), now_us - self._limits.parked.unsure_us)

    # --- backpressure (H30) ---

    def look_for_room(self, now_us: int) -> None:
        """Make room in a partition that stays full: a broker may be away by now, and nothing arrives that would show it."""
        if self._commands.full and now_us >= self.room_at_us:
            self.room_at_us = now_us + _ROOM_US
            self.make_room(now_us)

    def make_room(self, now_us: int) -> None:
        """Park what takes most of a full partition. First of devices that fail, which are parked; of a device that is only
        slow all but the commands under way is parked, and is replayed at once, a few at a time. A slow device that has
        not answered its only command is parked as well. Before all others come devices of a broker that is away or does not
        confirm, if other brokers do.
        """
        while (pressure := self._pressure()) is not None:
            if not self._relieve(*pressure, now_us):
                return

    def _pressure(self) -> tuple[Callable[[Device], int], int] | None:
        """Return what fills the partition: how much of it a device takes, in bytes where those fill the partition, else in
        commands, and how much has to leave to make room. None if the partition has room, or will have.

        A full partition receives nothing more from Pulsar, for any device: by the count of its commands or by the bytes
        of their payloads. A command whose receipt, dead letter or parked id is being stored makes room soon; a command
        that waits for its device may wait without end.
        """
        waiting = [one for one in self._devices.awake.values() if one.queue and one.mode is not Mode.PARKED]
        for weigh, most in ((_bytes, self._limits.pending_bytes), (_count, self._limits.pending)):
            used = sum(map(weigh, waiting))
            if used >= most:
                return weigh, used - most + max(1, most // _PART)
        return None

    def _relieve(self, weigh: Callable[[Device], int], excess: int, now_us: int) -> bool:
        """Return whether there will be room."""
        online = [one for one in self._devices.awake.values() if one.mode is not Mode.PARKED and weigh(one)]
        stuck = {name for name in self._links.names if self._links[name].is_stuck(now_us)}
        stuck = stuck if len(stuck) < len(self._links.names) else set()
        order = {one.name: (one.link in stuck, one.failures > 0, weigh(one)) for one in online}
        for device in sorted(online, key=lambda one: order[one.name], reverse=True):
            before = weigh(device)
            if device.link in stuck:
                self.interrupt(device, now_us)
            elif device.failures:
                self.park(device, now_us)
            else:
                spilled = device.mode is Mode.LIVE and self._spill(device, now_us)
                if not spilled and device.queue[0].state is CommandState.AWAITED:
                    self.park(device, now_us)
            excess -= before - weigh(device)
            if excess <= 0:
                return True
        return False

    def _spill(self, device: Device, now_us: int) -> bool:
        tail: list[TrackedCommand] = []
        while device.queue and device.queue[-1].state is CommandState.QUEUED:
            tail.append(device.queue.pop())
        if len(tail) < 2:
            device.queue.extend(reversed(tail))
            return False
        for tracked in device.queue:  # in flight, and listed all the same: the list begins with the oldest
            self._append(device, ParkedId(tracked.position, tracked.command.expires_at_ms, True), now_us)
            tracked.listed = True
        for tracked in reversed(tail):
            device.ids.discard(tracked.command.command_id)
            self._park_command(device, tracked, now_us)
        self._replay.wake(device, DeviceEvent.SPILL)
        return True

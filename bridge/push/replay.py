"""Replay: push reads parked commands from Pulsar at a bounded rate, and sends them before all that arrives.

Which devices are parked is the matter of ``parking``; ``probes`` decides when a device without a sign of life is tried.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from bridge.contract.commands import Command, CommandPosition
from bridge.push.actions import Forget, Outbox, Pull
from bridge.push.command import CommandRegistry, LateAnswers, TrackedCommand
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.segment_log import SegmentLog
from bridge.push.settlement import DUPLICATE, Settlement
from bridge.push.states import CommandEvent, CommandState, DeviceEvent, Mode

__all__ = ["PROBE_EVERY", "Budget", "Replay", "ReplayScheduler"]

PROBE_EVERY: Final = 8


class ReplayScheduler:
    """Devices that want some of their parked commands, each once, and in which order these are read.

    They are read in rounds, each in the order of the log by the first command that each device still waits for: so reads lie
    close together, with any number of devices. A device that wants more waits for the next round. One of eight turns is for
    devices that are probed, in rounds of their own, so that they get their turn beside any number of online devices.
    """

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
        self._round = 0
        self._heap: list[tuple[int, CommandPosition, str]] = []  # round, head and name
        self._waiting: dict[str, tuple[tuple[int, CommandPosition, str], Device]] = {}  # other entries were removed

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, device: Device, head: CommandPosition) -> None:
        entry = (self._round + 1, head, device.name)
        self._waiting[device.name] = entry, device
        heapq.heappush(self._heap, entry)

    def discard(self, device: Device) -> None:
        self._waiting.pop(device.name, None)

    def next(self) -> Device:
        while True:
            entry = heapq.heappop(self._heap)
            found, device = self._waiting.get(entry[2], (None, None))
            if found is entry and device is not None:
                self._round = entry[0]
                del self._waiting[device.name]
                return device


_AHEAD: Final = 16  # parked commands of one device that are read and not settled
_AT_ONCE: Final = 8  # so many of them are read together if the rate allows that: they lie close together
_FAILING: Final = 8  # so many windows may wait for online devices that do not answer, beside the window itself
_SECOND: Final = 1_000_000
_LOST: Final = "its message is not in Pulsar any more: it was trimmed while it was parked"


class Budget:
    """How many parked commands may be read: a rate, so that live devices do not notice the replay."""

    def __init__(self, rate: int, window: int) -> None:
        self._rate = rate
        self.at_once = max(1, min(_AT_ONCE, rate // 8, window // 4))
        self._most = max(self.at_once, rate / 20)
        self.tokens = 0.0
        self._at_us = 0

    def refill(self, now_us: int) -> None:
        """Add what the rate gives since the last call."""
        passed = max(0, now_us - self._at_us)
        self.tokens = min(self._most, self.tokens + passed * self._rate / _SECOND)
        self._at_us = now_us

    def available_us(self, count: int) -> int:
        """Return when ``count`` commands may be read, in µs since the epoch."""
        missing = max(0.0, count - self.tokens)
        return self._at_us + int(missing * _SECOND / self._rate) + 1


@dataclass(eq=False)
class Replay:
    """The parked commands that are being read, or were read and are not settled."""

    _limits: Limits
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _links: Links
    _segments: SegmentLog
    _settlement: Settlement
    _late: LateAnswers
    _epochs: int = 0
    _failing: set[CommandPosition] = field(default_factory=set)  # pulled commands that online devices do not answer
    coming: int = 0  # parked commands that are being read
    scheduler: ReplayScheduler = field(default_factory=ReplayScheduler)
    budget: Budget = field(init=False)
    unmarked: set[str] = field(default_factory=set)
    """Devices with parked commands that were sent and that no stored segment marks as such."""

    def __post_init__(self) -> None:
        self.budget = Budget(self._limits.parked.replay_rate, self._limits.parked.replay_window)

    # --- modes ---

    def new_epoch(self) -> int:
        """Return a number that no pull or search before had."""
        self._epochs += 1
        return self._epochs

    def wake(
        self, device: Device, event: DeviceEvent = DeviceEvent.WAKE, *, probing: bool = False, sweeping: bool = False
    ) -> None:
        """Begin the replay, unless a resume request is under way."""
        replay = device.replay
        if replay.resuming:
            return
        device.on(event)
        replay.epoch = self.new_epoch()
        replay.probing, replay.sweeping = probing, sweeping
        if len(device.parked):
            if not replay.tried:
                self.mark_online(device, True)
            self.want(device)
        else:
            self._catch_up(device)

    def mark_online(self, device: Device, online: bool) -> None:
        """Store with the cursor whether the next owner may continue the replay without a sign of life."""
        if device.cursor.online is not online:
            device.cursor.online = online
            self._devices.mark_dirty(device)

    def _catch_up(self, device: Device) -> None:
        device.on(DeviceEvent.CATCH_UP)
        device.replay.probing = device.replay.sweeping = False
        self.unmarked.discard(device.name)

    def restart(self, device: Device) -> None:
        """Ignore the pulls that are under way."""
        device.replay.epoch = self.new_epoch()
        device.replay.coming = 0

    def stop(self, device: Device) -> None:
        """The device is parked: nothing is read for it."""
        self.restart(device)
        self.scheduler.discard(device)
        self._links[device.link].waiting.pop(device.name, None)
        device.replay.probing = device.replay.sweeping = device.replay.waiting = False

    def goes_online(self, device: Device) -> None:
        """A device that is replayed gave a sign of life: it waits with the online ones from now on."""
        if device.replay.tried:
            device.replay.probing = device.replay.sweeping = device.replay.waiting = False
        self.want(device)

    # --- pulls ---

    def want(self, device: Device) -> None:
        """Have more of a device's parked commands read: a few together, not one whenever one is settled."""
        if device.mode is not Mode.REPLAYING or device.replay.waiting:
            return
        pulled = device.pulled
        room = pulled + self.budget.at_once <= _AHEAD if not device.failures else not pulled
        if pulled < len(device.parked) and room:
            device.replay.waiting = True
            self.scheduler.add(device, device.parked.position(pulled))

    @property
    def _room(self) -> int:
        # Commands of devices that do not answer wait for long, one of each device: others need the window.
        window = self._limits.parked.replay_window
        failing = min(len(self._failing), _FAILING * window)
        return window - self.coming - (len(self._commands.pulled) - failing)

    @property
    def may_pull(self) -> bool:
        """Whether links and window allow to read parked commands now."""
        return self._links.sends and self._room >= self.budget.at_once

    def _accepting(self) -> dict[str, int]:
        """Return for each broker how many more parked commands its devices may have in memory, none for one that is away.

        Each has a share of the window, so that the devices of a broker that does not confirm leave room to the others.
        """
        links, waiting = self._links, self._commands.pulled.items()
        held = Counter(self._devices.awake[one.command.device].link for at, one in waiting if at not in self._failing)
        share = max(self.budget.at_once, self._limits.parked.replay_window // len(links.names))
        return {name: share - held[name] for name in links.names if links[name].sends}

    def _resume_waiting(self, accepting: dict[str, int]) -> None:
        """Have devices wait for their turn again whose broker accepts more."""
        for link, room in accepting.items():
            waiting = self._links[link].waiting
            while waiting and room >= self.budget.at_once:
                room -= self.budget.at_once
                self.want(waiting.pop(next(iter(waiting))))

    def pull(self) -> bool:
        """Read for devices that are online, and for a few that are probed. Returns whether anything was read."""
        budget, before = self.budget, self.budget.tokens
        accepting: dict[str, int] = {}
        if self._links.several and budget.tokens >= budget.at_once:
            accepting = self._accepting()
            self._resume_waiting(accepting)
        while self.scheduler and budget.tokens >= budget.at_once and self.may_pull:
            device = self.scheduler.next()
            replay, parked = device.replay, device.parked
            replay.waiting = False
            if self._links.several and accepting.get(device.link, 0) < budget.at_once:
                self._links[device.link].waiting[device.name] = device
                continue
            ahead = 1 if replay.tried or device.failures else _AHEAD
            pulled = device.pulled
            count = min(ahead - pulled, len(parked) - pulled, self._room, int(budget.tokens))
            if device.mode is not Mode.REPLAYING or count < 1:
                continue
            wanted = tuple(parked.position(pulled + n) for n in range(count))
            copies = tuple(parked[pulled + n].copy for n in range(count))
            replay.coming += count
            self.coming += count
            if accepting:
                accepting[device.link] -= count
            # A probe costs as much as a turn of an online device: no device waits for it.
            budget.tokens -= PROBE_EVERY * count if replay.probing else count
            self._outbox.add(Pull(device.name, replay.epoch, wanted, copies, replay.tried))
        return budget.tokens < before

    def wants(self, name: str, epoch: int) -> bool:
        """Return whether a ``Pull`` of this epoch still counts."""
        device = self._devices.awake.get(name)
        return device is not None and device.replay.epoch == epoch

    def pulled(
        self, name: str, epoch: int, position: CommandPosition, command: Command | None, now_us: int
    ) -> Device | None:
        """A parked command was read, None when Pulsar has it no more. Returns the device if its sweep has ended."""
        self.coming -= 1
        device = self._devices.awake.get(name)
        if device is None or device.replay.epoch != epoch:
            self._outbox.add(Forget(position))
            return None
        device.replay.coming -= 1
        index = device.parked.find(position)
        assert index is not None
        one = device.parked[index]
        known = command or Command("", name, "", b"")
        tracked = TrackedCommand(position, known, pulled=True, maybe_seen=one.maybe_seen, resend=one.resend)
        self._commands.pulled[position] = tracked
        device.queue.append(tracked)
        if command is None and 0 < one.expires_at_ms * 1000 <= now_us:
            self._settlement.settle(device, tracked, "expired", "")  # before: its acknowledgement was lost
        elif command is None:
            self._settlement.settle(device, tracked, "rejected", _LOST)
        elif not one.resend and self._late.settle(tracked):  # answered in its time, whatever the time is now
            device.ids.add(command.command_id)
            self._settlement.confirmed(device, tracked)
        elif command.expired(now_us):
            self._settlement.settle(device, tracked, "expired", "")
        elif device.replay.sweeping:
            return device
        elif (device.cursor.knows(command.command_id) and not one.resend) or command.command_id in device.ids:
            self._settlement.settle(device, tracked, "duplicate", DUPLICATE)
        else:
            device.ids.add(command.command_id)
            self._devices.look_at(device)
        return None

    def put_back(self, device: Device, tracked: TrackedCommand) -> None:
        """Have a pulled command wait in Pulsar again."""
        self._drop(tracked.position)
        # A dead letter that is being stored does not settle it any more.
        device.given_up.discard(tracked.position)
        tracked.on(CommandEvent.PARK)
        if tracked.attempts:
            self._late.attempted(tracked)
            device.parked.mark_seen(tracked.position)
            self.unmarked.add(device.name)

    def pull_less(self, device: Device, head: TrackedCommand) -> None:
        """An online device fails: what was read behind its head takes room from others, and waits in Pulsar again."""
        self.restart(device)
        while (tracked := device.queue[-1]) is not head and tracked.pulled and tracked.state is CommandState.QUEUED:
            device.queue.pop()
            device.ids.discard(tracked.command.command_id)
            self.put_back(device, tracked)
        if head.pulled:
            self._failing.add(head.position)

    def passed(self, device: Device, stored: list[TrackedCommand]) -> None:
        """The device's cursor is stored beyond these commands."""
        done = [tracked for tracked in stored if tracked.pulled or tracked.listed]
        for tracked in done:
            self._late.forget(tracked.position)
            if tracked.pulled:
                self._drop(tracked.position)
        if done:
            for key in self._segments.finish(device, done[-1].position):
                device.segment_write.keys.pop(key, None)
                self._outbox.remove_segment(key)
        if device.mode is Mode.REPLAYING and not len(device.parked):
            self._catch_up(device)
        self.want(device)
        self._devices.sleep(device)

    def _drop(self, position: CommandPosition) -> None:
        del self._commands.pulled[position]
        self._failing.discard(position)
        self._outbox.add(Forget(position))

    def next_time_us(self, *, probes: bool) -> int | None:
        """Return when the next pull is due, None without one. ``probes``: devices wait to be probed."""
        waiting = any(flights.waiting for flights in self._links) and any(
            self._links[name].waiting and room >= self.budget.at_once for name, room in self._accepting().items()
        )
        if (self.scheduler or probes or waiting) and self.may_pull:
            return self.budget.available_us(self.budget.at_once)
        return None

"""The decisions of one partition: what ``live`` decides, and what is done for devices that are away. Pure.

A device is LIVE, PARKED or REPLAYING (H27). Only LIVE ones have what arrives pushed; for all others it is parked behind
what is parked already, so that nothing overtakes.

Commit order of parking (H25); the process may die between any two steps
------------------------------------------------------------------------
1. The cursor, where commands that the broker had confirmed are pending again (H26).
2. ``StoreSegment`` → ``segment_stored``: the ids, gathered for ``coalesce_us``. Died before: the commands come again.
3. ``Ack``. Died before: they come again, are found among the parked, and are acknowledged then.

Commit order of a replayed command: ``Pull`` → ``Push`` → confirmed → ``StoreReceipt`` → ``StoreCursor`` → the segment is
removed once all of it is done. The receipt comes before the cursor here, since the message is acknowledged already and
does not come again to make up for it. Died in between: pushed again, marked ``repeat=1``.

What wakes a device: a sign of life; else a probe, which is one command of its own, where the answer to it can tell
(``confirm: device``, or a broker that says that nobody is subscribed).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Final

from bridge.contract.commands import Command, CommandPosition
from tests.support.push_oracle.actions import Ack, Action, Forget, StoreSegment
from tests.support.push_oracle.late import Given
from tests.support.push_oracle.live import NO_SUBSCRIBERS
from tests.support.push_oracle.moving import MovingCore
from tests.support.push_oracle.parked import Parked, ParkedId, segment_key
from tests.support.push_oracle.queues import Device, Item, Mode, State
from tests.support.push_oracle.relief import Pressure, pressing
from tests.support.push_oracle.replay import DUE

__all__ = ["NO_SUBSCRIBERS", "PartitionCore"]

_GONE: Final = "its message is not in Pulsar any more: it was trimmed while it was parked"
_FULL: Final = "too many commands wait in Pulsar for a device that is away"
_KEPT: Final = (State.NOTED, State.CONFIRMED, State.DYING, State.DEAD, State.SETTLED)


_WRITTEN_AT_ONCE: Final = 1000


class PartitionCore(MovingCore):
    """State of one partition. Call an event, then ``take`` the actions; all on one thread."""

    def take(self, now_us: int) -> list[Action]:
        """Return the actions of the events so far."""
        self._refill(now_us)
        self._try_due(now_us)
        self._move_some()
        self._pull()
        actions = super().take(now_us)
        if self._writes_ids and (now_us >= self._flush_at_us or self._draining):
            self._flush(now_us)
            actions += self._actions
            self._actions = []
        return actions

    # --- events ---

    def alive(self, name: str, at_us: int) -> None:
        """The device gave a sign of life."""
        if not self.presence.alive(name, at_us):
            return
        asleep = self._asleep.get(name)
        if asleep is not None and at_us < asleep[0].since_us:
            return
        device = self._known(name)
        if device is None:
            if name in self._cursors:
                self._cursors[name].seen(at_us)
            return
        device.cursor.seen(at_us)
        if device.mode is Mode.PARKED and at_us < device.parked.since_us:
            return
        device.probe_wait_us = 0
        if device.mode is Mode.PARKED:
            self._wake(device)
        elif device.mode is Mode.REPLAYING:
            if device.probing or device.sweeping:  # it waits with those that are back from now on
                device.probing = device.sweeping = device.wanting = False
            self._want(device)
        if device.failures:
            device.retry_at_us = 0
            self._look_at(device)

    def gone(self, name: str, at_us: int, now_us: int) -> None:
        """The device gave a sign of absence, such as its will."""
        if not self.presence.gone(name, at_us):
            return
        device = self._devices.get(name)
        if device is None and name in self._cursors and self._cursors[name].sure:
            device = self._device(name)  # a former owner had it confirmed
        if device is None or device.mode is Mode.PARKED:
            return
        # One that is back may wait for its turn still, with nothing of it in memory.
        if device.mode is Mode.REPLAYING or device.queue or device.cursor.sure:
            self._park(device, now_us)

    def answered(self, position: CommandPosition, payload: bytes, now_us: int, *, failed: bool) -> bool:
        """The device answered, perhaps when the command waits in Pulsar again: that wakes it, and settles the command
        where it is still to be pushed.
        """
        if super().answered(position, payload, now_us, failed=failed):
            return True
        name = self._late.device_of(position)
        device = None if name is None else self._known(name)
        if device is None or position not in device.parked:
            return False
        if not failed:
            self._late.give(position, Given(payload[: self._limits.answer_bytes], len(payload), now_us))
            item = self._pulled.get(position)
            waits = item is not None and item.state is State.QUEUED and not item.again
            if item is not None and waits and self._late.settle(item):
                self._succeeded(device, item)
        self.alive(device.name, now_us)
        return True

    def device_of(self, position: CommandPosition) -> str | None:
        """Return whose command stands at ``position``, None for one that an answer cannot be for."""
        item = self._item(position)
        return self._late.device_of(position) if item is None else item.command.device

    def wants(self, name: str, turn: int) -> bool:
        """Return whether a ``Pull`` of this round still counts: its device was not parked anew since."""
        device = self._devices.get(name)
        return device is not None and device.round == turn

    def pulled(self, name: str, turn: int, position: CommandPosition, command: Command | None, now_us: int) -> None:
        """A parked command was read again; None when Pulsar has it no more."""
        self._coming -= 1
        device = self._devices.get(name)
        if device is None or device.round != turn:
            self._actions.append(Forget(position))
            return
        device.coming -= 1
        index = device.parked.find(position)
        assert index is not None
        one = device.parked[index]
        item = Item(
            position,
            command or Command("", name, "", b""),
            pulled=True,
            maybe_seen=one.maybe_seen,
            again=one.unsure,
        )
        self._pulled[position] = item
        device.queue.append(item)
        if command is None and 0 < one.expires_at_ms * 1000 <= now_us:
            self._end_pulled(device, item, "expired", "")  # it was before: its acknowledgement was lost
        elif command is None:
            self._end_pulled(device, item, "rejected", _GONE)
        elif not item.again and self._late.settle(
            item
        ):  # else it is wanted once more although it was answered; done in time, whatever the time is now
            device.ids.add(command.command_id)
            self._succeeded(device, item)
        elif command.expired(now_us):
            self._end_pulled(device, item, "expired", "")
        elif device.sweeping:
            self._end_sweep(device, now_us)
        elif (device.cursor.knows(command.command_id) and not one.unsure) or command.command_id in device.ids:
            self._end_pulled(device, item, "duplicate", "this command id came before")
        else:
            device.ids.add(command.command_id)
            self._look_at(device)

    def receipt_stored(self, position: CommandPosition) -> None:
        """Pulsar has the receipt row of the message at ``position``."""
        item = self._written_item(position)
        super().receipt_stored(position)
        device = None if item is None or item.given_up is None else self._devices.get(item.command.device)
        if device is not None:
            self._sleep(device)

    def segment_stored(self, parked: Sequence[CommandPosition]) -> None:
        """Pulsar has a segment, and with it the ids of ``parked``."""
        self._busy -= 1
        self._acknowledge(parked)

    def tick(self, now_us: int) -> None:
        """The time of ``next_time_us`` came."""
        super().tick(now_us)
        while self._timers and self._timers[0][0] <= now_us:
            at, name = heapq.heappop(self._timers)
            asleep = self._asleep.get(name)
            device = self._devices.get(name)
            if asleep is not None:
                self._timer(name, asleep[0], asleep[2] == at, now_us)
            elif device is not None and device.mode is Mode.PARKED:
                self._timer(name, device.parked, device.probe_at_us == at, now_us)

    def _timer(self, name: str, parked: Parked, probe: bool, now_us: int) -> None:
        expired = len(parked) > 0 and 0 < parked[0].expires_at_ms * 1000 <= now_us
        if not expired and not probe:
            return
        if probe and self._can_probe(name):
            self._line_up(name)
        elif expired:
            device = self._known(name)
            assert device is not None
            self._wake(device, sweeping=True)
        else:
            self._look_later(name, now_us)

    # --- going away ---

    def _arrived_away(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> bool:
        if device.mode is Mode.LIVE:
            if not self._away(device, now_us):
                return False
            self._park(device, now_us)
        if position <= device.cursor.position:
            return False  # parked once more or not, it was settled: what lacks is a receipt at most
        if position in device.parked:
            self._arrived_parked(device, position, command, now_us)
            return True
        if position in device.marks:
            self._actions.append(Ack(position))
            return True
        item = self._hold(Item(position, command))
        if device.cursor.knows(command.command_id):
            self._receipt(item, "duplicate", "this command id came before")
        elif command.expired(now_us) or (len(device.parked) and position < device.parked.position(-1)):
            self._settled_before(item, now_us)
        elif self._parked_full(device):
            self._give_up(device, item, "overflowed", _FULL)
        else:
            self._park_item(device, item, now_us)
            self._want(device)
        return True

    def _arrived_parked(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> None:
        """Its acknowledgement was lost; or the former owner died before it, and it is pending again (H26)."""
        key = device.parked.key_of(position)
        if not self._busy and device.name not in self._dirty and key not in device.segments:
            self._actions.append(Ack(position))
            return
        # Its id may be on its way to Pulsar still, or wait for the cursor: acknowledged with the next write of it.
        self._hold(Item(position, command, State.PARKED))
        device.storing_ids.append(position)
        self._unwritten_of(device, key, now_us)

    def _away(self, device: Device, now_us: int) -> bool:
        if self.presence.absent(device.name):
            return True
        seen, silence = self.presence.seen_us(device.name), self._limits.silence_us
        return bool(seen and silence and now_us - seen >= silence)

    def _parks_for(self, device: Device, item: Item, now_us: int, *, absent: bool) -> bool:
        lives = self.presence.seen_us(device.name) >= item.pushed_at_us
        if not absent and (lives or not (device.probing or device.failures >= self._limits.park_after)):
            return False
        self._park(device, now_us)
        return True

    def _failed(self, device: Device, item: Item, why: str, now_us: int, *, absent: bool = False) -> None:
        """As before; where the partition is full nothing else arrives that would make room."""
        super()._failed(device, item, why, now_us, absent=absent)
        if device.mode is Mode.REPLAYING and item.state is State.QUEUED:
            self._pull_less(device, item)
        if self._full:
            self.relieve(now_us)

    def _pull_less(self, device: Device, head: Item) -> None:
        """A device that lives does not do what it is told: what was pulled behind that takes room from the others."""
        self._renew_round(device)
        while (item := device.queue[-1]) is not head and item.pulled and item.state is State.QUEUED:
            device.queue.pop()
            device.ids.discard(item.command.command_id)
            self._put_back(device, item)
        if head.pulled:
            self._failing.add(head.position)

    def _renew_round(self, device: Device) -> None:
        """What is being pulled for it counts no more when it comes."""
        self._rounds += 1
        device.round = self._rounds
        device.coming = 0

    def _park(self, device: Device, now_us: int) -> None:
        device.parked.since_us = now_us
        self._set_aside(device, now_us)
        self._plan_probe(device, now_us)
        self._watch_expiry(device.name, device.parked)
        self._sleep(device)

    def _end_sweep(self, device: Device, now_us: int) -> None:
        """What had expired is done with: the device is as absent as before, and due to be tried when it was."""
        probe_at_us = device.probe_at_us
        self._set_aside(device, now_us)
        if probe_at_us == DUE:
            self._line_up(device.name)
        else:
            self._look_again(probe_at_us, device.name)
        self._watch_expiry(device.name, device.parked)
        self._sleep(device)

    def _set_aside(self, device: Device, now_us: int) -> None:
        device.mode = Mode.PARKED
        self._is_back(device, False)
        self._renew_round(device)
        self._pulling.discard(device)
        device.probing = device.sweeping = device.wanting = False
        device.failures = device.retry_at_us = 0
        kept: deque[Item] = deque()
        while device.queue and device.queue[0].state in _KEPT:
            kept.append(device.queue.popleft())
        left, device.queue = device.queue, kept
        device.ids = {item.command.command_id for item in kept}
        if not kept and not len(device.parked):
            self._unsure_again(device, now_us)
        first: list[ParkedId] = []
        for item in left:
            self._await_no_more(item)
            if item.pulled:
                self._put_back(device, item)
            elif not item.attempts and self._parked_full(device, len(first)):
                if item.state is State.QUEUED:
                    self._give_up(device, item, "overflowed", _FULL)
            elif item.state is State.DEAD:
                device.marks.discard(item.position)
                if item.perhaps_had:
                    self._let_go(item.position)
            elif item.state not in (State.DYING, State.NOTED, State.SETTLED):
                first += self._park_item(device, item, now_us, before=len(device.parked) > 0)
        if first:
            self._segments += 1
            key = segment_key(device.name, self._owner, self._segments)
            device.parked.prepend(first, key)
            self._parked_count += len(first)
            self._unwritten_of(device, key, now_us)

    def _put_back(self, device: Device, item: Item) -> None:
        del self._pulled[item.position]
        self._failing.discard(item.position)
        # What is on its way to the dead letters is no longer awaited from there.
        device.marks.discard(item.position)
        self._actions.append(Forget(item.position))
        item.state = State.PARKED
        if item.attempts:
            self._tried_in_vain(item)
            device.parked.mark_seen(item.position)
            self._tainted.add(device.name)

    def _tried_in_vain(self, item: Item) -> None:
        if item.attempts and self._limits.answers:
            self._late.tried(item)
            if item.state is State.CONFIRMED:  # behind one that is not: the cursor has not passed it
                self._keep_answer(item)

    def _park_item(self, device: Device, item: Item, now_us: int, *, before: bool = False) -> list[ParkedId]:
        """Park a command that is held; with ``before`` it is returned, to be put before those that are parked."""
        self._tried_in_vain(item)
        if item.listed:  # it was in flight when the rest was spilled
            item.state = State.PARKED
            device.storing_ids.append(item.position)
            self._unwritten_of(device, device.parked.key_of(item.position), now_us)
            return []
        seen = item.maybe_seen or item.attempts > 0
        if not item.attempts and device.suspected and self._horizon is not None:
            seen = seen or item.position <= self._horizon
        one = ParkedId(item.position, item.command.expires_at_ms, seen)
        item.state = State.PARKED
        device.storing_ids.append(item.position)
        if before and device.parked.position(0) > item.position:
            return [one]
        self._append(device, one, now_us)
        return []

    def _unsure_again(self, device: Device, now_us: int) -> None:
        """What the broker confirmed since the last sign of life did perhaps not arrive (H26)."""
        since = max(self.presence.seen_us(device.name), now_us - self._limits.unsure_us)
        again = sorted(one for one, at_us in device.cursor.sure if at_us > since)
        device.cursor.sure.clear()
        if again:
            device.cursor.go_back(again)
            self._dirty[device.name] = device
            for one in again:
                self._append(device, one, now_us)

    def _flush(self, now_us: int) -> None:
        """Store the parked ids; the cursor comes first where it has gone back."""
        while self._unstored_again and len(self._actions) < _WRITTEN_AT_ONCE:
            self.store_once_more(self._unstored_again.popleft())
        waiting, self._unwritten = self._unwritten, {}
        for name, device in waiting.items():
            full = len(self._actions) >= _WRITTEN_AT_ONCE  # the queue of the producer is bounded
            if full or name in self._dirty or device.writing or self._gives_up_earlier(device):
                self._unwritten[name] = device
                continue
            keys, device.segments = list(device.segments), {}
            ids, device.storing_ids = tuple(device.storing_ids), []
            payloads = [(key, device.parked.payload(key)) for key in keys]
            found = [(key, payload) for key, payload in payloads if payload is not None]
            for at, (key, payload) in enumerate(found, 1):
                self._busy += 1
                self._actions.append(StoreSegment(key, payload, ids if at == len(found) else ()))
            if not found:
                self._acknowledge(ids)  # replayed and settled meanwhile
        self._flush_at_us = now_us + self._limits.coalesce_us

    def _gives_up_earlier(self, device: Device) -> bool:
        """Whether something before the last parked id is on its way to the dead letters. Once that id is stored, what
        comes again from before it counts as settled.
        """
        if not device.marks or not len(device.parked):
            return False
        last = device.parked.position(-1)
        return any(position < last for position in device.marks)

    # --- too much ---

    def relieve(self, now_us: int) -> None:
        """Full (H30): what takes most of the room waits in Pulsar instead, first of devices that fail, which are parked;
        of one that is only slow all but what is under way is parked and comes back at once, a few at a time. One that
        has not answered the only one that it has is parked as well.
        """
        while (pressure := pressing(self._devices.values(), self._limits)) is not None:
            if not self._make_room(pressure, now_us):
                return

    def _make_room(self, pressure: Pressure, now_us: int) -> bool:
        """Return whether there will be room."""
        weigh, excess = pressure
        there = [d for d in self._devices.values() if d.mode is not Mode.PARKED and weigh(d)]
        for device in sorted(there, key=lambda d: (d.failures > 0, weigh(d)), reverse=True):
            before = weigh(device)
            spilled = not device.failures and device.mode is Mode.LIVE and self._spill(device, now_us)
            if device.failures or (not spilled and device.queue[0].state is State.AWAITED):
                self._park(device, now_us)
            excess -= before - weigh(device)
            if excess <= 0:
                return True
        return False

    def _spill(self, device: Device, now_us: int) -> bool:
        tail: list[Item] = []
        while device.queue and device.queue[-1].state is State.QUEUED:
            tail.append(device.queue.pop())
        if len(tail) < 2:
            device.queue.extend(reversed(tail))
            return False
        for item in device.queue:  # in flight, and listed all the same, so that the list begins with the oldest
            self._append(device, ParkedId(item.position, item.command.expires_at_ms, True), now_us)
            item.listed = True
        for item in reversed(tail):
            device.ids.discard(item.command.command_id)
            self._park_item(device, item, now_us)
        self._wake(device)
        return True

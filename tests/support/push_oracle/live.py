"""The decisions for devices that are there: queues, windows, repetitions, expiry, cursors. Events in, actions out.

``bridge.push.core`` derives from this what is done for devices that are away; the methods that it replaces do nothing
here, or what was done before anything could be parked.

No socket, thread or clock; the shell tells the time in µs since the epoch.

Commit order of one delivered command (H25); the process may die between any two steps
--------------------------------------------------------------------------------------
1. ``Push``: at most one command of a device is pushed beyond its stored cursor.
2. ``confirmed`` with success: PUBACK. With ``Limits.answers`` then ``answered``: the device's own answer, which may
   come before the PUBACK. Died before the cursor was stored: the command comes again, ``repeat=1``.
3. ``StoreCursor`` → ``cursor_stored``: position and id are known to every later owner. From here on no push again.
4. ``StoreReceipt`` → ``receipt_stored``. Died before: the command comes again, is at or below the cursor, and gets
   its receipt then.
5. ``Ack``. Died before: comes again, receipt written again, acknowledged.

Commands that are not pushed (expired, repeated, not valid) take steps 4 and 5 alone. What is given up takes
``DeadLetter``, 4, 3 and 5, in this order: no cursor says of it that it is settled before it is, and it is not acknowledged
before its id is known.

What holds for any order of events: a cursor never passes a command that is neither confirmed nor settled otherwise;
a device gets its commands in the order of the log; an id in a stored cursor is not pushed again.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Final

from bridge.contract.commands import Command, CommandPosition
from tests.support.push_oracle.actions import Ack, Action, DeadLetter, Push, StoreCursor
from tests.support.push_oracle.queues import PASSED, Device, Flight, Item, Mode, State
from tests.support.push_oracle.state import PartitionState

__all__ = ["NO_SUBSCRIBERS", "LiveCore"]

NO_SUBSCRIBERS: Final = 0x10
"""PUBACK reason "No matching subscribers" (MQTT 5, 3.4.2.1): accepted, and thrown away unless retained."""

_FAILED_FROM: Final = 0x80
_SILENT_LOOK_US: Final = 1_000_000
_GIVEN_UP: Final = "recovered: given up before the push worker was replaced; its first receipt tells why"
_OVERFLOW: Final = "an earlier command of the device overflowed"


class LiveCore(PartitionState):
    """State of one partition. Call an event, then ``take`` the actions; all on one thread."""

    def next_time_us(self) -> int | None:
        """Return when ``tick`` is due, in µs since the epoch, None when nothing waits for the clock."""
        return min((heap[0][0] for heap in (self._retries, self._deadlines) if heap), default=None)

    def take(self, now_us: int) -> list[Action]:
        """Return the actions of the events so far. At most one cursor write per device is under way."""
        self._pump(now_us)
        for name in list(self._dirty):
            device = self._dirty[name]
            if not device.writing:
                del self._dirty[name]
                device.writing = True
                device.storing, device.unstored = device.unstored, []
                self._busy += 1
                self._actions.append(StoreCursor(name, device.cursor.records(name)))
        actions, self._actions = self._actions, []
        return actions

    # --- events ---

    def arrived(self, position: CommandPosition, command: Command, now_us: int) -> None:
        """A command came from Pulsar; perhaps again, after a reconnect or from a former owner."""
        self._highest = max(self._highest, position)
        if position in self._held:
            return
        device = self._device(command.device)
        if self._arrived_away(device, position, command, now_us):
            return
        if position <= device.cursor.position:
            self._arrived_settled(device, position, command, now_us)
            return
        if position in device.marks:
            self._actions.append(Ack(position))
            return
        item = self._hold(Item(position, command))
        if device.cursor.knows(command.command_id) or command.command_id in device.ids:
            self._receipt(item, "duplicate", "this command id came before")
            return
        if device.queue and position < device.queue[-1].position:
            self._settled_before(item, now_us)
            return
        device.queue.append(item)
        device.ids.add(command.command_id)
        if device.failures and len(device.queue) > self._limits.device_pending:
            self._park(device, now_us)
        elif self._full:
            self.relieve(now_us)
        self._look_at(device)

    def _settled_before(self, item: Item, now_us: int) -> None:
        """It comes after later ones of its device, and is not held: only its acknowledgement was lost."""
        if item.command.expired(now_us):
            self._receipt(item, "expired", "")
        else:
            self._receipt(item, "overflowed", _OVERFLOW)

    def _arrived_settled(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> None:
        if position > device.loaded:
            self._actions.append(Ack(position))  # settled by ourselves; only the ack did not reach Pulsar
            return
        item = self._hold(Item(position, command, State.SETTLED))
        if device.cursor.delivered(command.command_id):
            state = "answered" if self._limits.answers else "delivered"
            self._receipt(item, state, "recovered: confirmed before the push worker was replaced")
        elif device.cursor.knows(command.command_id):
            self._receipt(item, "duplicate", _GIVEN_UP)  # its own receipt was stored before the cursor
        elif command.expired(now_us):
            self._receipt(item, "expired", "")
        else:
            self._receipt(item, "duplicate", "at or below the device's cursor")

    def arrived_bad(
        self,
        position: CommandPosition,
        reason: str,
        *,
        command_id: str,
        device: str,
        mqtt_topic: str = "",
        size: int = 0,
    ) -> None:
        """A message of ``size`` bytes came that is no command: dead letter, and a receipt when its id is known."""
        if position in self._held:
            return
        self._hold(Item(position, Command(command_id, device, mqtt_topic, b""), State.DYING), size)
        self._busy += 1
        self._actions.append(DeadLetter(position, device, reason))

    def confirmed(self, number: int, reason: int, now_us: int) -> None:
        """The broker answered push ``number`` with a PUBACK reason code (0 before MQTT 5)."""
        flight = self._landed(number)
        if flight is None:
            return
        device, item = flight.device, flight.item
        self._suspects.answered(number, item.position)
        if item.state is not State.IN_FLIGHT:
            return  # the device's answer was faster
        if reason >= _FAILED_FROM or (reason == NO_SUBSCRIBERS and not item.command.retain):
            why = f"the MQTT broker refused it with reason 0x{reason:02X}"
            self._failed(device, item, why, now_us, absent=reason == NO_SUBSCRIBERS)
            return
        item.confirmed_at_us = now_us
        if self._limits.answers:
            item.state = State.AWAITED
            self._awaited += 1
            due = now_us + self._limits.answer_timeout_us
            heapq.heappush(self._deadlines, (due, item.position, item.attempts))
        else:
            self._succeeded(device, item)

    def lost(self, number: int, reason: str) -> None:
        """Push ``number`` was not made: Pulsar does not have the payload of that index entry any more."""
        flight = self._landed(number)
        if flight is not None and flight.item.state is State.IN_FLIGHT:
            self._settle(flight.device, flight.item, "rejected", reason)
            self._look_at(flight.device)

    def unfit(self, number: int, reason: str) -> None:
        """Push ``number`` was not made: the MQTT broker takes no such packet."""
        flight = self._landed(number)
        if flight is not None and flight.item.state is State.IN_FLIGHT:
            self._give_up(flight.device, flight.item, "rejected", reason)

    def goes(self, number: int, now_us: int) -> bool:
        """Push ``number``, which waited, may be made. Returns whether it is wanted still: it may be late or parked."""
        flight = self._flights[number]
        device, item = flight.device, flight.item
        if item.state is State.IN_FLIGHT and not item.command.expired(now_us):
            self._counts(flight)
            return True
        self._landed(number)
        if item.state is State.IN_FLIGHT:
            item.attempts -= 1  # this one was none
            self._settle(device, item, "expired", "")
            self._look_at(device)
        return False

    def answered(self, position: CommandPosition, payload: bytes, now_us: int, *, failed: bool) -> bool:
        """The device answered the command at ``position``, perhaps late, perhaps once more, or never asked.

        ``payload`` goes into the receipt, its head if it is long. Returns whether the answer was to a command that was pushed and is
        not confirmed.
        """
        item = self._item(position)
        if item is None or not item.attempts:
            return False
        if item.state not in (State.QUEUED, State.IN_FLIGHT, State.AWAITED):
            return False
        device = self._devices[item.command.device]
        self._gave_sign(device, now_us)
        if failed and item.state is State.QUEUED:
            return False  # its time is over, and it is about to be sent again
        self._await_no_more(item)
        if failed:
            self._failed(device, item, "the device says that it failed", now_us)
            return True
        item.answer = payload[: self._limits.answer_bytes]
        item.answer_length = len(payload)
        item.answered_at_us = now_us
        self._succeeded(device, item)
        return True

    def _await_no_more(self, item: Item) -> None:
        if item.state is State.AWAITED:
            self._awaited -= 1
            item.state = State.QUEUED  # counted once, whatever follows

    def _succeeded(self, device: Device, item: Item) -> None:
        item.state = State.CONFIRMED
        device.failures = 0
        device.retry_at_us = 0
        self._confirmed_of(device, item)
        self._settle_head(device)
        self._look_at(device)

    def _failed(self, device: Device, item: Item, why: str, now_us: int, *, absent: bool = False) -> None:
        """It is sent again after a while, or, when it was tried often enough, given up."""
        device.failures += 1
        if self._parks_for(device, item, now_us, absent=absent):
            return
        if self._limits.attempts and item.attempts >= self._limits.attempts:
            self._give_up(device, item, "rejected", f"given up after {item.attempts} attempts: {why}")
            return
        item.state = State.QUEUED
        wait = min(self._limits.retry_max_us, self._limits.retry_min_us << min(device.failures - 1, 20))
        self._wait(device, now_us + wait)

    def cursor_stored(self, device_name: str) -> None:
        """Pulsar has the device's cursor."""
        device = self._devices[device_name]
        self._busy -= 1
        device.writing = False
        stored, device.storing = device.storing, []
        for item in stored:
            if item.pulled or item.settled:
                continue  # it has its receipt, and its acknowledgement
            if item.given_up is None:
                self._receipt(item, "answered" if item.answered_at_us else "delivered", "")
            elif item.perhaps_had:
                self._let_go(item.position)
        self._passed(device, stored)
        self._look_at(device)

    def receipt_stored(self, position: CommandPosition) -> None:
        """Pulsar has the receipt row of the message at ``position``."""
        self._busy -= 1
        item = self._written_item(position)
        if item is None:
            return
        queued = item.after is not None and self._devices[item.command.device].queues(item)
        self._noted(item)
        if not item.pulled and not (queued and item.perhaps_had):  # else its id is to be known first
            self._let_go(position)

    def dead_letter_stored(self, position: CommandPosition) -> None:
        """Pulsar has the dead letter of the message at ``position``."""
        self._busy -= 1
        item = self._written_item(position)
        if item is None:
            return
        if item.given_up is not None:
            self._note(item, State.DEAD, *item.given_up)
        elif item.command.command_id:
            self._receipt(item, "rejected", "not a command of this contract; see the dead letters")
        else:
            self._let_go(position)

    def link_up(self) -> None:
        """The MQTT connection stands and Pulsar has confirmed that we are the owner."""
        self._link = True

    def link_down(self, now_us: int = 0, *, closed: bool = False) -> None:
        """The MQTT connection ended: what was in flight may or may not have arrived, and is pushed again.

        ``closed``: the broker ended it, and perhaps for a packet of ours; what it does so for each time is given up.
        """
        self._link = False
        self._lone = 0
        verdicts = self._suspects.ended(self._flights, now_us, closed=closed)
        flights, self._flights = self._flights, {}
        self._flight_bytes = self._stalled = 0
        for number, flight in flights.items():
            device, item = flight.device, flight.item
            if item.state is not State.IN_FLIGHT:
                continue
            verdict = verdicts.get(number)
            if verdict is not None and verdict.reason:
                self._give_up(device, item, "rejected", verdict.reason)
                continue
            item.state = State.QUEUED
            if verdict is not None and verdict.wait_us:
                self._wait(device, now_us + verdict.wait_us)
            self._look_at(device)

    def tick(self, now_us: int) -> None:
        """The time of ``next_time_us`` came: devices whose wait is over are tried again."""
        while self._retries and self._retries[0][0] <= now_us:
            device = self._devices.get(heapq.heappop(self._retries)[1])
            if device is not None:
                self._look_at(device)
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, position, attempt = heapq.heappop(self._deadlines)
            item = self._item(position)
            if item is not None and item.state is State.AWAITED and item.attempts == attempt:
                self._await_no_more(item)
                self._failed(self._devices[item.command.device], item, "the device did not answer", now_us)

    def drain(self) -> None:
        """Push nothing new; what is under way goes on to its ack."""
        self._draining = True

    # --- inside ---

    def _pump(self, now_us: int) -> None:
        if not self._link or self._draining:
            return
        while self.has_room:
            if self._lone or self._aside:
                if self._sent_shortly(now_us):
                    return
                self._lone = 0
            if self._aside:
                device, alone = self._aside.pop(next(iter(self._aside))), True
            elif self._ready:
                device, alone = self._ready.popleft(), False
                device.ready = False
            else:
                return
            if self._push_one(device, now_us, alone=alone):
                self._look_at(device)  # behind the others: one command each in turn

    def _push_one(self, device: Device, now_us: int, *, alone: bool = False) -> bool:
        """Push the device's next command if it may be pushed. Returns whether there may be more to do."""
        beyond = device.unstored or device.storing
        if device.retry_at_us > now_us or beyond or not device.queue:
            return False
        head = device.queue[0]
        if head.state is not State.QUEUED:
            return False
        if head.command.expired(now_us):
            self._settle(device, head, "expired", "")
            return True
        return self._push_or_wait(device, head, now_us, alone=alone)

    def _push_or_wait(self, device: Device, item: Item, now_us: int, *, alone: bool) -> bool:
        suspect = self._suspects.alone(item.position)
        if suspect and not alone:
            self._aside[device.name] = device
            return False
        if self._suspects.too_many_silent(item.position, self._flights):
            self._wait(device, now_us + _SILENT_LOOK_US)
            return False
        self._push(device, item, now_us)
        self._lone = self._pushes if suspect else 0
        return True

    def _settle(self, device: Device, item: Item, state: str, reason: str) -> None:
        """It is not pushed any more: its receipt, and the device's next one."""
        if item.pulled:
            self._end_pulled(device, item, state, reason)
            return
        item.state = State.SETTLED
        item.settled = True
        self._receipt(item, state, reason)
        self._settle_head(device)

    def _push(self, device: Device, item: Item, now_us: int) -> None:
        sure = item.attempts or item.maybe_seen or item.again or item.position <= device.loaded
        if device.suspected and not sure:
            device.suspected = False
            item.maybe_seen = self._horizon is not None and item.position <= self._horizon
        item.state = State.IN_FLIGHT
        item.attempts += 1
        item.pushed_at_us = now_us
        self._pushes += 1
        self._flights[self._pushes] = Flight(device, item, item.command.size, now_us)
        self._flight_bytes += item.command.size
        command = item.command
        if device.probing and command.qos > 1 and not self._limits.answers:
            # What tells that nobody is there is PUBACK's 0x10: in PUBREC Mosquitto says 0, and drops it.
            command = replace(command, qos=1)
        seen = item.maybe_seen or (not item.again and device.cursor.may_have_had(item.position))
        self._actions.append(Push(self._pushes, item.position, command, seen or item.attempts > 1))

    def _settle_head(self, device: Device) -> None:
        """Move the cursor over the settled head of the queue, not beyond, nor over what dies without a receipt so far."""
        while device.queue and device.queue[0].state in PASSED and not device.dies_before(device.queue[0]):
            item = device.queue.popleft()
            device.ids.discard(item.command.command_id)
            if item.state is State.SETTLED:
                device.cursor.pass_over(item.position)
                if item.pulled or item.listed:  # nothing else tells the next owner that it is done
                    device.unstored.append(item)
                    self._dirty[device.name] = device
                continue
            # A dead letter as well: were its id written again, a later owner must not push it after the next.
            device.cursor.settle(
                item.position,
                item.command.command_id,
                delivered=item.state is State.CONFIRMED,
                at_us=item.answered_at_us or item.confirmed_at_us,
            )
            device.marks.discard(item.position)
            item.state = State.SETTLED
            device.unstored.append(item)
            self._dirty[device.name] = device

    def _give_up(self, device: Device, item: Item, state: str, reason: str) -> None:
        """Write it to the dead letters; its receipt and the cursor follow."""
        item.state = State.DYING
        item.given_up = state, reason
        device.marks.add(item.position)
        self._busy += 1
        self._actions.append(DeadLetter(item.position, device.name, reason))

    # --- what is done for devices that are away: nothing here ---

    def _arrived_away(self, device: Device, position: CommandPosition, command: Command, now_us: int) -> bool:
        """A command arrived. Returns whether it is dealt with, because what is parked comes before it."""
        return False

    def _parks_for(self, device: Device, item: Item, now_us: int, *, absent: bool) -> bool:
        """A push failed; ``absent``: the broker says that nobody is there. Returns whether the device was parked."""
        return False

    def _gave_sign(self, device: Device, now_us: int) -> None:
        """The device answered."""

    def _confirmed_of(self, device: Device, item: Item) -> None:
        """A command is confirmed; a pulled one gets its receipt before the cursor passes it."""

    def _passed(self, device: Device, stored: list[Item]) -> None:
        """The device's cursor is stored beyond these."""

    def _note(self, item: Item, after: State, state: str, reason: str) -> None:
        """Write the receipt of a command, which is ``after`` once that is stored.

        Its message is acknowledged already and does not come again, so nobody could make up for a receipt that was
        to follow the cursor. Died in between: it is pushed once more, marked, with a second receipt. So is the one of
        a dead letter: the cursor does not tell a later owner what became of it.
        """
        item.state = State.NOTED
        item.after = after
        self._receipt(item, state, reason)

    def _end_pulled(self, device: Device, item: Item, state: str, reason: str) -> None:
        """A pulled command is not pushed. One that was settled before has its receipt."""
        if not item.again:
            self._note(item, State.SETTLED, state, reason)
            return
        item.state = State.SETTLED
        self._settle_head(device)
        self._look_at(device)

    def _noted(self, item: Item) -> None:
        if item.after is None:
            return
        device = self._devices[item.command.device]
        if device.mode is not Mode.LIVE or not device.queues(item):
            device.marks.discard(item.position)  # else when the cursor has passed it
        item.state = item.after
        self._settle_head(device)
        self._look_at(device)

    def _park(self, device: Device, now_us: int) -> None:
        """Let the device's commands wait in Pulsar."""

    def relieve(self, now_us: int) -> None:
        """Make room when the partition is full."""

"""Delivery: the head of each device's queue goes to the MQTT broker, and what the broker or the device answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bridge.contract.commands import CommandPosition
from bridge.push.actions import Outbox, Push
from bridge.push.command import Answer, CommandRegistry, LateAnswers, TrackedCommand
from bridge.push.device import Device, Devices
from bridge.push.flights import Flights
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.settlement import Settlement
from bridge.push.states import WAITING, CommandEvent, CommandState

__all__ = ["NO_SUBSCRIBERS", "Delivery", "Failure"]

NO_SUBSCRIBERS: Final = 0x10
"""PUBACK reason "No matching subscribers" (MQTT 5, 3.4.2.1): accepted, and dropped unless retained."""

_FAILED_FROM: Final = 0x80
_LOOK_US: Final = 1_000_000
_FULL_WAIT_US: Final = 2_000_000
"""In a full partition, nothing else arrives while commands wait for answers to a broadcast."""


class Failure(NamedTuple):
    """Verdict: a push did not reach its device. ``absent``: the broker reports that no client is subscribed."""

    device: Device
    tracked: TrackedCommand
    reason: str
    absent: bool = False


@dataclass(slots=True, eq=False)
class Delivery:
    """Sends commands, and evaluates the answers of broker and devices."""

    _limits: Limits
    _horizon: CommandPosition | None
    """Up to there the former owner may have sent more than the cursors show; None if it did not."""
    _outbox: Outbox
    _commands: CommandRegistry
    _devices: Devices
    _links: Links
    _settlement: Settlement
    _late: LateAnswers

    # --- pushes ---

    def pump(self, now_us: int) -> None:
        """Send the next commands, one of each device in turn, as far as the window of its broker has room."""
        for link, flights in self._links.pairs:
            if not flights.sends:
                continue
            while flights.has_room and not flights.must_pause(now_us):
                device, alone = flights.next_suspect(), True
                if device is None:
                    device, alone = self._devices.next_ready(link), False
                if device is None:
                    break
                if alone and device.link != link:
                    continue  # it has moved
                if self._push_head(device, flights, now_us, alone=alone):
                    self._devices.look_at(device)

    def _push_head(self, device: Device, flights: Flights, now_us: int, *, alone: bool) -> bool:
        """Send the device's next command if it may be sent. Returns whether there may be more to do."""
        if device.retry_at_us > now_us or device.cursor_write.pending or not device.queue:
            return False
        head = device.queue[0]
        if head.state is not CommandState.QUEUED or not self._settlement.passes_overflow(device, head):
            return False
        if head.command.expired(now_us):
            self._settlement.settle(device, head, "expired", "")
            return True
        if head.command.is_broadcast and head.command.link in self._links and head.command.link != device.link:
            self._devices.move(device, head.command.link, certain=False)
            return True
        if self._awaits_broadcast(device, head, flights, now_us):
            return False
        if not alone and flights.set_aside(device, head):
            return False
        if flights.too_many_silent(head):
            self._devices.retry_at(device, now_us + _LOOK_US)
            return False
        self._push(device, head, flights, now_us)
        return True

    def _awaits_broadcast(self, device: Device, head: TrackedCommand, flights: Flights, now_us: int) -> bool:
        """Return whether the answer to a broadcast may still settle the device's next command. Otherwise it is sent."""
        if not head.pushed_at_us or head.attempts:
            return False
        wait_us = self._limits.answers.timeout_us
        if self._commands.full:
            wait_us = min(wait_us, _FULL_WAIT_US)
        due_us = max(head.pushed_at_us, flights.up_at_us) + wait_us
        if due_us > now_us:
            self._devices.retry_at(device, min(due_us, now_us + _LOOK_US))
        return due_us > now_us

    def _push(self, device: Device, tracked: TrackedCommand, flights: Flights, now_us: int) -> None:
        certain = tracked.maybe_had or tracked.resend or tracked.position <= device.loaded
        if device.suspected and not certain:
            device.suspected = False
            tracked.maybe_seen = self._horizon is not None and tracked.position <= self._horizon
        tracked.on(CommandEvent.PUSH)
        tracked.attempts += 1
        tracked.pushed_at_us = now_us
        number = flights.begin(device, tracked, now_us)
        command = tracked.command
        # What follows goes the same way until a sign of life shows another one, also if the next owner sends it.
        place, cursor = device.place, device.cursor
        place.certain = True
        if cursor.link != place.link:
            cursor.link, cursor.link_at_us = place.link, 0
        if device.replay.probing and command.qos > 1 and not self._limits.answers.confirm:
            # PUBACK's 0x10 shows that the device is absent; in PUBREC Mosquitto returns 0, and drops the command.
            command = replace(command, qos=1)
        repeat = tracked.maybe_seen or command.was_broadcast
        repeat = repeat or (not tracked.resend and cursor.maybe_seen(tracked.position))
        self._outbox.add(Push(number, tracked.position, command, repeat or tracked.attempts > 1, place.link))

    def recall(self, device: Device) -> None:
        """The device has left the broker at which its commands were sent: the one that is under way is sent again."""
        head = device.queue[0] if device.queue else None
        if head is not None:
            self._commands.stop_awaiting(head)
            if head.state is CommandState.IN_FLIGHT:
                head.on(CommandEvent.RETRY)
        device.failures = device.retry_at_us = 0
        self._links[device.link].waiting.pop(device.name, None)
        self._devices.look_at(device)

    def may_go(self, number: int, now_us: int) -> bool:
        """Return whether push ``number``, which waited for its payload, is still wanted."""
        flights = self._links.at(number)
        flight = flights.get(number)
        if flight.wanted and not flight.tracked.command.expired(now_us):
            flights.unstall(flight)
            return True
        if flights.end(number) is not None:
            flight.tracked.attempts -= 1  # this one was not sent
            self._settlement.settle(flight.device, flight.tracked, "expired", "")
            self._devices.look_at(flight.device)
        return False

    def lose_payload(self, number: int, reason: str) -> None:
        """Push ``number`` was not sent: Pulsar does not have the payload of the group entry any more."""
        flight = self._links.at(number).end(number)
        if flight is not None:
            self._settlement.settle(flight.device, flight.tracked, "rejected", reason)
            self._devices.look_at(flight.device)

    def reject(self, number: int, reason: str) -> None:
        """Push ``number`` was not sent: the broker accepts no such packet."""
        flight = self._links.at(number).end(number)
        if flight is not None:
            self._settlement.give_up(flight.device, flight.tracked, "rejected", reason)

    # --- results ---

    def confirmed(self, number: int, reason: int, now_us: int) -> Failure | None:
        """The broker answered push ``number`` with a PUBACK reason code (0 before MQTT 5). Returns a failure."""
        flight = self._links.at(number).confirm(number)
        if flight is None:
            return None
        device, tracked = flight.device, flight.tracked
        absent, broadcast = reason == NO_SUBSCRIBERS, tracked.command.is_broadcast
        if reason >= _FAILED_FROM or (absent and not tracked.command.retain and not broadcast):
            return Failure(device, tracked, f"the MQTT broker refused it with reason 0x{reason:02X}", absent)
        tracked.confirmed_at_us = now_us
        if broadcast and absent:  # each member gets its own copy
            self._settlement.settle(device, tracked, "", "no client is subscribed")
        elif self._limits.answers.confirm and not broadcast:
            self._commands.await_answer(tracked, now_us + self._limits.answers.timeout_us)
        else:
            self._settlement.confirmed(device, tracked)
        return None

    def awaits(self, position: CommandPosition) -> TrackedCommand | None:
        """Return the command at ``position`` if it was sent and an answer may confirm it, None otherwise."""
        tracked = self._commands.at(position)
        return tracked if tracked is not None and tracked.attempts and tracked.state in WAITING else None

    def awaits_broadcast(self, name: str, position: CommandPosition) -> TrackedCommand | None:
        """Return a device's entry of the group command at ``position`` if the answer to the broadcast may settle it."""
        device = self._devices.awake.get(name)
        for tracked in () if device is None else device.queue:
            ref = tracked.command.ref
            if ref is not None and ref.position == position and tracked.command.was_broadcast:
                return tracked if tracked.state in WAITING and not tracked.resend else None
        return None

    def _answer(self, payload: bytes, now_us: int) -> Answer:
        return Answer(payload[: self._limits.answers.size], len(payload), now_us)

    def answered(self, tracked: TrackedCommand, payload: bytes, now_us: int) -> None:
        """The device answered a command that waited for it, or a broadcast."""
        tracked.attempts = max(1, tracked.attempts)
        self._commands.stop_awaiting(tracked)
        tracked.answer = self._answer(payload, now_us)
        self._settlement.confirmed(self._devices.awake[tracked.command.device], tracked)

    def answered_late(self, position: CommandPosition, payload: bytes, now_us: int, *, failed: bool) -> Device | None:
        """A device answered a command that waits in Pulsar again, which settles it. Returns the device, None if unknown."""
        name = self._late.device_of(position)
        device = None if name is None else self._devices.known(name)
        if device is None or position not in device.parked:
            return None
        if failed:
            return device
        self._late.give(position, self._answer(payload, now_us))
        tracked = self._commands.pulled.get(position)
        waits = tracked is not None and tracked.state is CommandState.QUEUED and not tracked.resend
        if tracked is not None and waits and self._late.settle(tracked):
            self._settlement.confirmed(device, tracked)
        return device

    def answered_early(self, name: str, position: CommandPosition, payload: bytes, now_us: int) -> None:
        """A device answered the broadcast of the group command at ``position`` before its entry was read."""
        self._late.give_broadcast(name, position, self._answer(payload, now_us))

    def await_broadcast(self, device: Device, tracked: TrackedCommand, now_us: int) -> None:
        """A command came: if its device has answered it as a broadcast settle it, else wait for that."""
        if not tracked.command.was_broadcast or not self._limits.answers.confirm:
            return
        tracked.pushed_at_us = now_us
        if self._late.settle(tracked):
            self._settlement.confirmed(device, tracked)

    def device_of(self, position: CommandPosition) -> str | None:
        """Return whose command is at ``position``, None for one that an answer cannot be for."""
        tracked = self._commands.at(position)
        return self._late.device_of(position) if tracked is None else tracked.command.device

    def overdue(self, now_us: int) -> Failure | None:
        """Return a failure for a command whose answer did not come in its time, None without one."""
        tracked = self._commands.pop_overdue(now_us)
        if tracked is None:
            return None
        return Failure(self._devices.awake[tracked.command.device], tracked, "the device did not answer")

    def gives_up(self, failure: Failure) -> bool:
        """Give up a command that failed often enough. Returns whether it did."""
        most, attempts = self._limits.retry.attempts, failure.tracked.attempts
        if not most or attempts < most:
            return False
        reason = f"given up after {attempts} attempts: {failure.reason}"
        self._settlement.give_up(failure.device, failure.tracked, "rejected", reason)
        return True

    def retry(self, failure: Failure, now_us: int) -> None:
        """Send the command again after a while."""
        failure.tracked.on(CommandEvent.RETRY)
        limits = self._limits
        wait = min(limits.retry.max_us, limits.retry.min_us << min(failure.device.failures - 1, 20))
        self._devices.retry_at(failure.device, now_us + wait)

    def lose_link(self, link: str, now_us: int, *, closed: bool) -> None:
        """A connection ended, ``closed`` as in ``Flights.lose_all``: what was in flight is sent again, marked, or given up."""
        for flight in self._links[link].lose_all(now_us, closed=closed):
            device, tracked = flight.device, flight.tracked
            if flight.blame:
                self._settlement.give_up(device, tracked, "rejected", flight.blame)
                continue
            tracked.on(CommandEvent.RETRY)
            if flight.wait_us:
                self._devices.retry_at(device, now_us + flight.wait_us)
            self._devices.look_at(device)

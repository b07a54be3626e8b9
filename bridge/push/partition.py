"""A partition: a router of events over components, each of which owns its state (``bridge.push`` lists them).

The shell calls the methods of ``Partition`` for an event that concerns several components, and a component's own method
for any other. Then it takes the actions and begins each; the result of an action is an event again. A component returns a
verdict, such as ``Failure``, if another component has to act on it, and the router acts. ``states`` has the two transition
tables and the commit orders. No component has a socket, a thread or a clock: the shell gives the time in µs since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from bridge.contract.commands import Command, CommandPosition, is_broadcaster
from bridge.push.actions import Action, Outbox, ResumeAnswer, ResumeRequest
from bridge.push.command import CommandRegistry, LateAnswers
from bridge.push.cursor import Cursor
from bridge.push.delivery import NO_SUBSCRIBERS, Delivery, Failure
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.parking import Parking
from bridge.push.places import Places
from bridge.push.probes import Presence, Probes
from bridge.push.replay import Replay
from bridge.push.resume import Resume
from bridge.push.retention import Relocation, Retention
from bridge.push.segment_log import SegmentLog
from bridge.push.settlement import Settlement
from bridge.push.states import CommandState, Mode

__all__ = ["Partition"]


class Partition:
    """The core of one partition. Call an event, then ``take`` the actions; all on one thread."""

    def __init__(
        self,
        partition: int,
        limits: Limits,
        cursors: Mapping[str, Cursor],
        horizon: CommandPosition | None,
        parked: MutableMapping[str, dict[str, bytes]] | None = None,
        *,
        owner: str = "owner",
        term: str = "",
        now_us: int = 0,
        left_us: int = 0,
        links: Sequence[str] = ("",),
        generation: int = 0,
    ) -> None:
        """``cursors`` and ``parked`` (segments by device and key) are what the former owners stored; up to ``horizon`` the
        last of them may have sent more, None if it left cleanly. ``parked`` is emptied, because with many devices it is
        as large as what is made of it. ``owner`` names this owner in the keys of segments, ``term`` in those of cursors. ``left_us``: when the last
        owner wrote last; it has evaluated the signs of life until then. ``links`` names the MQTT brokers; a single one is "".
        ``generation`` is that of the commands topic.
        """
        self.outbox = Outbox(partition, generation)
        self.commands = CommandRegistry(limits, horizon, self.outbox)
        self.devices = Devices(limits, cursors, lambda device: self.places.locate(device), term)
        self.links = Links(links, limits)
        presence = Presence()
        self.places = Places(self.links, self.devices, presence, now_us)
        late = LateAnswers(answers=limits.answers.confirm)
        base = (self.outbox, self.commands, self.devices)
        self.settlement = Settlement(limits, *base, late)
        self.delivery = Delivery(limits, horizon, *base, self.links, self.settlement, late)
        self.segments = SegmentLog(owner, limits.parked.coalesce_us, *base)
        self.replay = Replay(limits, *base, self.links, self.segments, self.settlement, late)
        self.probes = Probes(limits, self.links, self.devices, self.replay, presence)
        self.parking = Parking(
            limits, horizon, self.links, *base, self.segments, self.settlement, late, self.replay, self.probes, presence
        )
        self.relocation = Relocation(
            limits, self.outbox, self.devices, self.links, self.segments, self.replay, self.probes
        )
        self.retention = Retention(limits, self.commands, self.devices, self.relocation)
        self.resume = Resume(limits.resume, *base, self.segments, late, self.replay, self.parking, self.retention)
        self._now_us = now_us
        self.devices.cursors.trim = self._trim
        self._restore({} if parked is None else parked, left_us)

    def _restore(self, parked: MutableMapping[str, dict[str, bytes]], left_us: int) -> None:
        cursors = self.devices.cursors
        for name in list(parked):
            self.parking.restore(name, parked.pop(name), self._now_us, left_us)
        watched, cursors.watched = cursors.watched, set()
        for name in watched - self.devices.dormant.keys():
            cursor = cursors.get(name)
            if cursor is not None and cursor.resend:
                self.parking.restore(name, {}, self._now_us, left_us)
            elif cursor is not None:
                cursors.note_unproven(cursor)
        self.probes.restored(self.parking.begun, self.places.last_seen)

    def _trim(self, name: str, cursor: Cursor) -> None:
        cursor.device_seen(self.parking.unsure_since(name, self._now_us))

    # --- state ---

    @property
    def presence(self) -> Presence:
        """What is known of the devices."""
        return self.places.presence

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: no push, no answer in its time, no read, no write."""
        writes = self.outbox.writes or len(self.outbox) or self.devices.dirty or self.segments.pending
        reads = self.replay.coming or self.relocation.copying
        return not (len(self.links) or self.commands.awaited or writes or reads)

    @property
    def clean(self) -> bool:
        """Whether no device may have received a command that no stored record shows."""
        if self.replay.unmarked or not self.settled or not self.commands.past_horizon:
            return False
        return not any(self.parking.is_uncertain(device) for device in self.devices.awake.values())

    def next_time_us(self) -> int | None:
        """Return when ``tick`` is due, in µs since the epoch, None when nothing waits for the clock."""
        times = (
            self.devices.next_retry_us,
            self.commands.next_deadline_us,
            self.probes.next_timer_us,
            self.probes.continue_at_us,
            self.segments.flush_at_us,
            self.replay.next_time_us(probes=self.probes.waiting),
            self.relocation.next_time_us(),
            None if self.links.draining else self.resume.next_time_us,
            self.parking.room_at_us if self.links.several and self.commands.full else None,
        )
        return min((at_us for at_us in times if at_us is not None), default=None)

    def take(self, now_us: int) -> list[Action]:
        """Return the actions of the events so far. At most one cursor write per device is under way."""
        self._now_us = now_us
        if self.links.several:
            self.parking.look_for_room(now_us)
        self.probes.continue_replays(now_us)
        self.resume.advance(now_us, serves=not self.links.draining)
        self.replay.budget.refill(now_us)
        self.probes.begin_due(now_us)
        self.relocation.copy()
        if self.replay.pull():
            self.relocation.has_turn = True
        self.delivery.pump(now_us)
        self.settlement.store_cursors()
        actions = self.outbox.take()
        flush_at_us = self.segments.flush_at_us
        if flush_at_us is not None and (now_us >= flush_at_us or self.links.draining):
            self.segments.flush(now_us)
            actions += self.outbox.take()
        return actions

    # --- events: Pulsar ---

    def arrived(self, position: CommandPosition, command: Command, now_us: int) -> None:
        """A command came from Pulsar; perhaps again, after a reconnect or from a former owner."""
        if not self.commands.arrives(position):
            return
        device = self.devices.get(command.device)
        if self.parking.arrived(device, position, command, now_us):
            return
        tracked = self.settlement.arrived(device, position, command, now_us)
        if tracked is None:
            return
        if device.mode is not Mode.LIVE:
            self.parking.park_arrived(device, tracked, now_us)
            return
        if not device.place.certain:
            self.places.choose(device, command)
        device.queue.append(tracked)
        device.ids.add(command.command_id)
        self.delivery.await_broadcast(device, tracked, now_us)
        if self.parking.overflows(device):
            self.parking.park(device, now_us)
        elif self.commands.full:
            self.parking.make_room(now_us)
        self.devices.look_at(device)

    def arrived_invalid(self, position: CommandPosition, reason: str, command: Command, size: int) -> None:
        """A message of ``size`` bytes came that is not a valid command; ``command`` has the properties that it names."""
        if position not in self.commands:
            self.settlement.arrived_invalid(position, reason, command, size)

    def pulled(self, name: str, epoch: int, position: CommandPosition, command: Command | None, now_us: int) -> None:
        """A parked command was read; None when Pulsar has it no more."""
        device = self.devices.awake.get(name)
        if device is not None and command is not None and not device.place.certain:
            self.places.choose(device, command)
        swept = self.replay.pulled(name, epoch, position, command, now_us)
        if swept is not None:
            self.parking.end_sweep(swept, now_us)

    def cursor_stored(self, name: str) -> None:
        """Pulsar has the device's cursor."""
        device = self.devices.awake[name]
        stored = self.settlement.cursor_stored(device)
        self.replay.passed(device, stored)
        self.devices.look_at(device)
        self.resume.cursor_stored(device)

    def segment_stored(self, parked: Sequence[CommandPosition]) -> None:
        """Pulsar has a segment, and with it the ids of ``parked``."""
        self.outbox.stored()
        self.segments.acknowledge(parked)

    # --- events: MQTT ---

    def link_up(self, link: str = "", *, reports_absence: bool = False) -> None:
        """An MQTT connection is up and ours. ``reports_absence``: its broker answers 0x10 when no client is subscribed."""
        self.links[link].connected, self.links[link].up_at_us = True, self._now_us
        self.probes.link_up(link, self._now_us, reports_absence=reports_absence)

    def link_down(self, now_us: int = 0, link: str = "", *, closed: bool = False) -> None:
        """An MQTT connection ended; ``closed``: the broker ended it, perhaps for a packet of ours."""
        was_up = self.links[link].connected
        self.delivery.lose_link(link, now_us, closed=closed)
        if not self.links.several or not was_up:
            return
        # What was read for its devices takes room from those of other brokers.
        for device in list(self.devices.awake.values()):
            if device.link == link and device.mode is Mode.REPLAYING and device.pulled:
                self.parking.interrupt(device, now_us)

    def confirmed(self, number: int, reason: int, now_us: int) -> None:
        """The broker answered push ``number`` with a PUBACK reason code (0 before MQTT 5)."""
        if reason == NO_SUBSCRIBERS:
            self.probes.prove_absence(self.links.of(number))
        failure = self.delivery.confirmed(number, reason, now_us)
        if failure is not None:
            self._failed(failure, now_us)

    def answered(
        self, position: CommandPosition, payload: bytes, now_us: int, link: str = "", *, failed: bool, device: str = ""
    ) -> bool:
        """A device answered the command at ``position``, perhaps late, perhaps twice; ``failed``: it could not execute the
        command. It came by the broker ``link``, where the device is unless it has moved. With ``device`` it is that device's
        answer to the broadcast of the group command at ``position``, which may precede its entry. Returns whether the answer
        was to a command that was sent and is not confirmed.
        """
        delivery = self.delivery
        tracked = delivery.awaits_broadcast(device, position) if device else delivery.awaits(position)
        if tracked is not None:
            found = self.devices.awake[tracked.command.device]
            self.presence.alive(found.name, now_us, self.places.known(link) if found.link == link else "")
            self.places.store(found.name)
            if not failed:
                delivery.answered(tracked, payload, now_us)
                return True
            if tracked.state is not CommandState.QUEUED or not tracked.attempts:
                tracked.attempts = max(1, tracked.attempts)  # a broadcast is one
                if found.queue[0] is tracked:
                    self.commands.stop_awaiting(tracked)
                    self._failed(Failure(found, tracked, "the device says that it failed"), now_us)
                return True
            # Its time is over, and it is about to be sent again.
        elif device:
            if not failed:
                delivery.answered_early(device, position, payload, now_us)
            self.alive(device, now_us)
        # Else any client could settle a command of another device, which has a tag against that (H36).
        late = None if device else delivery.answered_late(position, payload, now_us, failed=failed)
        if late is not None:
            self.alive(late.name, now_us)
        return late is not None

    def request_answered(self, request: ResumeRequest) -> None:
        """The broker has the answer to a resume request, or cannot accept it: the commands follow."""
        now_us = self._now_us
        device = self.resume.answered(request, now_us)
        if device is None:
            return
        self.presence.alive(device.name, request.at_us)
        self.places.locate(device)
        if self.probes.is_away(device, now_us):
            self.probes.plan(device.name, device.parked, now_us)
            self.probes.watch_expiry(device.name, device.parked)
            self.devices.sleep(device)
        else:
            device.parked.probe_wait_us = 0
            self.replay.wake(device)
            self.devices.look_at(device)

    def _failed(self, failure: Failure, now_us: int) -> None:
        """Park the device of a failed push, or give the command up, or retry it."""
        device, tracked, _, absent = failure
        device.failures += 1
        if self.parking.parks_for(device, tracked, absent=absent):
            self.parking.park(device, now_us)
        elif not self.delivery.gives_up(failure):
            self.delivery.retry(failure, now_us)
        if device.mode is Mode.REPLAYING and tracked.state is CommandState.QUEUED:
            self.replay.pull_less(device, tracked)
        if self.commands.full:  # nothing else arrives that would make room
            self.parking.make_room(now_us)

    def asked(self, request: ResumeRequest, now_us: int) -> ResumeAnswer | None:
        """A device asks for everything after a position. Returns the answer if there is nothing to send."""
        if self.places.known(request.link):
            self.alive(request.device, request.at_us, request.link)
        return self.resume.asked(request, now_us)

    # --- events: presence ---

    def alive(self, name: str, at_us: int, link: str = "", *, dated: bool = True) -> None:
        """The device gave a sign of life, at the broker ``link`` if it says so; one that is not ``dated`` is retained: maybe old."""
        if is_broadcaster(name):
            return
        presence, places, link = self.presence, self.places, self.places.known(link)
        places.recall(name)
        if not presence.counts(name, at_us, link, dated=dated):
            return
        moved = bool(link) and link != places.link_of(name)
        wakes = moved and places.ends_absence(name, at_us)
        if moved and (left := places.leaving(name)) is not None:
            self.delivery.recall(left)
            self.parking.leave_broker(left, self._now_us)
        presence.alive(name, at_us, link, dated=dated)
        places.store(name)
        dormant = self.devices.dormant.get(name)
        if dormant is not None and at_us < dormant.since_us and not wakes:
            return
        device = self.devices.known(name)
        if device is None:
            return
        if link:
            places.locate(device)
        if moved:
            self.resume.moved(device)
            if dated and device.cursor.has_state and not device.replay.resuming:  # a resume writes it anyway
                self.devices.mark_dirty(device)  # for the next owner
        if dated:
            device.cursor.device_seen(at_us)
        self._wake(device, at_us, in_any_case=wakes)

    def _wake(self, device: Device, at_us: int, *, in_any_case: bool) -> None:
        if device.mode is Mode.PARKED and at_us < device.parked.since_us and not in_any_case:
            return
        device.parked.probe_wait_us = 0
        if device.mode is Mode.PARKED:
            self.replay.wake(device)
        elif device.mode is Mode.REPLAYING:
            self.replay.goes_online(device)
        if device.failures:
            device.retry_at_us = 0
            self.devices.look_at(device)

    def gone(self, name: str, at_us: int, now_us: int, link: str = "") -> None:
        """The device gave a sign of absence, such as its will; the broker ``link`` reports it."""
        self.places.recall(name)
        if is_broadcaster(name) or not self.presence.gone(name, at_us, self.places.known(link)):
            return
        device = self.devices.awake.get(name)
        cursor = self.devices.cursors.get(name) if device is None else None
        if cursor is not None and cursor.unproven:
            device = self.devices.get(name)  # what the broker confirmed has perhaps not arrived
        if device is not None and device.mode is Mode.PARKED:
            self.parking.doubt(device, now_us)
            return
        if device is None:
            return
        # A device that is replayed may wait for its turn, with none of its commands in memory.
        if device.mode is Mode.REPLAYING or device.queue or device.cursor.unproven:
            self.parking.park(device, now_us)

    # --- events: the clock ---

    def tick(self, now_us: int) -> None:
        """The time of ``next_time_us`` came."""
        self.devices.retry_due(now_us)
        while (failure := self.delivery.overdue(now_us)) is not None:
            self._failed(failure, now_us)
        self.probes.tick(now_us)

    def drain(self) -> None:
        """Send nothing new; what is under way continues up to its acknowledgement."""
        self.links.drain()

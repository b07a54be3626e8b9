"""What the core of a partition knows, and what its shell may ask of it. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from bridge.contract.commands import Command, CommandPosition
from tests.support.push_oracle.actions import Ack, Action, StoreReceipt
from tests.support.push_oracle.cursor import BEFORE_ALL, Cursor
from tests.support.push_oracle.queues import Device, Flight, Item, Limits, State, receipt_of
from tests.support.push_oracle.suspects import SHORT_US, Suspects

__all__ = ["PartitionState"]


class PartitionState:
    """State of one partition; ``LiveCore`` and ``PartitionCore`` change it."""

    def __init__(
        self,
        partition: int,
        limits: Limits,
        cursors: Mapping[str, Cursor],
        horizon: CommandPosition | None,
    ) -> None:
        """``cursors`` are what the former owner stored; up to ``horizon`` it may have pushed beyond them."""
        self._partition = partition
        self._limits = limits
        self._cursors = dict(cursors)
        self._horizon = horizon
        self._devices: dict[str, Device] = {}
        self._held: dict[CommandPosition, Item] = {}  # taken and not acknowledged
        self._held_bytes = 0
        self._pulled: dict[CommandPosition, Item] = {}  # was parked, pulled again, and not settled
        self._flights: dict[int, Flight] = {}
        self._flight_bytes = 0
        self._stalled = 0  # flights that wait for their payload: they count for no window
        self._suspects = Suspects(limits)
        self._aside: dict[str, Device] = {}  # their next command goes out alone
        self._lone = 0  # the push that did
        self._ready: deque[Device] = deque()
        self._dirty: dict[str, Device] = {}
        self._retries: list[tuple[int, str]] = []
        self._deadlines: list[tuple[int, CommandPosition, int]] = []  # of answers; the attempt they are for
        self._awaited = 0  # commands that the device has not answered in the time that it has for it
        self._pushes = 0
        self._busy = 0  # cursor writes and receipts under way
        self._highest = BEFORE_ALL  # of what came from Pulsar
        self._link = False
        self._draining = False
        self._actions: list[Action] = []

    @property
    def in_flight(self) -> int:
        """Commands handed to the connection without a PUBACK so far."""
        return len(self._flights) - self._stalled

    @property
    def pushes(self) -> int:
        """The number of the last push."""
        return self._pushes

    @property
    def has_room(self) -> bool:
        """Whether one more command may be handed to the connection."""
        limits = self._limits
        return self.in_flight < limits.window and self._flight_bytes < limits.window_bytes

    @property
    def awaited(self) -> int:
        """Commands that the broker has and that the device has not answered yet."""
        return self._awaited

    @property
    def pending(self) -> int:
        """Messages taken from Pulsar and not acknowledged."""
        return len(self._held)

    @property
    def pending_bytes(self) -> int:
        """The payloads of those, in bytes."""
        return self._held_bytes

    @property
    def devices(self) -> int:
        """Devices with a command since this core began."""
        return len(self._devices)

    @property
    def held_back(self) -> int:
        """Devices whose last push was refused and whose commands wait for another try."""
        return sum(1 for device in self._devices.values() if device.failures and device.queue)

    @property
    def oldest_emitted_us(self) -> int:
        """When the oldest command that is taken and not acknowledged was emitted, in µs; 0 without one."""
        for item in self._held.values():
            return item.command.emitted_at_us
        return 0

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: no push, no answer in its time, no cursor write, no receipt."""
        under_way = self._flights or self._awaited or self._busy or self._dirty or self._actions
        return not under_way

    @property
    def clean(self) -> bool:
        """Whether no device may have had a command beyond its stored cursor."""
        if not self.settled or (self._horizon is not None and self._highest < self._horizon):
            return False
        return not any(
            item.attempts or (device.suspected and self._horizon is not None and item.position <= self._horizon)
            for device in self._devices.values()
            for item in device.queue
        )

    def overdue(self, now_us: int) -> Command | None:
        """Return a command whose PUBACK has not come in its time, None without one."""
        flights = self._flights.values()
        return next((one.item.command for one in flights if self._suspects.overdue(one, now_us)), None)

    def sent(self, number: int, now_us: int) -> None:
        """Push ``number`` was written to the connection."""
        flight = self._flights.get(number)
        if flight is not None:
            flight.sent, flight.at_us = True, now_us

    def stalls(self, number: int) -> None:
        """Push ``number`` waits for its payload: it holds its device, and no other one."""
        flight = self._flights.get(number)
        if flight is not None and not flight.stalled:
            flight.stalled = True
            self._stalled += 1
            self._flight_bytes -= flight.size

    def _counts(self, flight: Flight) -> None:
        if flight.stalled:
            flight.stalled = False
            self._stalled -= 1
            self._flight_bytes += flight.size

    def _landed(self, number: int) -> Flight | None:
        flight = self._flights.pop(number, None)
        if flight is not None:
            self._counts(flight)
            self._flight_bytes -= flight.size
        return flight

    def _sent_shortly(self, now_us: int) -> bool:
        """Whether the broker may still close the connection for what is in flight."""
        return any(now_us - flight.at_us < SHORT_US and not flight.stalled for flight in self._flights.values())

    def broker_answered(self) -> None:
        """The MQTT broker answered a publish that is no command."""
        self._suspects.broker_answered()

    def broker_away(self) -> None:
        """An attempt to connect to the MQTT broker failed."""
        self._suspects.broker_away()

    def _hold(self, item: Item, size: int | None = None) -> Item:
        """Keep what was taken from Pulsar; ``size`` is that of its payload where the item has none."""
        item.held_bytes = len(item.command.payload) if size is None else size
        self._held[item.position] = item
        self._held_bytes += item.held_bytes
        return item

    def _let_go(self, position: CommandPosition) -> Item:
        """Acknowledge what was taken, and forget it."""
        item = self._held.pop(position)
        self._held_bytes -= item.held_bytes
        item.held_bytes = 0
        self._actions.append(Ack(position))
        return item

    @property
    def _full(self) -> bool:
        """Whether nothing more is taken from Pulsar, for any device."""
        limits = self._limits
        return len(self._held) >= limits.pending or self._held_bytes >= limits.pending_bytes

    def _item(self, position: CommandPosition) -> Item | None:
        """Return what may be in flight at ``position``."""
        return self._pulled.get(position) or self._held.get(position)

    def _written_item(self, position: CommandPosition) -> Item | None:
        """Return for what a receipt or dead letter was written: of two, what came first wrote first. None for a
        pulled command whose device went away again: it waits in Pulsar, and is done once more.
        """
        item = self._held.get(position)
        return item if item is not None and item.state is not State.PARKED else self._pulled.get(position)

    def _device(self, name: str) -> Device:
        device = self._devices.get(name)
        if device is None:
            cursor = self._cursors.pop(name, None) or Cursor(self._limits.remembered_ids)
            device = Device(name, cursor, cursor.position)
            self._devices[name] = device
        return device

    def _look_at(self, device: Device) -> None:
        if not device.ready:
            device.ready = True
            self._ready.append(device)

    def _wait(self, device: Device, until_us: int) -> None:
        device.retry_at_us = until_us
        heapq.heappush(self._retries, (until_us, device.name))

    def _receipt(self, item: Item, state: str, reason: str) -> None:
        self._busy += 1
        self._actions.append(StoreReceipt(item.position, receipt_of(item, self._partition, state, reason)))
        item.command = replace(item.command, payload=b"")  # a mark in a queue needs no payload
        item.answer = b""

    @property
    def with_cursors(self) -> list[str]:
        """The devices that have a cursor."""
        return [*self._cursors, *(d.name for d in self._devices.values() if d.cursor.says_anything)]

    def cursor_of(self, device: str) -> Cursor | None:
        """Return the cursor of a device as it is now, None without one: all that it has passed is settled."""
        known = self._devices.get(device)
        cursor = self._cursors.get(device) if known is None else known.cursor
        return cursor if cursor is not None and cursor.says_anything else None

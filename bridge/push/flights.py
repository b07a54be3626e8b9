"""Flights: the commands that were handed to the MQTT connection and that the broker has not confirmed.

Some commands the MQTT broker answers with the end of the connection or with silence, instead of a PUBACK.

Such a command would come first on each new connection, and no command behind it would reach its device. So a command that
was sent shortly before the broker closed the connection is suspect. Suspects go out one at a time, with nothing else sent
shortly before: the next end then shows which command was the cause. It waits for longer each time, and others go first.

Push must not give up a good command at a broker that restarts, or that another process took over. Giving up takes
``CLOSES`` ends in a row, each within ``SHORT_US`` of sending that command alone; no failed attempt to connect in between,
as at a broker that is down; and a PUBACK for another publish since the first of these ends. Without that PUBACK push
retries the command: a broker that closes at everything is at fault, and the commands wait until it is fixed.

A PUBACK that never comes on a live connection counts in the same way: ``CLOSES`` times, while the broker has confirmed
what was sent later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from bridge.contract.commands import Command, CommandPosition
from bridge.mqtt.refusals import AT_ONCE_S
from bridge.push.command import TrackedCommand
from bridge.push.device import Device
from bridge.push.limits import Limits
from bridge.push.states import CommandState

__all__ = ["CLOSES", "SHORT_US", "Flight", "Flights"]

CLOSES: Final = 3
SHORT_US: Final = int(AT_ONCE_S * 1_000_000)
_SECOND: Final = 1_000_000
_REMEMBERED: Final = 10_000
_STUCK_US: Final = 2_000_000


@dataclass(slots=True)
class _Fault:
    """What counts against a command."""

    alone: bool = False  # whether it goes out alone
    closes: int = 0  # ends of the connection in a row at which it was the only one that was sent shortly before
    answers: int = 0  # how many answers of the broker were counted at the first of those
    blames: int = 0  # all such ends, in a row or not
    silences: int = 0


_NO_FAULT: Final = _Fault()


@dataclass(slots=True, eq=False)
class Flight:
    """A push without a PUBACK so far."""

    device: Device
    tracked: TrackedCommand
    attempt: int  # which push of its command it is
    size: int  # bytes of the payload
    at_us: int  # when it was pushed, and then when it was sent
    sent: bool = False
    """On this connection; until then it waits for its payload, or for room in the broker's window."""
    stalled: bool = False  # its payload is not here: it was not handed to the connection
    wait_us: int = 0  # how long its command waits after the end of the connection
    blame: str = ""  # why its command is given up at the end of the connection; empty if it is not

    @property
    def wanted(self) -> bool:
        """Whether the command still waits for this push: not if it was answered, parked, or sent again at another broker."""
        return self.tracked.state is CommandState.IN_FLIGHT and self.tracked.attempts == self.attempt

    def is_overdue(self, now_us: int, timeout_us: int) -> bool:
        """Return whether its PUBACK has not come in its time."""
        return self.sent and now_us - self.at_us >= timeout_us


class Flights:
    """The flights of one partition at one MQTT broker, in a window bounded by count and bytes, and the state of the connection."""

    def __init__(self, limits: Limits, numbers: Iterator[int] | None = None) -> None:
        """``numbers`` gives the numbers of pushes, which no other broker's have."""
        self._limits = limits
        self.numbers = count(1) if numbers is None else numbers
        self._flights: dict[int, Flight] = {}
        self._bytes = 0
        self._stalled = 0  # they count for no window
        self._aside: dict[str, Device] = {}  # their next command goes out alone
        self._lone = 0  # the push that did
        self._faults: OrderedDict[CommandPosition, _Fault] = OrderedDict()
        self._answers = 0  # of the broker, to any publish
        self.newest = 0
        """The last push, or answer to a request, that the broker confirmed: both are numbered in the order of sending."""
        self.connected = False
        """The MQTT connection is up, and Pulsar has confirmed the ownership on it."""
        self.up_at_us = 0
        """When that began last."""
        self.draining = False
        """Nothing new is sent."""
        self.waiting: dict[str, Device] = {}
        """Devices at this broker whose parked commands are read when it accepts more."""

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def in_flight(self) -> int:
        """Commands that the connection has and the broker has not confirmed."""
        return len(self._flights) - self._stalled

    @property
    def has_room(self) -> bool:
        """Whether one more command may be handed to the connection."""
        limits = self._limits
        return self.in_flight < limits.window and self._bytes < limits.window_bytes

    @property
    def sends(self) -> bool:
        """Whether new commands may be sent now."""
        return self.connected and not self.draining

    def is_stuck(self, now_us: int) -> bool:
        """Return whether the broker is away, or does not confirm what is sent: its devices may wait for long."""
        oldest = next((flight for flight in self._flights.values() if not flight.stalled), None)
        return not self.connected or (oldest is not None and now_us - oldest.at_us >= _STUCK_US)

    # --- begin ---

    def must_pause(self, now_us: int) -> bool:
        """Return whether a suspect waits, or is in flight, while the broker may still close the connection for a push."""
        if not self._lone and not self._aside:
            return False
        if any(now_us - one.at_us < SHORT_US and not one.stalled for one in self._flights.values()):
            return True
        self._lone = 0
        return False

    def next_suspect(self) -> Device | None:
        """Return a device whose next command goes out alone, None without one."""
        return self._aside.pop(next(iter(self._aside))) if self._aside else None

    def set_aside(self, device: Device, tracked: TrackedCommand) -> bool:
        """Have a suspect command wait to go alone. Returns whether it is one."""
        if not self._fault_of(tracked).alone:
            return False
        self._aside[device.name] = device
        return True

    def too_many_silent(self, tracked: TrackedCommand) -> bool:
        """Return whether a command that was not answered before waits: all of this kind get half the window at most."""
        if not self._fault_of(tracked).silences:
            return False
        silent = sum(1 for flight in self._flights.values() if self._fault_of(flight.tracked).silences)
        return silent >= max(1, self._limits.window // 2)

    def begin(self, device: Device, tracked: TrackedCommand, now_us: int) -> int:
        """Note a push. Returns its number."""
        number, size = next(self.numbers), tracked.command.size
        self._flights[number] = Flight(device, tracked, tracked.attempts, size, now_us)
        self._bytes += size
        self._lone = number if self._fault_of(tracked).alone else 0
        return number

    def sent(self, number: int, now_us: int) -> None:
        """Push ``number`` was written to the connection."""
        flight = self._flights.get(number)
        if flight is not None:
            flight.sent, flight.at_us = True, now_us

    def stall(self, number: int) -> None:
        """Push ``number`` waits for its payload: it keeps its device waiting, and no other one."""
        flight = self._flights.get(number)
        if flight is not None and not flight.stalled:
            flight.stalled = True
            self._stalled += 1
            self._bytes -= flight.size

    def unstall(self, flight: Flight) -> None:
        """The payload of a flight came: it counts for the window."""
        if flight.stalled:
            flight.stalled = False
            self._stalled -= 1
            self._bytes += flight.size

    # --- end ---

    def get(self, number: int) -> Flight:
        """Return a flight. Raises KeyError."""
        return self._flights[number]

    def end(self, number: int) -> Flight | None:
        """End a flight. Returns it, None if its command does not wait for it."""
        flight = self._flights.pop(number, None)
        if flight is None:
            return None
        self.unstall(flight)
        self._bytes -= flight.size
        return flight if flight.wanted else None

    def confirm(self, number: int) -> Flight | None:
        """The broker answered push ``number``, with any reason code. Returns as ``end``."""
        if number in self._flights:
            self.broker_answered(number)
            self._faults.pop(self._flights[number].tracked.position, None)
        return self.end(number)

    def lose_all(self, now_us: int, *, closed: bool) -> list[Flight]:
        """The connection ended, by the broker if ``closed``. Returns the flights that are wanted, each with what follows."""
        wanted = [flight for flight in self._flights.values() if flight.wanted]
        young: list[Flight] = []
        for number, flight in self._flights.items():
            if not flight.sent or not flight.wanted:
                continue
            if flight.is_overdue(now_us, self._limits.puback_timeout_us) and number < self.newest:
                self._blame_silence(flight)
            elif now_us - flight.at_us < SHORT_US:
                young.append(flight)
            elif (fault := self._faults.get(flight.tracked.position)) is not None:
                fault.alone, fault.closes = False, 0
        if closed and len(young) == 1:
            self._blame_close(young[0])
        elif closed:
            for flight in young:
                self._fault(flight).alone = True
        self.connected = False
        self._flights = {}
        self._lone = self._bytes = self._stalled = 0
        return wanted

    def overdue(self, now_us: int) -> Command | None:
        """Return a command whose PUBACK has not come in its time, None without one."""
        flights, timeout_us = self._flights.values(), self._limits.puback_timeout_us
        return next((one.tracked.command for one in flights if one.is_overdue(now_us, timeout_us)), None)

    # --- faults ---

    def broker_answered(self, number: int = 0) -> None:
        """The broker answered some publish, ``number`` if it has one."""
        self._answers += 1
        self.newest = max(self.newest, number)

    def broker_unreachable(self) -> None:
        """An attempt to connect failed: the broker itself was the cause, not a command."""
        for position, fault in list(self._faults.items()):
            fault.closes = 0
            if not fault.blames and not fault.silences:
                del self._faults[position]

    def _fault_of(self, tracked: TrackedCommand) -> _Fault:
        return self._faults.get(tracked.position, _NO_FAULT)

    def _fault(self, flight: Flight) -> _Fault:
        fault = self._faults.setdefault(flight.tracked.position, _Fault())
        if len(self._faults) > _REMEMBERED:
            self._faults.popitem(last=False)
        return fault

    def _blame_close(self, flight: Flight) -> None:
        fault = self._fault(flight)
        fault.alone = True
        if not fault.closes:
            fault.answers = self._answers
        fault.closes += 1
        fault.blames += 1
        if fault.closes >= CLOSES and self._answers > fault.answers:
            flight.blame = (
                f"the MQTT broker closed the connection {fault.closes} times when it was sent, and took others"
            )
        else:
            flight.wait_us = min(self._limits.retry.max_us, _SECOND << min(fault.blames - 1, 20))

    def _blame_silence(self, flight: Flight) -> None:
        fault = self._fault(flight)
        fault.silences += 1
        if fault.silences >= CLOSES:
            seconds = self._limits.puback_timeout_us / 1e6
            flight.blame = (
                f"the MQTT broker did not confirm it within {seconds:g} s, {fault.silences} times, and "
                "confirmed what was sent later"
            )

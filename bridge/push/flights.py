"""Flights: the commands that were handed to the MQTT connection and that the broker has not confirmed."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.contract.commands import Command
from bridge.push.command import TrackedCommand
from bridge.push.device import Device
from bridge.push.limits import Limits
from bridge.push.states import CommandState
from bridge.push.suspects import SHORT_US, Suspects, Verdict

__all__ = ["Flight", "Flights"]


@dataclass(slots=True, eq=False)
class Flight:
    """A push without a PUBACK so far."""

    device: Device
    tracked: TrackedCommand
    size: int
    """Bytes of the payload."""
    at_us: int
    """When it was pushed, and then when it was sent."""
    sent: bool = False
    """On this connection; until then it waits for its payload, or for room in the broker's window."""
    stalled: bool = False
    """Its payload is not here: it was not handed to the connection."""

    @property
    def wanted(self) -> bool:
        """Whether the command still waits for this push; its device may have answered, or may be parked."""
        return self.tracked.state is CommandState.IN_FLIGHT


class Flights:
    """The flights of one partition, in a window bounded by count and bytes, and the state of the connection."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._flights: dict[int, Flight] = {}
        self._bytes = 0
        self._stalled = 0  # they count for no window
        self._suspects = Suspects(limits)
        self._aside: dict[str, Device] = {}  # their next command goes out alone
        self._lone = 0  # the push that did
        self.pushes = 0
        """The number of the last push."""
        self.connected = False
        """The MQTT connection is up, and Pulsar has confirmed the ownership on it."""
        self.draining = False
        """Nothing new is sent."""

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

    # --- begin ---

    def must_pause(self, now_us: int) -> bool:
        """Return whether the broker may still close the connection for what is in flight, and a suspect is among it or
        waits to go alone.
        """
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
        if not self._suspects.alone(tracked.position):
            return False
        self._aside[device.name] = device
        return True

    def too_many_silent(self, tracked: TrackedCommand) -> bool:
        """Return whether too many commands are in flight that the broker did not confirm before."""
        return self._suspects.too_many_silent(tracked.position, self._flights)

    def begin(self, device: Device, tracked: TrackedCommand, now_us: int) -> int:
        """Note a push. Returns its number."""
        self.pushes += 1
        size = tracked.command.size
        self._flights[self.pushes] = Flight(device, tracked, size, now_us)
        self._bytes += size
        self._lone = self.pushes if self._suspects.alone(tracked.position) else 0
        return self.pushes

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
        """End a flight. Returns it, None for an unknown one."""
        flight = self._flights.pop(number, None)
        if flight is not None:
            self.unstall(flight)
            self._bytes -= flight.size
        return flight

    def confirm(self, number: int) -> Flight | None:
        """The broker answered push ``number``. Returns its flight, None if the command waits for it no more."""
        flight = self.end(number)
        if flight is None:
            return None
        self._suspects.answered(number, flight.tracked.position)
        return flight if flight.wanted else None

    def lose_all(self, now_us: int, *, closed: bool) -> list[tuple[Flight, Verdict]]:
        """The connection ended; ``closed``: the broker ended it. Returns the flights whose commands wait for them, each
        with the verdict on its command.
        """
        self.connected = False
        self._lone = 0
        verdicts = self._suspects.ended(self._flights, now_us, closed=closed)
        flights, self._flights = self._flights, {}
        self._bytes = self._stalled = 0
        return [(one, verdicts.get(number, Verdict())) for number, one in flights.items() if one.wanted]

    def overdue(self, now_us: int) -> Command | None:
        """Return a command whose PUBACK has not come in its time, None without one."""
        flights = self._flights.values()
        return next((one.tracked.command for one in flights if self._suspects.overdue(one, now_us)), None)

    # --- the broker ---

    def broker_answered(self) -> None:
        """The broker answered a publish that is no command."""
        self._suspects.broker_answered()

    def broker_unreachable(self) -> None:
        """An attempt to connect to the broker failed."""
        self._suspects.broker_unreachable()

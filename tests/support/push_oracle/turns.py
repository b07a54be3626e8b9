"""Whose parked commands are read next. Pure.

They are read in rounds, each in the order of the log by the first command that each device still waits for: so what is
read lies close together, however many devices wake at once. Who wants more waits for the next round. Of eight turns one
is for devices of which nobody has heard, in rounds of their own, for others may be back with ever more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.contract.commands import CommandPosition
from tests.support.push_oracle.queues import Device

__all__ = ["UNHEARD_EVERY", "Turns"]

UNHEARD_EVERY: Final = 8


class _Place(NamedTuple):
    head: CommandPosition
    name: str
    device: Device


class Turns:
    """Devices that want some of their parked commands; each stands here once."""

    def __init__(self) -> None:
        self._back, self._unheard = _Rounds(), _Rounds()
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._back or self._unheard)

    @property
    def back(self) -> bool:
        """Whether any of them is back."""
        return bool(self._back)

    @property
    def unheard(self) -> int:
        """How many of them nobody has heard of."""
        return len(self._unheard)

    def add(self, device: Device, head: CommandPosition) -> None:
        """The device waits for what begins at ``head``; a place that it has already is given up."""
        unheard = device.probing or device.sweeping
        (self._back if unheard else self._unheard).discard(device)
        (self._unheard if unheard else self._back).add(device, head)

    def discard(self, device: Device) -> None:
        """The device waits no more."""
        self._back.discard(device)
        self._unheard.discard(device)

    def next(self) -> Device:
        """Return whose turn it is, and take it out. Raises IndexError when nobody waits."""
        self._count += 1
        unheard = self._unheard and (self._count % UNHEARD_EVERY == 0 or not self._back)
        return (self._unheard if unheard else self._back).next()


class _Rounds:
    def __init__(self) -> None:
        self._round: list[_Place] = []  # the last one is the next
        self._behind: list[_Place] = []
        self._places: dict[str, _Place] = {}  # others in the lists were given up

    def __len__(self) -> int:
        return len(self._places)

    def add(self, device: Device, head: CommandPosition) -> None:
        place = self._places[device.name] = _Place(head, device.name, device)
        self._behind.append(place)

    def discard(self, device: Device) -> None:
        self._places.pop(device.name, None)

    def next(self) -> Device:
        while True:
            if not self._round:
                self._round, self._behind = sorted(self._behind, key=lambda one: one[:2], reverse=True), []
            place = self._round.pop()
            if self._places.get(place.name) is place:
                del self._places[place.name]
                return place.device

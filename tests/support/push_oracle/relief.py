"""Whether a partition is full of what will not leave by itself, and what each device has to do with it. Pure.

Full means that nothing more is taken from Pulsar, for any device, by the count of the commands or by the bytes of
their payloads. What is on its way to a receipt, to the dead letters or among the parked makes room soon; what waits for
its device may wait without end. How room is made is decided by ``live`` and ``core``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from tests.support.push_oracle.queues import Device, Item, Limits, Mode, State

__all__ = ["Pressure", "pressing"]

_PART: Final = 8
"""Of the room so much is made at once, so that not each command that comes has to make its own."""
_WAITING: Final = (State.QUEUED, State.IN_FLIGHT, State.AWAITED)


def _held_for(device: Device) -> Iterator[Item]:
    """Yield what is not acknowledged and waits for its device."""
    return (item for item in device.queue if item.state in _WAITING and not item.pulled)


def _count(device: Device) -> int:
    return sum(1 for _ in _held_for(device))


def _bytes(device: Device) -> int:
    return sum(item.held_bytes for item in _held_for(device))


class Pressure(NamedTuple):
    """By what a partition is full."""

    weight: Callable[[Device], int]
    """Returns how much of the room a device takes, in bytes where those fill the partition, else in commands."""
    excess: int
    """So much has to leave for some room."""


def pressing(devices: Collection[Device], limits: Limits) -> Pressure | None:
    """Return by what the partition is full; None where there is room, or will be."""
    waiting = [device for device in devices if device.queue and device.mode is not Mode.PARKED]
    for weight, most in ((_bytes, limits.pending_bytes), (_count, limits.pending)):
        held = sum(map(weight, waiting))
        if held >= most:
            return Pressure(weight, held - most + max(1, most // _PART))
    return None

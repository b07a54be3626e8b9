"""Backpressure: whether a partition is full of commands that will not leave by themselves, and the share of each device.

A full partition receives nothing more from Pulsar, for any device: by the count of its commands or by the bytes of their
payloads. A command whose receipt, dead letter or parked id is being stored makes room soon; a command that waits for its
device may wait without end. ``parking`` makes the room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from bridge.push.command import TrackedCommand
from bridge.push.device import Device
from bridge.push.limits import Limits
from bridge.push.states import CommandState, Mode

__all__ = ["Pressure", "pressing"]

_PART: Final = 8
"""Such a part of the room is made at once, so that not every arriving command has to make its own."""
_WAITING: Final = (CommandState.QUEUED, CommandState.IN_FLIGHT, CommandState.AWAITED)


def _waiting_for(device: Device) -> Iterator[TrackedCommand]:
    """Yield the commands that are not acknowledged and wait for their device."""
    return (one for one in device.queue if one.state in _WAITING and not one.pulled)


def _count(device: Device) -> int:
    return sum(1 for _ in _waiting_for(device))


def _bytes(device: Device) -> int:
    return sum(one.size for one in _waiting_for(device))


class Pressure(NamedTuple):
    """What fills a partition."""

    weight: Callable[[Device], int]
    """Returns how much of the room a device takes, in bytes where those fill the partition, else in commands."""
    excess: int
    """How much has to leave to make room."""


def pressing(devices: Collection[Device], limits: Limits) -> Pressure | None:
    """Return what fills the partition; None if it has room, or will have."""
    waiting = [device for device in devices if device.queue and device.mode is not Mode.PARKED]
    for weight, most in ((_bytes, limits.pending_bytes), (_count, limits.pending)):
        used = sum(map(weight, waiting))
        if used >= most:
            return Pressure(weight, used - most + max(1, most // _PART))
    return None

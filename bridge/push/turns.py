"""Whose parked commands are read next. Pure.

Those that are back come in rounds, each in the order of the log by the first command that each device still waits for:
so what is read lies close together, however many devices wake at once. Who wants more waits for the next round. Of
eight turns one is for devices of which nobody has heard, for others may be back with ever more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bridge.commands import CommandPosition
from bridge.push.queues import Device

__all__ = ["Turns"]

_UNHEARD_EVERY: Final = 8


class Turns:
    """Devices that want some of their parked commands; each stands here once."""

    def __init__(self) -> None:
        self._round: list[tuple[CommandPosition, str, Device]] = []  # the last one is the next
        self._behind: list[tuple[CommandPosition, str, Device]] = []
        self._unheard: deque[Device] = deque()
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._round or self._behind or self._unheard)

    def add(self, device: Device, head: CommandPosition) -> None:
        """The device waits for what begins at ``head``."""
        if device.probing or device.sweeping:
            self._unheard.append(device)
        else:
            self._behind.append((head, device.name, device))

    def next(self) -> Device:
        """Return whose turn it is, and take it out. Raises IndexError when nobody waits."""
        self._count += 1
        if self._unheard and (self._count % _UNHEARD_EVERY == 0 or not (self._round or self._behind)):
            return self._unheard.popleft()
        if not self._round:
            self._round, self._behind = sorted(self._behind, reverse=True), []
        return self._round.pop()[-1]

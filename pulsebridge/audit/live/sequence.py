"""Checks the numbers that devices give to their messages: gaps, repeats and order, for each device. Pure.

A number is a repeat if it was seen before with the same content (a redelivered copy, allowed) or with another one (a
finding). A number of at most ``RESTART`` after a larger one begins a new count: the device has restarted. Memory is
proportional to the devices and to the open gaps; of a device at most ``MOST_GAPS`` gaps stay open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from pulsebridge.audit.live.findings import Finding, Hop, Kind

__all__ = ["MOST_GAPS", "RECENT", "RESTART", "Sequences"]

RESTART: Final = 1
MOST_GAPS: Final = 1000
RECENT: Final = 32
"""Numbers of a device whose content is remembered, to recognize copies."""


@dataclass(slots=True)
class _Device:
    last: int
    us: int
    gaps: dict[int, int] = field(default_factory=dict)
    """Missing numbers, with the time of the message after each."""
    recent: OrderedDict[int, int] = field(default_factory=OrderedDict)


class Sequences:
    """The numbers of the devices of one partition, in its order."""

    def __init__(self, explained: Set[tuple[str, str, int]] = frozenset()) -> None:
        """``explained``: route, device and number of dead letters, which are not missing."""
        self._explained = explained
        self._devices: dict[tuple[str, str], _Device] = {}
        self.copies = 0
        self.found: list[Finding] = []

    def take(self, stream: str, device: str, number: int, us: int, crc: int) -> None:
        """Take the next message of a device; ``stream`` is its route."""
        state = self._devices.get((stream, device))
        if state is None:
            state = self._devices[stream, device] = _Device(number, us)
        elif number in state.recent:
            if state.recent[number] == crc:
                self.copies += 1
                return
            if number > RESTART:
                self._find(Kind.REPEATED, device, us, number, "with another payload")
                return
            self._restart(device, state, number, us)
        elif number > state.last:
            missing, room = range(state.last + 1, number), MOST_GAPS - len(state.gaps)
            for one in missing[:room]:
                if (stream, device, one) not in self._explained:
                    state.gaps[one] = us
            if len(missing) > room:
                self._find(Kind.MISSING, device, us, number - 1, f"and {len(missing) - room - 1:,} numbers before it")
        elif number in state.gaps:
            del state.gaps[number]
            self._find(Kind.REORDERED, device, us, number, f"after {state.last}")
        elif number <= RESTART:
            self._restart(device, state, number, us)
        else:
            return  # older than the window's first number, or a copy of it
        state.last, state.us = max(state.last, number), us
        state.recent[number] = crc
        if len(state.recent) > RECENT:
            state.recent.popitem(last=False)

    def _restart(self, device: str, state: _Device, number: int, us: int) -> None:
        self.found += self._missing(device, state)
        state.last, state.us, state.gaps = number, us, {}
        state.recent.clear()

    def _find(self, kind: str, device: str, us: int, number: int, detail: str) -> None:
        self.found.append(Finding(Hop.DEVICE, kind, device, us, f"number {number}", detail))

    @staticmethod
    def _missing(device: str, state: _Device) -> Iterator[Finding]:
        for number, us in state.gaps.items():
            yield Finding(Hop.DEVICE, Kind.MISSING, device, us, f"number {number}", "the device's own number")

    def end(self) -> Iterator[Finding]:
        """Yield all findings."""
        yield from self.found
        for (_, device), state in self._devices.items():
            yield from self._missing(device, state)

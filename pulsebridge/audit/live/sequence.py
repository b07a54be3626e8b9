"""Checks the numbers that devices give to their messages: gaps, repeats and order, for each device. Pure.

A number is a repeat if it was seen before with the same content (a redelivered copy, allowed) or with another one (a
finding). A number of at most ``RESTART`` after a larger one begins a new count: the device has restarted. Memory is
proportional to the devices and to the open gaps; of a device at most ``MOST_GAPS`` gaps stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, Final

import numpy as np

from pulsebridge.audit.live.findings import Finding, Hop, Kind

__all__ = ["MOST_GAPS", "NO_NUMBER", "RECENT", "RESTART", "Sequences"]

RESTART: Final = 1
MOST_GAPS: Final = 1000
RECENT: Final = 32
"""Numbers of a device whose content is remembered, to recognize copies: the newest for each remainder by it."""
NO_NUMBER: Final = -(1 << 63)
"""For a message without a number."""


class Sequences:
    """The numbers of the devices of one partition, in its order."""

    def __init__(self, explained: Set[tuple[str, str, int]] = frozenset()) -> None:
        """``explained``: route, device and number of dead letters, which are not missing."""
        self._explained = explained
        self._rows: dict[tuple[str, str], int] = {}
        """Row of each route and device in the arrays."""
        self._last = np.empty(0, np.int64)
        self._recent, self._crcs = np.empty((0, RECENT), np.int64), np.empty((0, RECENT), np.int64)
        self._gaps: dict[int, dict[int, int]] = {}
        """Missing numbers by row, with the time of the message after each."""
        self.copies = 0
        self.found: list[Finding] = []

    def take_all(self, names: Sequence[tuple[str, str]], of: Any, numbers: Any, us: Any, crcs: Any) -> None:
        """Take messages in their order. ``of`` is the index in ``names``, which has route and device, of each."""
        known = np.flatnonzero(numbers != NO_NUMBER)
        if not len(known):
            return
        of, numbers, us, crcs = (column[known] for column in (of, numbers, us, crcs))
        rows = np.array([self._rows.setdefault(name, len(self._rows)) for name in names], np.int64)[of]
        if (more := len(self._rows) - len(self._last)) > 0:
            more = max(more, len(self._last))
            self._last = np.concatenate((self._last, np.full(more, NO_NUMBER)))
            self._recent = np.concatenate((self._recent, np.full((more, RECENT), NO_NUMBER)))
            self._crcs = np.concatenate((self._crcs, np.zeros((more, RECENT), np.int64)))
        order = np.argsort(rows.astype(np.min_scalar_type(len(self._rows))), kind="stable")  # small numbers: by radix
        rows, sorted_ = rows[order], numbers[order]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        # Nearly always each number of a device is the last one plus one.
        expected = np.concatenate(([0], sorted_[:-1])) + 1
        last = self._last[rows[first]]
        expected[first] = np.where(last == NO_NUMBER, sorted_[first], last + 1)
        regular = np.logical_and.reduceat(sorted_ == expected, first)
        ends = np.append(first[1:], len(rows)) - 1
        self._last[rows[ends[regular]]] = sorted_[ends[regular]]
        rest = np.repeat(regular, np.diff(first, append=len(rows)))
        at = rows[rest], sorted_[rest] % RECENT
        self._recent[at], self._crcs[at] = sorted_[rest], crcs[order][rest]
        of, numbers, us, crcs = (column[order[~rest]].tolist() for column in (of, numbers, us, crcs))
        for n, number, at_us, crc in zip(of, numbers, us, crcs, strict=True):
            self._take(names[n], number, at_us, crc)

    def _take(self, name: tuple[str, str], number: int, us: int, crc: int) -> None:
        row, at, (stream, device) = self._rows[name], number % RECENT, name
        last, gaps = int(self._last[row]), self._gaps.setdefault(row, {})
        if last == NO_NUMBER:
            last = number
        elif self._recent[row, at] == number:
            if self._crcs[row, at] == crc:
                self.copies += 1
                return
            if number > RESTART:
                self._find(Kind.REPEATED, device, us, number, "with another payload")
                return
            last = self._restart(device, row, number)
        elif number > last:
            missing, room = range(last + 1, number), MOST_GAPS - len(gaps)
            for one in missing[:room]:
                if (stream, device, one) not in self._explained:
                    gaps[one] = us
            if len(missing) > room:
                self._find(Kind.MISSING, device, us, number - 1, f"and {len(missing) - room - 1:,} numbers before it")
        elif number in gaps:
            del gaps[number]
            self._find(Kind.REORDERED, device, us, number, f"after {last}")
        elif number <= RESTART:
            last = self._restart(device, row, number)
        else:
            return  # older than the window's first number, or a copy of it
        self._last[row] = max(last, number)
        self._recent[row, at], self._crcs[row, at] = number, crc

    def _restart(self, device: str, row: int, number: int) -> int:
        self.found += self._missing(device, row)
        self._gaps[row].clear()
        self._recent[row] = NO_NUMBER
        return number

    def _find(self, kind: str, device: str, us: int, number: int, detail: str) -> None:
        self.found.append(Finding(Hop.DEVICE, kind, device, us, f"number {number}", detail))

    def _missing(self, device: str, row: int) -> Iterator[Finding]:
        for number, us in self._gaps.get(row, {}).items():
            yield Finding(Hop.DEVICE, Kind.MISSING, device, us, f"number {number}", "the device's own number")

    def end(self) -> Iterator[Finding]:
        """Yield all findings."""
        yield from self.found
        for (_, device), row in self._rows.items():
            yield from self._missing(device, row)

"""Entries of a partition that a subscription has acknowledged, from Pulsar's admin."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from bridge.contract import Position

__all__ = ["Acknowledged"]

_RANGE: Final = re.compile(r"([(\[])(-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)([)\]])")


class Acknowledged:
    """All entries up to and with ``until``, and ranges after it."""

    def __init__(self, cursor: Mapping[str, Any]) -> None:
        """``cursor`` is one of ``internalStats``. Raises ValueError if its position is malformed."""
        self.until = Position.parse(cursor["markDeletePosition"])
        self._ranges: list[tuple[Position, Position]] = []  # first and last entry
        for opened, *numbers, closed in _RANGE.findall(str(cursor.get("individuallyDeletedMessages") or "")):
            ledger, entry, to_ledger, to_entry = map(int, numbers)
            first = Position(ledger, entry + (opened == "("))
            self._ranges.append((first, Position(to_ledger, to_entry - (closed == ")"))))
        self._ranges.sort()

    def covers(self, ledger: int, entry: int) -> bool:
        """Return whether the whole entry is acknowledged."""
        at = Position(ledger, entry)
        if at <= self.until:
            return True
        found = bisect_right(self._ranges, at, key=lambda one: one[0]) - 1
        return found >= 0 and at <= self._ranges[found][1]

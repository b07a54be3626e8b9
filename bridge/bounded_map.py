"""A dict, bounded in bytes, whose keys are names that devices choose.

Devices may choose any number of names, so each map from names is bounded (H35). The oldest entry is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

__all__ = ["BoundedMap"]

V = TypeVar("V")

_ENTRY: Final = 160
"""Approximate size of an entry of an OrderedDict without key and value, in bytes."""


class BoundedMap(OrderedDict[str, V]):
    """Keeps at most ``most_bytes``. An entry counts ``each`` bytes, and ``copies`` times the size of its name.

    ``put`` of an existing name makes it the newest.
    """

    def __init__(self, most_bytes: int, each: int, copies: int = 1) -> None:
        super().__init__()
        self._most = most_bytes
        self._each = each + _ENTRY
        self._copies = copies
        self.bytes = 0
        """Approximate size of the map in bytes, never above its bound."""

    def _cost(self, name: str) -> int:
        # Not sys.getsizeof: it grows if a C extension requests the UTF-8; a name must count the same at its removal.
        text = 49 + len(name) if name.isascii() else 76 + 4 * len(name)
        return self._each + self._copies * text

    def put(self, name: str, value: V) -> None:
        """Put a value, and drop the oldest entries until the map fits; also this one if it alone is too large."""
        if name in self:
            self.move_to_end(name)
        else:
            self.bytes += self._cost(name)
        self[name] = value
        while self.bytes > self._most:
            oldest, _ = self.popitem(last=False)
            self.bytes -= self._cost(oldest)

    def has_room(self, name: str) -> bool:
        """Return whether ``put`` of ``name`` drops no entry."""
        return name in self or self.bytes + self._cost(name) <= self._most

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self.bytes = 0

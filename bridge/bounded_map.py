"""A dict whose keys are names that devices choose, bounded in bytes. Pure.

Devices may invent names without end, so no map from names may grow with them (H35). What was put longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

__all__ = ["BoundedMap"]

V = TypeVar("V")

_ENTRY: Final = 160
"""What an entry of an OrderedDict costs beside key and value, in bytes, roughly."""


class BoundedMap(OrderedDict[str, V]):
    """Keeps at most ``most_bytes``. An entry counts ``each`` bytes, and ``copies`` times the size of its name.

    A name that is put again becomes the youngest.
    """

    def __init__(self, most_bytes: int, each: int, copies: int = 1) -> None:
        super().__init__()
        self._most = most_bytes
        self._each = each + _ENTRY
        self._copies = copies
        self.bytes = 0
        """What it holds, in bytes, roughly; never above its bound."""

    def _cost(self, name: str) -> int:
        # Not sys.getsizeof: it grows when a C extension has asked for the UTF-8, and what is taken off must be what was added.
        text = 49 + len(name) if name.isascii() else 76 + 4 * len(name)
        return self._each + self._copies * text

    def put(self, name: str, value: V) -> None:
        """Put a value, and drop the oldest ones while there are too many bytes; also this one where it alone is too large."""
        if name in self:
            self.move_to_end(name)
        else:
            self.bytes += self._cost(name)
        self[name] = value
        while self.bytes > self._most:
            oldest, _ = self.popitem(last=False)
            self.bytes -= self._cost(oldest)

    def has_room(self, name: str) -> bool:
        """Return whether ``name`` can be put and none is dropped for it."""
        return name in self or self.bytes + self._cost(name) <= self._most

    def clear(self) -> None:
        """Drop all."""
        super().clear()
        self.bytes = 0

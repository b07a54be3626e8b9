"""Presence: signs of life and of absence, by device, in any order.

An absence counts only if it is newer than the last sign of life (H31); a sign of life ends every absence that is not newer.
A device without a sign does not count as absent. The memory is bounded in bytes, since devices name themselves (H35); the
device with the least recent sign is forgotten first, and then counts as online.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.bounded_map import BoundedMap
from bridge.mqtt.types import Message
from bridge.routing.templates import Filter
from bridge.settings.push import PresenceRule

__all__ = ["Presence", "PresenceRules", "Sign"]

_KNOWN_BYTES: Final = 96 * 1024 * 1024
"""Some 200,000 devices with usual names."""


class Presence:
    """What is known of the devices of a partition. Times are µs since the epoch."""

    def __init__(self, most_bytes: int = _KNOWN_BYTES) -> None:
        # Last sign of life, last sign of absence.
        self._known: BoundedMap[tuple[int, int]] = BoundedMap(most_bytes, each=192)

    def alive(self, device: str, at_us: int) -> bool:
        """Note a sign of life. Returns whether it is the newest that is known of the device."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us < absent:
            return False
        self._known.put(device, (max(seen, at_us), 0))
        return True

    def gone(self, device: str, at_us: int) -> bool:
        """Note a sign of absence. Returns whether it counts."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us <= seen:
            return False
        self._known.put(device, (seen, max(absent, at_us)))
        return True

    def absent(self, device: str) -> bool:
        """Return whether the last that is known of the device is its absence."""
        return self._known.get(device, (0, 0))[1] > 0

    def seen_us(self, device: str) -> int:
        """Return when the device last gave a sign of life, 0 when that is not known."""
        return self._known.get(device, (0, 0))[0]


class Sign(NamedTuple):
    """What one message says of a device."""

    device: str
    alive: bool


class PresenceRules:
    """Reads birth and will messages."""

    def __init__(self, rules: Sequence[PresenceRule]) -> None:
        """Raises ValueError for a filter that is none or that names no device."""
        self._rules = [(Filter.parse(rule.filter), {text.encode() for text in rule.absent}) for rule in rules]
        self.filters = tuple(dict.fromkeys(found.mqtt for found, _ in self._rules))

    def sign(self, message: Message) -> Sign | None:
        """Return what the message says, None when no rule is about it; the first rule that matches decides."""
        for found, absent in self._rules:
            captures = found.match(message.topic.split("/"))
            if captures is not None:
                return Sign(captures["device"], message.payload.strip() not in absent)
        return None

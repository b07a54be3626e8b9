"""Who is there: signs of life and of absence, by device, whatever order they come in. Pure.

An absence counts only when it is newer than the last sign of life (H31); a sign of life ends every absence that is
not newer than itself. What is not known of a device is no absence. The number of devices is bounded, since they name
themselves; the one that was heard of least lately is forgotten first, and a forgotten one counts as there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.mqtt.types import Message
from bridge.settings.push import PresenceRule
from bridge.topic_templates import Filter

__all__ = ["Presence", "PresenceRules", "Sign"]

_MOST: Final = 200_000


class Presence:
    """What is known of the devices of a partition. Times are µs since the epoch."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[int, int]] = (
            OrderedDict()
        )  # last sign of life, last sign of absence

    def __len__(self) -> int:
        return len(self._known)

    def _note(self, device: str, seen: int, absent: int) -> None:
        self._known[device] = seen, absent
        self._known.move_to_end(device)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def alive(self, device: str, at_us: int) -> bool:
        """Note a sign of life. Returns whether it is the newest that is known of the device."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us < absent:
            return False
        self._note(device, max(seen, at_us), 0)
        return True

    def gone(self, device: str, at_us: int) -> bool:
        """Note a sign of absence. Returns whether it counts."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us <= seen:
            return False
        self._note(device, seen, max(absent, at_us))
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

"""Birth and will messages: what a message says of its device, by ``push.presence.rules``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bridge.mqtt.types import Message
from bridge.routing.templates import Filter
from bridge.settings.push import PresenceRule

__all__ = ["PresenceRules", "Sign"]


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

"""The data of a message between its arrival and its acknowledgement in the ingest tier."""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.pulsar.acks import Entry

__all__ = ["Reading", "Stalled"]

_NONE: Final[dict[str, str]] = {}


class Reading(Entry):
    """A message to store in Pulsar."""

    __slots__ = ("arrived", "event_ms", "head", "key", "payload", "properties", "size", "topic")

    def __init__(
        self,
        epoch: int,
        mid: int,
        arrived: float,
        payload: bytes = b"",
        topic: str = "",
        key: str = "",
        properties: dict[str, str] = _NONE,
        size: int = 0,
        event_ms: int = 0,
        head: bytes = b"",
    ) -> None:
        self.epoch = epoch
        self.mid = mid
        self.stored = False
        self.arrived = arrived
        """Monotonic time of arrival, in seconds."""
        self.payload = payload
        self.topic = topic
        """Full name of its Pulsar topic."""
        self.key = key
        self.properties = properties
        """Never mutated, because messages of one topic may share them."""
        self.size = size
        """Bytes that count against Pulsar's limit."""
        self.event_ms = event_ms
        self.head = head
        """Key and properties, encoded for ``bridge.pulsar.wire``."""


class Stalled(NamedTuple):
    """A topic or partition with messages that are not stored."""

    name: str
    waiting: int
    oldest: float
    """Arrival of the first of them, in seconds of the monotonic clock."""
    why: str
    """The known cause, empty if none is known."""

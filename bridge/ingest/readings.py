"""A message between its arrival and its acknowledgement, as the ingest tier passes it on. Plain data."""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.acks import Entry

__all__ = ["Reading", "Stalled"]

_NONE: Final[dict[str, str]] = {}


class Reading(Entry):
    """A message on its way into Pulsar."""

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
        """Full name of the Pulsar topic that it is for."""
        self.key = key
        self.properties = properties
        """Never changed in place: messages of one topic may share them."""
        self.size = size
        """What counts against Pulsar's limit, in bytes."""
        self.event_ms = event_ms
        self.head = head
        """Key and properties, encoded for ``bridge.pulsar_wire``."""


class Stalled(NamedTuple):
    """A topic or partition with messages that are not stored."""

    name: str
    waiting: int
    oldest: float
    """When the first of them arrived, in seconds of the monotonic clock."""
    why: str
    """What is known of the cause, empty when nothing is."""

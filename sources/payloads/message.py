"""The message around a payload, for a decoder in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["Message"]


@dataclass(frozen=True)
class Message:
    """A message around its payload.

    A decoder is a function ``decode(payload: bytes, message: Message) -> Mapping | Iterable[Mapping] | None``: a row, any
    number of rows, or None for what is not a reading. What it raises is the fault of that payload alone.
    """

    topic: str = ""
    """MQTT topic."""
    device: str | None = None
    captures: Mapping[str, str] = field(default_factory=dict)
    """What the names in the filter stand for in the topic."""
    arrival_time: datetime | None = None
    """When ingest took it, in UTC."""
    user_properties: tuple[tuple[str, str], ...] = ()
    """MQTT 5 user properties, in their order."""

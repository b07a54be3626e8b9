"""The message around a payload, for a decoder in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["Message"]


@dataclass(frozen=True)
class Message:
    """The topic, device and properties of a payload.

    A decoder is a function ``decode(payload: bytes, message: Message) -> Mapping | Iterable[Mapping] | None``. It
    returns a row, any number of rows, or None for a payload that is not a reading. An error fails only that payload.
    """

    topic: str = ""
    """MQTT topic."""
    device: str | None = None
    captures: Mapping[str, str] = field(default_factory=dict)
    """Parts of the topic captured by the names in the filter."""
    arrival_time: datetime | None = None
    """When ingest received it, in UTC."""
    user_properties: tuple[tuple[str, str], ...] = ()
    """MQTT 5 user properties, in their order."""

"""What stands on the presence topic: when a device was last heard of. Pure.

Ingest writes a record when a device publishes after a silence, and while it goes on publishing one every
``ingest.presence_every_s`` seconds. The key is the device, the last record counts; an empty payload removes the
device. Records are best effort: one that is lost delays what follows from it until the device's next one.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from bridge.contract import PRESENCE_VERSION
from bridge.decoding import LAST_US, checked_text, checked_whole, decodes, json_record

__all__ = ["PresenceRecord"]


class PresenceRecord(NamedTuple):
    """A sign of life, as the payload of a message whose key is the device."""

    seen_us: int
    """When a message of the device arrived at ingest, in µs since the epoch, by the clock of that host."""
    link: str = ""
    """Name of the link that brought it."""

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        body = {"v": PRESENCE_VERSION, "seen_us": self.seen_us, "link": self.link}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    @decodes("a record of presence")
    def decode(cls, payload: bytes) -> PresenceRecord:
        """Read a record back. Raises ContractError when the payload is not one of this version."""
        body = json_record(payload, "record of presence", [PRESENCE_VERSION])
        return cls(checked_whole(body["seen_us"], 0, LAST_US), checked_text(body.get("link", "")))

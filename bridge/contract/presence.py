"""The records of the presence topic: the last sign of life of each device.

Ingest writes a record if a device publishes after a silence. While the device continues, ingest writes one every
``ingest.presence_interval`` seconds. The key is the device, the last record counts; an empty payload removes the
device. Records are best effort: the next record of a device replaces a lost one.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from bridge.contract import PRESENCE_VERSION
from bridge.contract.decoding import LAST_US, checked_text, checked_whole, decodes, json_record

__all__ = ["PresenceRecord"]


class PresenceRecord(NamedTuple):
    """A sign of life, as the payload of a message whose key is the device."""

    seen_us: int
    """Arrival of a message of the device at ingest (µs since the epoch, clock of that host)."""
    link: str = ""
    """Name of the link of that message."""

    def encode(self) -> bytes:
        """Return the record as the JSON payload of its message."""
        body = {"v": PRESENCE_VERSION, "seen_us": self.seen_us, "link": self.link}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    @decodes("a record of presence")
    def decode(cls, payload: bytes) -> PresenceRecord:
        """Read a record. Raises ContractError if the payload is not one of this version."""
        body = json_record(payload, "record of presence", [PRESENCE_VERSION])
        return cls(checked_whole(body["seen_us"], 0, LAST_US), checked_text(body.get("link", "")))

"""Readings of wearables as devices send them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from bridge import contract

__all__ = ["Message", "reading"]

ARRIVAL = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Message:
    """A message of a device, as ingest publishes it."""

    device: str
    number: int
    payload: bytes

    @property
    def properties(self) -> dict[str, str]:
        """The properties that ingest gives it."""
        return {
            contract.P_INGEST: contract.encode_ingest(link="test", protocol="5", rule=None),
            contract.P_DEVICE: self.device,
            contract.P_TOPIC: f"wearables/{self.device}/glucose",
            contract.P_COMMAND_TOPIC: f"devices/{self.device}/commands",
        }

    @property
    def arrival_ms(self) -> int:
        """When it came to ingest."""
        return int(ARRIVAL.timestamp() + self.number) * 1000


def reading(device: str, number: int, value: Any) -> Message:
    """Return a glucose reading, five minutes after the one before it."""
    at = datetime(2010, 3, 24, tzinfo=timezone.utc) + timedelta(minutes=5 * number)
    body = {"id": f"{device}-{number}", "ts": at.isoformat().replace("+00:00", "Z"), "glucose": value}
    return Message(device, number, json.dumps(body).encode())

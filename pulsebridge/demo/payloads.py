"""What a device of the demo sends, and by which name the audit knows a payload again. Pure.

The audit joins the devices' journals, Pulsar and Delta by ``record_id``: the id that the payload carries, or, for
a payload that carries none (a fault that the fleet sends on purpose), the SHA-256 of its bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

__all__ = ["FAULTS", "decode", "encode", "encode_fault", "record_id"]

FAULTS: Final = ("implausible", "no_value", "cut_short")
"""Kinds of faulty payloads: a value that no sensor measures, no value at all, JSON cut in the middle."""

_IMPLAUSIBLE: Final = 9999.0


def encode(reading_id: str, ts: str, metric: str, value: float, sent_us: int) -> bytes:
    """Return the JSON payload of one reading. ``sent_us`` is the time of sending, µs since the epoch."""
    return json.dumps(
        {"id": reading_id, "ts": ts, metric: value, "sent_us": sent_us}, separators=(",", ":")
    ).encode()


def encode_fault(kind: str, reading_id: str, ts: str, metric: str, sent_us: int) -> bytes:
    """Return a payload that has the fault ``kind``, one of ``FAULTS``. Raises ValueError for another."""
    if kind == "implausible":
        return encode(reading_id, ts, metric, _IMPLAUSIBLE, sent_us)
    if kind == "no_value":
        return json.dumps({"id": reading_id, "ts": ts, "sent_us": sent_us}, separators=(",", ":")).encode()
    if kind == "cut_short":
        return encode(reading_id, ts, metric, 0.0, sent_us)[:-9]
    raise ValueError(f"no such fault: {kind!r}; there are {', '.join(FAULTS)}")


def decode(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a payload, None when it holds none."""
    try:
        body = json.loads(payload)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def record_id(payload: bytes) -> str:
    """Return the id in the payload, or ``sha256:…`` of its bytes when it has none."""
    body = decode(payload)
    if body is not None and isinstance(body.get("id"), str):
        return str(body["id"])
    return f"sha256:{hashlib.sha256(payload).hexdigest()[:32]}"

"""What a dead letter looks like: the payload, or its head when it is too large, and why it came here (H5).

It decides the message; who writes it, and what is acknowledged afterwards, is decided by the callers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bridge.contract import (
    P_DEAD_AT,
    P_DEAD_KEY,
    P_DEAD_LENGTH,
    P_DEAD_REASON,
    P_DEAD_SHA256,
    P_DEAD_TOPIC,
    P_DEVICE,
)

__all__ = ["HEAD_BYTES", "MAX_WHOLE_BYTES", "dead_letter"]

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Payloads up to this size, in bytes, are kept whole."""

HEAD_BYTES = 64 * 1024
"""What is kept of a larger payload, in bytes; its length and SHA-256 tell which one it was."""


def dead_letter(
    payload: bytes,
    *,
    topic: str,
    device: str,
    reason: str,
    at_us: int,
    properties: Mapping[str, str] | None = None,
    key: str | None = None,
    whole_bytes: int = MAX_WHOLE_BYTES,
) -> tuple[bytes, dict[str, str]]:
    """Return payload and properties of the dead letter; its key is ``device``.

    ``topic`` is the Pulsar topic that the message was meant for and ``key`` the key there, None where it had none
    or the device's name; ``at_us`` now in µs since the epoch, ``properties`` what is known of the message beside.
    A payload above ``whole_bytes`` is cut to its head.
    """
    told = dict(properties or {}) | {
        P_DEAD_REASON: reason,
        P_DEAD_TOPIC: topic,
        P_DEAD_AT: str(at_us),
        P_DEVICE: device,
    }
    if key is not None and key != device:
        told[P_DEAD_KEY] = key
    if len(payload) > whole_bytes:
        told |= {P_DEAD_LENGTH: str(len(payload)), P_DEAD_SHA256: hashlib.sha256(payload).hexdigest()}
        payload = payload[:HEAD_BYTES]
    return payload, told

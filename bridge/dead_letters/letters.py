"""What a dead letter looks like: the payload, or its head when it is too large, and why it came here (H5).

It decides the message; who writes it, and what is acknowledged afterwards, is decided by the callers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from bridge.contract import (
    P_CORRELATION,
    P_DEAD_AT,
    P_DEAD_CUT,
    P_DEAD_KEY,
    P_DEAD_LENGTH,
    P_DEAD_REASON,
    P_DEAD_SHA256,
    P_DEAD_TOPIC,
    P_DEVICE,
    P_USER,
)
from bridge.display import printable

__all__ = ["HEAD_BYTES", "MAX_PROPERTIES_BYTES", "MAX_WHOLE_BYTES", "dead_letter"]

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Payloads up to this size, in bytes, are kept whole."""

HEAD_BYTES = 64 * 1024
"""What is kept of a larger payload, in bytes; its length and SHA-256 tell which one it was."""

MAX_PROPERTIES_BYTES = 1024 * 1024
"""What the properties may have together, in bytes. Pulsar chunks a payload, not properties: above its limit even a
chunking producer refuses a message for good, and this one has nowhere else to go."""

_KEPT_BYTES = 1024
_ENCODED = (P_USER, P_CORRELATION)


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

    ``reason`` may quote what a device sent; it is stored in the form that ``printable`` gives it.
    ``topic`` is the Pulsar topic that the message was meant for and ``key`` the key there, None where it had none
    or the device's name; ``at_us`` now in µs since the epoch, ``properties`` what is known of the message beside.
    A payload above ``whole_bytes`` is cut to its head.
    """
    told = dict(properties or {}) | {
        P_DEAD_REASON: printable(reason),
        P_DEAD_TOPIC: topic,
        P_DEAD_AT: str(at_us),
        P_DEVICE: device,
    }
    if key is not None and key != device:
        told[P_DEAD_KEY] = key
    if len(payload) > whole_bytes:
        told |= {P_DEAD_LENGTH: str(len(payload)), P_DEAD_SHA256: hashlib.sha256(payload).hexdigest()}
        payload = payload[:HEAD_BYTES]
    return payload, _bounded(told)


def _bounded(told: dict[str, str]) -> dict[str, str]:
    """Cut the longest properties to their heads until all fit; ``P_DEAD_CUT`` names them with length and SHA-256.

    Those that are no text of their own, user properties and correlation data, are left out instead.
    """
    sizes = {name: len(name.encode()) + len(value.encode()) for name, value in told.items()}
    total = sum(sizes.values())
    if total <= MAX_PROPERTIES_BYTES:
        return told
    cut: dict[str, list[object]] = {}
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        whole = told[name].encode()
        if total <= MAX_PROPERTIES_BYTES or len(whole) <= _KEPT_BYTES:
            break
        cut[name] = [len(whole), hashlib.sha256(whole).hexdigest()]
        if name in _ENCODED:
            del told[name]
            total -= sizes[name]
        else:
            told[name] = whole[:_KEPT_BYTES].decode("utf-8", "ignore")
            total -= len(whole) - _KEPT_BYTES
    return told | {P_DEAD_CUT: json.dumps(cut)}

"""Format of a dead letter: the payload or its head, and the reason (H5).

The callers write the message and decide which acknowledgement follows.
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
from bridge.contract.names import MAX_NAME_BYTES
from bridge.display import printable

__all__ = ["DEAD_PROPERTIES", "HEAD_BYTES", "MAX_PROPERTIES_BYTES", "MAX_WHOLE_BYTES", "dead_letter", "letter_key"]

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Payloads up to this size, in bytes, are kept whole."""

HEAD_BYTES = 64 * 1024
"""Bytes that are kept of a larger payload; its length and SHA-256 identify it."""

MAX_PROPERTIES_BYTES = 1024 * 1024
"""Most bytes of all properties together. Pulsar chunks a payload, not properties: above its limit even a chunking
producer refuses a message for good. No other topic accepts a refused dead letter."""

_KEPT_BYTES = 1024
_NAMED = 20
"""Most cut properties that ``P_DEAD_CUT`` names."""
_NAMED_BYTES = 800
"""Longest name, as JSON, which escapes a character with up to 12 bytes, that it names."""
_ENCODED = (P_USER, P_CORRELATION)
DEAD_PROPERTIES = (P_DEAD_REASON, P_DEAD_TOPIC, P_DEAD_AT, P_DEAD_LENGTH, P_DEAD_SHA256, P_DEAD_KEY)
"""What a dead letter adds to the properties of its message, besides ``P_DEAD_CUT``."""
_OWN = (*DEAD_PROPERTIES, P_DEVICE)


def letter_key(name: str) -> str:
    """Return the key of a dead letter from the name of its device or another name; cut it if it is too long.

    Each chunk of a large message carries the key (H35).
    """
    if len(name) <= MAX_NAME_BYTES // 4:
        return name
    return name.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore")


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
    properties_bytes: int = MAX_PROPERTIES_BYTES,
) -> tuple[bytes, dict[str, str]]:
    """Return payload and properties of the dead letter; its key is ``letter_key(device)``.

    ``reason`` may quote data of a device; it is stored in its ``printable`` form. ``topic`` is the original Pulsar
    topic and ``key`` the key there, None for no key or the device's name. ``at_us`` is now in µs since the epoch,
    ``properties`` are the other properties of the message. A payload above ``whole_bytes`` is cut to its head;
    properties above ``properties_bytes`` together are cut or left out.
    """
    written = dict(properties or {}) | {
        P_DEAD_REASON: printable(reason),
        P_DEAD_TOPIC: topic,
        P_DEAD_AT: str(at_us),
        P_DEVICE: device,
    }
    if key is not None and key != device:
        written[P_DEAD_KEY] = key
    if len(payload) > whole_bytes:
        written |= {P_DEAD_LENGTH: str(len(payload)), P_DEAD_SHA256: hashlib.sha256(payload).hexdigest()}
        payload = payload[:HEAD_BYTES]
    return payload, _bounded(written, min(properties_bytes, MAX_PROPERTIES_BYTES))


def _bounded(properties: dict[str, str], most: int) -> dict[str, str]:
    """Cut the longest properties to their heads until all fit; ``P_DEAD_CUT`` names them with length and SHA-256.

    It leaves out encoded properties instead: user properties and correlation data. It also leaves out properties of
    other writers that are too many or have too long names. ``P_DEAD_CUT`` names only some of many.
    """
    sizes = {name: len(name.encode()) + len(value.encode()) for name, value in properties.items()}
    total = sum(sizes.values())
    if total <= most:
        return properties
    cut: dict[str, list[object]] = {}

    def shorten(name: str, kept: str | None) -> int:
        whole = properties.pop(name).encode()
        if len(cut) < _NAMED and len(json.dumps(name)) <= _NAMED_BYTES:
            cut.setdefault(name, [len(whole), hashlib.sha256(whole).hexdigest()])
        if kept is None:
            return len(name.encode()) + len(whole)
        properties[name] = kept
        return len(whole) - len(kept.encode())

    longest = sorted(sizes, key=lambda name: -sizes[name])
    for name in longest:
        if total > most and len(properties[name].encode()) > _KEPT_BYTES:
            head = properties[name].encode()[:_KEPT_BYTES].decode("utf-8", "ignore")
            total -= shorten(name, None if name in _ENCODED else head)
    for name in longest:
        if total > most and name in properties and name not in _OWN:
            total -= shorten(name, None)
    return properties | {P_DEAD_CUT: json.dumps(cut)}

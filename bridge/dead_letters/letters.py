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
from bridge.names import MAX_NAME_BYTES

__all__ = ["HEAD_BYTES", "MAX_PROPERTIES_BYTES", "MAX_WHOLE_BYTES", "dead_letter", "letter_key"]

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Payloads up to this size, in bytes, are kept whole."""

HEAD_BYTES = 64 * 1024
"""What is kept of a larger payload, in bytes; its length and SHA-256 tell which one it was."""

MAX_PROPERTIES_BYTES = 1024 * 1024
"""What the properties may have together, in bytes. Pulsar chunks a payload, not properties: above its limit even a
chunking producer refuses a message for good, and this one has nowhere else to go."""

_KEPT_BYTES = 1024
_NAMED = 20
"""Properties that were cut and are named."""
_NAMED_CHARACTERS = 256
_ENCODED = (P_USER, P_CORRELATION)
_OWN = (P_DEAD_REASON, P_DEAD_TOPIC, P_DEAD_AT, P_DEAD_LENGTH, P_DEAD_SHA256, P_DEAD_KEY, P_DEVICE)


def letter_key(name: str) -> str:
    """Return the key of the dead letter of a device, or of what else names it: the name, or the head of one too long.

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

    ``reason`` may quote what a device sent; it is stored in the form that ``printable`` gives it.
    ``topic`` is the Pulsar topic that the message was meant for and ``key`` the key there, None where it had none
    or the device's name; ``at_us`` now in µs since the epoch, ``properties`` what is known of the message beside.
    A payload above ``whole_bytes`` is cut to its head, properties above ``properties_bytes`` together are cut or left out.
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
    return payload, _bounded(told, min(properties_bytes, MAX_PROPERTIES_BYTES))


def _bounded(told: dict[str, str], most: int) -> dict[str, str]:
    """Cut the longest properties to their heads until all fit; ``P_DEAD_CUT`` names them with length and SHA-256.

    Those that are no text of their own, user properties and correlation data, are left out instead, and so are those of
    other writers where there are too many of them, or their names are too long. Of many only some are named.
    """
    sizes = {name: len(name.encode()) + len(value.encode()) for name, value in told.items()}
    total = sum(sizes.values())
    if total <= most:
        return told
    cut: dict[str, list[object]] = {}

    def shorten(name: str, kept: str | None) -> int:
        whole = told.pop(name).encode()
        if len(cut) < _NAMED and len(name) <= _NAMED_CHARACTERS:
            cut.setdefault(name, [len(whole), hashlib.sha256(whole).hexdigest()])
        if kept is None:
            return len(name.encode()) + len(whole)
        told[name] = kept
        return len(whole) - len(kept.encode())

    longest = sorted(sizes, key=lambda name: -sizes[name])
    for name in longest:
        if total > most and len(told[name].encode()) > _KEPT_BYTES:
            head = told[name].encode()[:_KEPT_BYTES].decode("utf-8", "ignore")
            total -= shorten(name, None if name in _ENCODED else head)
    for name in longest:
        if total > most and name in told and name not in _OWN:
            total -= shorten(name, None)
    return told | {P_DEAD_CUT: json.dumps(cut)}

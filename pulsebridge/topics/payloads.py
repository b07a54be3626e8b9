"""Kinds of payloads, and the paths in a JSON payload that may contain a device name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

__all__ = ["KINDS", "Kind", "device_paths", "kind_of"]

Kind = Literal["JSON", "number", "text", "binary", "empty"]
KINDS: Final[tuple[Kind, ...]] = ("JSON", "number", "text", "binary", "empty")

_HEAD_BYTES: Final = 64 * 1024
"""Of a larger payload only this head is inspected, because discovery must keep up with the broker."""

_NUMBER: Final = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*\Z")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_DEVICE_NAMES: Final = frozenset(
    [
        "assetid",
        "deveui",
        "deviceeui",
        "device",
        "deviceid",
        "devicename",
        "devid",
        "imei",
        "mac",
        "macaddress",
        "nodeid",
        "sensorid",
        "serial",
        "serialnumber",
        "sn",
        "thingid",
    ]
)
_SEPARATORS: Final = re.compile(r"[-_ .]")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def kind_of(payload: bytes) -> tuple[Kind, Any]:
    """Return the kind of a payload and its JSON value, None if not JSON or too large."""
    if not payload:
        return "empty", None
    whole = len(payload) <= _HEAD_BYTES
    try:
        text = payload[:_HEAD_BYTES].decode("utf-8", "strict" if whole else "ignore")
    except UnicodeDecodeError:
        return "binary", None
    if text.lstrip()[:1] in ("{", "["):
        try:
            return "JSON", json.loads(text) if whole else None
        except (ValueError, RecursionError):
            pass
    if _NUMBER.match(text[:100]) and len(text) <= 100:
        return "number", None
    return ("binary" if _CONTROL.search(text) else "text"), None


def device_paths(body: Any) -> Iterator[tuple[str, str]]:
    """Yield path (``$.path``) and text of each JSON member whose name suggests a device.

    It inspects the members of the object and of the objects in it, no deeper.
    """
    if not isinstance(body, dict):
        return
    for name, value in list(body.items())[:50]:
        if isinstance(value, dict):
            for inner, text in list(value.items())[:50]:
                if _names_a_device(inner) or (_names_a_device(name) and inner in ("id", "name")):
                    yield from _path((name, inner), text)
        elif _names_a_device(name):
            yield from _path((name,), value)


def _names_a_device(name: str) -> bool:
    return _SEPARATORS.sub("", name).lower() in _DEVICE_NAMES


def _path(names: tuple[str, ...], value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool) or not isinstance(value, str | int) or not all(map(_PLAIN.match, names)):
        return
    text = str(value) if not isinstance(value, int) or abs(value) < 10**20 else ""
    if text:
        yield "$." + ".".join(names), text

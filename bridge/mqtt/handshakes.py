"""The packets that begin, change and end an MQTT session: CONNECT, CONNACK, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT.

Of MQTT 5, 3.1.1 and 3.1. Reason codes are those of MQTT 5 (2.4) in all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bridge.mqtt.packets import MalformedError, length_bytes, text_bytes, variable
from bridge.mqtt.types import Connected, Subscription, Will
from bridge.settings.mqtt import MqttSettings

__all__ = [
    "DISCONNECT_PACKET",
    "Connack",
    "connack",
    "connect_packet",
    "reason_name",
    "subscribe_packet",
    "unsubscribe_packet",
]

DISCONNECT_PACKET: Final = b"\xe0\0"
"""DISCONNECT with the reason 0, "Normal disconnection", which may be left out (MQTT 5, 3.14.2.1)."""

_NAMES: Final = {"3.1": b"\0\6MQIsdp\3", "3.1.1": b"\0\4MQTT\4", "5": b"\0\4MQTT\5"}
"""Name and version of the protocol (MQTT 5, 3.1.2.1 and 3.1.2.2; MQTT 3.1, CONNECT)."""

_REASONS: Final = {
    0x00: "Normal disconnection",
    0x04: "Disconnect with will message",
    0x80: "Unspecified error",
    0x81: "Malformed packet",
    0x82: "Protocol error",
    0x83: "Implementation specific error",
    0x84: "Unsupported protocol version",
    0x85: "Client identifier not valid",
    0x86: "Bad user name or password",
    0x87: "Not authorized",
    0x88: "Server unavailable",
    0x89: "Server busy",
    0x8A: "Banned",
    0x8B: "Server shutting down",
    0x8C: "Bad authentication method",
    0x8D: "Keep alive timeout",
    0x8E: "Session taken over",
    0x8F: "Topic filter invalid",
    0x90: "Topic name invalid",
    0x93: "Receive maximum exceeded",
    0x94: "Topic alias invalid",
    0x95: "Packet too large",
    0x96: "Message rate too high",
    0x97: "Quota exceeded",
    0x98: "Administrative action",
    0x99: "Payload format invalid",
    0x9A: "Retain not supported",
    0x9B: "QoS not supported",
    0x9C: "Use another server",
    0x9D: "Server moved",
    0x9E: "Shared subscriptions not supported",
    0x9F: "Connection rate exceeded",
    0xA0: "Maximum connect time",
    0xA1: "Subscription identifiers not supported",
    0xA2: "Wildcard subscriptions not supported",
}
"""Of CONNACK and DISCONNECT (MQTT 5, 2.4)."""

_RETURN_CODES: Final = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
"""Of CONNACK before MQTT 5 (MQTT 3.1.1, 3.2.2.3); a broker that lacks MQTT 5 answers it with the first of them."""

_BYTE, _TWO, _FOUR, _TEXT, _PAIR = range(5)
_SIZES: Final = {_BYTE: 1, _TWO: 2, _FOUR: 4}
_KINDS: Final = {
    0x11: _FOUR,  # session expiry
    0x12: _TEXT,  # assigned client identifier
    0x13: _TWO,  # server keep alive
    0x15: _TEXT,  # authentication method
    0x16: _TEXT,  # authentication data
    0x1A: _TEXT,  # response information
    0x1C: _TEXT,  # server reference
    0x1F: _TEXT,  # reason string
    0x21: _TWO,  # receive maximum
    0x22: _TWO,  # topic alias maximum
    0x24: _BYTE,  # maximum QoS
    0x25: _BYTE,  # retain available
    0x26: _PAIR,  # user property
    0x27: _FOUR,  # maximum packet size
    0x28: _BYTE,  # wildcard subscription available
    0x29: _BYTE,  # subscription identifiers available
    0x2A: _BYTE,  # shared subscription available
}
"""The properties of CONNACK by their identifiers (MQTT 5, 3.2.2.3)."""


def reason_name(code: int) -> str:
    """Return the name of a reason code of CONNACK or DISCONNECT (MQTT 5, 2.4)."""
    return _REASONS.get(code, f"unknown reason {code:#x}")


@dataclass(frozen=True, slots=True)
class Connack:
    """The content of a CONNACK (MQTT 5, 3.2). From 0x80 on ``reason`` is a refusal."""

    reason: int
    granted: Connected
    """The link sets its epoch."""
    keep_alive_s: int | None = None
    """The keep-alive that the broker sets instead of ours, in seconds (MQTT 5, 3.2.2.3.14)."""


def connack(body: bytes, *, mqtt5: bool) -> Connack:
    """Read the bytes after the fixed header of a CONNACK. Texts are skipped, so that none can be invalid.

    Raises MalformedError if it cannot be read.
    """
    if len(body) < 2:
        raise MalformedError("it has no reason code")
    reason = _RETURN_CODES.get(body[1], body[1])
    if 0 < reason < 0x80:
        raise MalformedError(f"it has the reason code {reason}, which no CONNACK has")
    present = bool(body[0] & 1)
    if not mqtt5 or len(body) == 2:  # a broker that lacks MQTT 5 refuses it without properties
        return Connack(reason, Connected(0, present))
    found = _numbers(body)
    for kind, name in ((0x21, "Receive Maximum"), (0x27, "Maximum Packet Size")):
        if found.get(kind) == 0:
            raise MalformedError(f"it has the {name} 0")
    granted = Connected(
        0,
        present,
        found.get(0x21, 65_535),
        found.get(0x27, 0),
        found.get(0x24, 2),
        bool(found.get(0x25, 1)),
    )
    return Connack(reason, granted, found.get(0x13))


def _numbers(body: bytes) -> dict[int, int]:
    length, at = variable(body, 2, len(body))
    stop = at + length
    if stop > len(body):
        raise MalformedError("its properties are longer than the packet")
    found: dict[int, int] = {}
    while at < stop:
        identifier = body[at]
        kind = _KINDS.get(identifier)
        at += 1
        if kind is None:
            raise MalformedError(f"it has the property {identifier}, which no CONNACK has")
        if kind in _SIZES:
            size = _SIZES[kind]
            found[identifier] = int.from_bytes(body[at : at + size], "big")
            at += size
        else:
            for _ in range(1 + (kind == _PAIR)):
                at += 2 + int.from_bytes(body[at : at + 2], "big")
    if at != stop:
        raise MalformedError("its properties end within one of them")
    return found


def connect_packet(
    settings: MqttSettings,
    client_id: str,
    *,
    persistent: bool,
    will: Will | None = None,
    receive_maximum: int = 65_535,
) -> bytes:
    """Return CONNECT (MQTT 5, 3.1) with the current credentials.

    Raises ValueError if a text is too long for MQTT or not UTF-8.
    """
    user, password = settings.credentials()
    flags = 0 if persistent else 0x02
    payload = text_bytes(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        payload += (b"\0" if settings.protocol == "5" else b"") + text_bytes(will.topic)
        payload += text_bytes(will.payload)
    if user is not None:
        flags |= 0x80
        payload += text_bytes(user)
        if password is not None:  # none without a user name (MQTT-3.1.2-22 of MQTT 3.1.1)
            flags |= 0x40
            payload += text_bytes(password)
    head = _NAMES[settings.protocol] + struct.pack("!BH", flags, int(settings.keep_alive))
    if settings.protocol == "5":
        properties = struct.pack("!BH", 0x21, receive_maximum)
        if persistent:
            properties += struct.pack("!BI", 0x11, int(settings.session_expiry))
        head += length_bytes(len(properties)) + properties
    return _packet(0x10, head + payload)


def subscribe_packet(mid: int, subscriptions: Sequence[Subscription], *, mqtt5: bool) -> bytes:
    """Return SUBSCRIBE (MQTT 5, 3.8). Raises ValueError for a filter that is too long or not UTF-8."""
    parts = [struct.pack("!H", mid), b"\0" if mqtt5 else b""]
    for one in subscriptions:
        how = one.retain_as_published << 3 | one.retain_handling << 4 if mqtt5 else 0
        parts += (text_bytes(one.filter), bytes([one.qos | how]))
    return _packet(0x82, b"".join(parts))


def unsubscribe_packet(mid: int, filters: Sequence[str], *, mqtt5: bool) -> bytes:
    """Return UNSUBSCRIBE (MQTT 5, 3.10). Raises ValueError for a filter that is too long or not UTF-8."""
    head = struct.pack("!H", mid) + (b"\0" if mqtt5 else b"")
    return _packet(0xA2, head + b"".join(map(text_bytes, filters)))


def _packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + length_bytes(len(body)) + body

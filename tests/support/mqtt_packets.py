"""MQTT 3.1.1 and 5 packets by hand, as far as a device needs them; shares no code with the product or with paho."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from tests.support.raw_mqtt import packet, text

__all__ = [
    "CONNACK",
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBLISH",
    "SUBACK",
    "Delivered",
    "Version",
    "connect",
    "delivered",
    "puback",
    "publish",
    "split",
    "subscribe",
]

Version = Literal["3.1.1", "5"]

CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x30, 0x40, 0x90
"""First byte of a packet, less its flags."""
PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"

_RESPONSE_TOPIC, _CORRELATION_DATA, _SESSION_EXPIRY, _USER = 0x08, 0x09, 0x11, 0x26
_FIXED: Final = {0x01: 1, 0x02: 4, 0x23: 2}
"""Sizes of properties of a PUBLISH that are numbers."""


class Delivered(NamedTuple):
    """A PUBLISH as a device gets it; the properties are empty for 3.1.1."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    response_topic: bytes
    correlation_data: bytes
    user: tuple[tuple[str, str], ...]


def connect(
    client_id: str, version: Version, *, clean: bool, keep_alive: int, will: tuple[str, bytes] | None = None
) -> bytes:
    """Return CONNECT; a session that is not clean lasts for an hour. The will goes out at QoS 1."""
    flags = (0x02 if clean else 0) | (0x0C if will else 0)
    body = text("MQTT") + bytes([5 if version == "5" else 4, flags]) + struct.pack("!H", keep_alive)
    if version == "5":
        body += _counted(b"" if clean else bytes([_SESSION_EXPIRY]) + struct.pack("!I", 3600))
    body += text(client_id)
    if will:
        body += b"\x00" if version == "5" else b""
        body += text(will[0]) + struct.pack("!H", len(will[1])) + will[1]
    return packet(0x10, body)


def subscribe(version: Version, mid: int, topic: str) -> bytes:
    """Return SUBSCRIBE to one filter at QoS 1."""
    return packet(0x82, struct.pack("!H", mid) + (b"\x00" if version == "5" else b"") + text(topic) + b"\x01")


def publish(version: Version, topic: bytes, payload: bytes, mid: int, correlation_data: bytes = b"") -> bytes:
    """Return PUBLISH at QoS 1; ``correlation_data`` is sent with MQTT 5 alone."""
    body = text(topic) + struct.pack("!H", mid)
    if version == "5":
        body += _counted(bytes([_CORRELATION_DATA]) + text(correlation_data) if correlation_data else b"")
    return packet(0x32, body + payload)


def puback(mid: int) -> bytes:
    """Return PUBACK, success."""
    return packet(PUBACK, struct.pack("!H", mid))


def split(received: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take whole packets from what was received: first byte and body of each."""
    at = 0
    while at + 2 <= len(received):
        length = shift = 0
        start = at + 1
        while True:
            if start >= len(received):
                del received[:at]
                return
            digit = received[start]
            start += 1
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        if start + length > len(received):
            break
        yield received[at], bytes(received[start : start + length])
        at = start + length
    del received[:at]


def delivered(version: Version, first: int, body: bytes) -> Delivered:
    """Read the body of a PUBLISH; at QoS 0 it has no packet identifier."""
    topic, at = _read(body, 0)
    mid = 0
    if first & 0x06:
        mid = int.from_bytes(body[at : at + 2], "big")
        at += 2
    response = correlation = b""
    user: list[tuple[str, str]] = []
    if version == "5":
        at, end = _properties(body, at)
        while at < end:
            kind, at = body[at], at + 1
            if kind in _FIXED:
                at += _FIXED[kind]
            elif kind == 0x0B:  # subscription identifier
                _, at = _number(body, at)
            elif kind == _USER:
                name, at = _read(body, at)
                value, at = _read(body, at)
                user.append((name.decode(), value.decode()))
            else:
                value, at = _read(body, at)
                if kind == _RESPONSE_TOPIC:
                    response = value
                elif kind == _CORRELATION_DATA:
                    correlation = value
    return Delivered(topic.decode(), body[at:], mid, bool(first & 0x08), response, correlation, tuple(user))


def _properties(body: bytes, at: int) -> tuple[int, int]:
    length, at = _number(body, at)
    return at, at + length


def _number(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        digit = body[at]
        at += 1
        value |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return value, at


def _read(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    return body[at + 2 : end], end


def _counted(properties: bytes) -> bytes:
    assert len(properties) < 128
    return bytes([len(properties)]) + properties

"""Packets of a running MQTT session, except the PUBLISH that arrives, and their data types."""

from __future__ import annotations

import struct
from typing import Final

from bridge.mqtt.types import Connected, PublishProperties

__all__ = [
    "CONNACK",
    "DISCONNECT",
    "NAMES",
    "PINGRESP",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SUBACK",
    "UNSUBACK",
    "MalformedError",
    "acknowledged",
    "body_of",
    "length_bytes",
    "misfit",
    "publish_packet",
    "publish_size",
    "short_packet",
    "subscribed",
    "text_bytes",
    "variable",
]

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 9, 11, 13, 14
NAMES: Final = (
    *(
        "type 0",
        "CONNECT",
        "CONNACK",
        "PUBLISH",
        "PUBACK",
        "PUBREC",
        "PUBREL",
        "PUBCOMP",
        "SUBSCRIBE",
        "SUBACK",
    ),
    *("UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)
"""Names of the packet types, by number (MQTT 5, 2.1.2)."""

_MAX_REMAINING: Final = 268_435_455


class MalformedError(ValueError):
    """Raised for a packet that MQTT calls malformed or a protocol error; its text names the problem."""


def variable(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the Variable Byte Integer at ``at`` (MQTT 5, 1.5.5), and the position after it.

    Raises MalformedError if it is not complete before ``end``, or has more than four bytes.
    """
    number = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            break
        digit = data[at]
        at += 1
        number |= (digit & 127) << shift
        if digit < 128:
            return number, at
    raise MalformedError("a length within it has no end (MQTT 5, 1.5.5)")


def body_of(data: bytes, at: int, length: int) -> bytes:
    """Return the bytes after the fixed header of the packet of ``length`` bytes at ``at``."""
    start = at + 2
    while data[start - 1] > 127:
        start += 1
    return data[start : at + length]


def acknowledged(body: bytes, *, mqtt5: bool) -> tuple[int, int]:
    """Return the packet identifier and the reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP (MQTT 5, 3.4.2).

    Any reason code is accepted, because below 0x80 it is a success, from 0x80 on a failure (MQTT 5, 2.4).
    Raises MalformedError if the packet identifier is missing.
    """
    if len(body) < 2:
        raise MalformedError("it has no packet identifier")
    return int.from_bytes(body[:2], "big"), body[2] if mqtt5 and len(body) > 2 else 0


def subscribed(body: bytes, *, mqtt5: bool) -> tuple[int, list[int]]:
    """Return the packet identifier and the codes of a SUBACK (MQTT 5, 3.9). Raises MalformedError if it is too short."""
    at = 2
    if mqtt5:
        length, at = variable(body, at, len(body))
        at += length
    if at >= len(body):
        raise MalformedError("it has no reason code")
    return int.from_bytes(body[:2], "big"), list(body[at:])


def short_packet(kind: int, mid: int) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP; success may be left out (MQTT 5, 3.4.2.1), in all versions alike."""
    return struct.pack("!BBH", kind << 4 | 2 * (kind == PUBREL), 2, mid)


def publish_packet(
    topic: str,
    payload: bytes,
    qos: int,
    mid: int,
    *,
    retain: bool = False,
    properties: PublishProperties | None = None,
    mqtt5: bool,
) -> bytes:
    """Return a PUBLISH (MQTT 5, 3.3); before MQTT 5 without properties.

    Raises ValueError if MQTT cannot encode it: a text is not UTF-8, or a part is too long.
    """
    head = text_bytes(topic) + (struct.pack("!H", mid) if qos else b"")
    if mqtt5:
        try:
            block = b"" if properties is None else _properties(properties)
        except struct.error as e:
            raise ValueError("a number in its properties is too large for MQTT") from e
        head += length_bytes(len(block)) + block
    size = len(head) + len(payload)
    return b"".join((bytes([0x30 | qos << 1 | retain]), length_bytes(size), head, payload))


def _properties(given: PublishProperties) -> bytes:
    # Identifiers and types: MQTT 5, 2.2.2.2.
    parts = [b"\x26" + text_bytes(name) + text_bytes(value) for name, value in given.user]
    if given.payload_format is not None:
        parts.append(struct.pack("!BB", 1, given.payload_format))
    if given.expiry_s is not None:
        parts.append(struct.pack("!BI", 2, given.expiry_s))
    if given.content_type is not None:
        parts.append(b"\x03" + text_bytes(given.content_type))
    if given.response_topic is not None:
        parts.append(b"\x08" + text_bytes(given.response_topic))
    if given.correlation_data is not None:
        parts.append(b"\x09" + text_bytes(given.correlation_data))
    return b"".join(parts)


def publish_size(topic: str, payload_bytes: int, properties: PublishProperties) -> int:
    """Return the bytes of a publish's MQTT 5 packet at QoS 1 or 2. Raises ValueError as ``publish_packet``."""
    packet = publish_packet(topic, b"", 1, 1, properties=properties, mqtt5=True)
    remaining = len(body_of(packet, 0, len(packet))) + payload_bytes
    return 1 + len(length_bytes(remaining)) + remaining


def misfit(
    broker: Connected,
    topic: str,
    payload_bytes: int,
    qos: int,
    *,
    retain: bool,
    properties: PublishProperties,
) -> str | None:
    """Return why ``broker`` does not accept this publish by the limits of its CONNACK (MQTT 5, 3.2.2.3), else None.

    A broker closes the connection if a packet exceeds these limits (MQTT-3.2.2-12, MQTT-3.2.2-14, MQTT-3.2.2-15). That
    delays all other publishes on the connection.
    """
    if qos > broker.maximum_qos:
        return f"it has qos {qos}, and the MQTT broker accepts at most {broker.maximum_qos} (Maximum QoS)"
    if retain and not broker.retain_available:
        return "it is retained, and the MQTT broker accepts no retained messages (Retain Available)"
    try:
        size = publish_size(topic, payload_bytes, properties)
    except UnicodeEncodeError:
        return "a text of it is not valid UTF-8 (MQTT-1.5.4-1)"
    except ValueError as e:
        return str(e)
    most = broker.maximum_packet_size or _MAX_REMAINING
    if size > most:
        return f"its packet has {size} bytes, and the MQTT broker accepts at most {most} (Maximum Packet Size)"
    return None


def text_bytes(value: str | bytes) -> bytes:
    """Return a text or binary data with its length in front (MQTT 5, 1.5.4 and 1.5.6).

    Raises ValueError for more than 65,535 bytes, and for a text that is not UTF-8.
    """
    data = value.encode() if isinstance(value, str) else value
    if len(data) > 65_535:
        raise ValueError("a part of it has more than 65535 bytes, the limit of MQTT")
    return len(data).to_bytes(2, "big") + data


def length_bytes(number: int) -> bytes:
    """Return a Variable Byte Integer (MQTT 5, 1.5.5). Raises ValueError for one that is too large."""
    if number > _MAX_REMAINING:
        raise ValueError(f"it has {number} bytes, more than MQTT allows")
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)

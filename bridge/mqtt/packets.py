"""The packets of an MQTT session, of MQTT 5, 3.1.1 and 3.1, except the PUBLISH that arrives.

Reason codes are those of MQTT 5 (2.4) in all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from bridge.mqtt.types import Connected, PublishProperties, Subscription, Will
from bridge.settings.mqtt import MqttSettings

__all__ = [
    "CONNACK",
    "DISCONNECT",
    "DISCONNECT_PACKET",
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
    "connack",
    "connect_packet",
    "misfit",
    "publish_packet",
    "publish_size",
    "reason_name",
    "short_packet",
    "subscribe_packet",
    "subscribed",
    "unsubscribe_packet",
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
        raise ValueError("a part of it is too long for MQTT, more than 65535 bytes")
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


def reason_name(code: int) -> str:
    """Return the name of a reason code of CONNACK or DISCONNECT (MQTT 5, 2.4)."""
    return _REASONS.get(code, f"unknown reason {code:#x}")


def connack(body: bytes, *, mqtt5: bool) -> tuple[int, Connected]:
    """Return the reason of a CONNACK, from 0x80 on a refusal, and its content; the link sets the epoch.

    Texts are skipped, so that none can be invalid. Raises MalformedError if it cannot be read.
    """
    if len(body) < 2:
        raise MalformedError("it has no reason code")
    reason = _RETURN_CODES.get(body[1], body[1])
    if 0 < reason < 0x80:
        raise MalformedError(f"it has the reason code {reason}, which no CONNACK has")
    present = bool(body[0] & 1)
    if not mqtt5 or len(body) == 2:  # a broker that lacks MQTT 5 refuses it without properties
        return reason, Connected(0, present)
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
        found.get(0x13),
        found.get(0x11),
        found.get(0x22, 0),
        bool(found.get(0x28, 1)),
        bool(found.get(0x2A, 1)),
    )
    return reason, granted


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
    settings: MqttSettings, *, persistent: bool, receive_maximum: int, will: Will | None = None
) -> bytes:
    """Return CONNECT (MQTT 5, 3.1) with the current credentials.

    Raises ValueError if a text is too long for MQTT or not UTF-8.
    """
    user, password = settings.credentials()
    flags = 0 if persistent else 0x02
    payload = text_bytes(settings.client_id)
    if will is not None:  # at QoS 1
        flags |= 0x04 | 1 << 3 | will.retain << 5
        if settings.protocol == "5":
            payload += struct.pack("!BBI", 5, 0x18, will.delay_s)
        payload += text_bytes(will.topic) + text_bytes(will.payload)
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

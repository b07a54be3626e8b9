"""Whether a broker accepts a publish, by the limits in its CONNACK (MQTT 5, 3.2.2.3).

A broker closes the connection if a packet exceeds these limits (MQTT-3.2.2-12, MQTT-3.2.2-14, MQTT-3.2.2-15). That
delays all other publishes on the connection.
"""

from __future__ import annotations

from typing import Final

from bridge.mqtt.types import Connected, PublishProperties

__all__ = ["misfit", "publish_size"]

_MAX_TEXT_BYTES: Final = 65_535
_MAX_REMAINING: Final = 268_435_455
"""The largest remaining length of a packet, in bytes (MQTT 5, 1.5.5)."""


def misfit(
    broker: Connected,
    topic: str,
    payload_bytes: int,
    qos: int,
    *,
    retain: bool,
    properties: PublishProperties,
) -> str | None:
    """Return why ``broker`` does not accept this publish, None if it may."""
    if qos > broker.maximum_qos:
        return f"it has qos {qos}, and the MQTT broker accepts at most {broker.maximum_qos} (Maximum QoS)"
    if retain and not broker.retain_available:
        return "it is retained, and the MQTT broker accepts no retained messages (Retain Available)"
    try:
        texts = _texts(topic, properties)
    except UnicodeEncodeError:
        return "a text of it is not valid UTF-8 (MQTT-1.5.4-1)"
    if any(len(text) > _MAX_TEXT_BYTES for text in texts):
        return f"a text of it has more than {_MAX_TEXT_BYTES} bytes, the limit of MQTT"
    size = publish_size(topic, payload_bytes, properties)
    most = broker.maximum_packet_size or _MAX_REMAINING
    if size > most:
        return f"its packet has {size} bytes, and the MQTT broker accepts at most {most} (Maximum Packet Size)"
    return None


def publish_size(topic: str, payload_bytes: int, properties: PublishProperties) -> int:
    """Return the bytes of a publish's MQTT 5 packet at QoS 1 or 2 (MQTT 5, 3.3)."""
    fixed = 2 * (properties.payload_format is not None) + 5 * (properties.expiry_s is not None)
    texts = _texts(topic, properties)
    # Each property of text or binary data has its identifier and two bytes of length; a user property is two texts.
    block = fixed + sum(2 + len(text) for text in texts[1:]) + len(texts[1:]) - len(properties.user)
    remaining = 2 + len(texts[0]) + 2 + _digits(block) + block + payload_bytes
    return 1 + _digits(remaining) + remaining


def _texts(topic: str, properties: PublishProperties) -> list[bytes]:
    return [
        topic.encode(),
        *(part.encode() for pair in properties.user for part in pair),
        *(text.encode() for text in (properties.content_type, properties.response_topic) if text is not None),
        *([] if properties.correlation_data is None else [properties.correlation_data]),
    ]


def _digits(length: int) -> int:
    return 1 + (length > 127) + (length > 16_383) + (length > 2_097_151)

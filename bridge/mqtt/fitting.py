"""Whether a broker takes a publish at all, by what its CONNACK said (MQTT 5, 3.2.2.3). Pure.

A broker closes the connection at a packet that is larger, or of a higher QoS, than it said (MQTT-3.2.2-12,
MQTT-3.2.2-14, MQTT-3.2.2-15), and with it everything that others wait for on this connection.
"""

from __future__ import annotations

from typing import Final

from bridge.mqtt.types import Connected, PublishProperties

__all__ = ["misfit", "publish_size"]

_MAX_TEXT_BYTES: Final = 65_535
_MAX_REMAINING: Final = 268_435_455
"""What a packet has at most behind its length (MQTT 5, 1.5.5)."""


def misfit(
    broker: Connected,
    topic: str,
    payload_bytes: int,
    qos: int,
    *,
    retain: bool,
    properties: PublishProperties,
) -> str | None:
    """Return why ``broker`` does not take this publish, None when it may."""
    if qos > broker.maximum_qos:
        return f"it has qos {qos}, and the MQTT broker takes at most {broker.maximum_qos} (Maximum QoS)"
    if retain and not broker.retain_available:
        return "it is retained, and the MQTT broker takes no retained messages (Retain Available)"
    try:
        texts = _texts(topic, properties)
    except UnicodeEncodeError:
        return "a text of it is not valid UTF-8 (MQTT-1.5.4-1)"
    if any(len(text) > _MAX_TEXT_BYTES for text in texts):
        return f"a text of it has more than {_MAX_TEXT_BYTES} bytes, and MQTT has none of that length"
    size = publish_size(topic, payload_bytes, properties)
    most = broker.maximum_packet_size or _MAX_REMAINING
    if size > most:
        return f"its packet has {size} bytes, and the MQTT broker takes at most {most} (Maximum Packet Size)"
    return None


def publish_size(topic: str, payload_bytes: int, properties: PublishProperties) -> int:
    """Return the length in bytes of the MQTT 5 packet of a publish at QoS 1 or 2 (MQTT 5, 3.3)."""
    fixed = 2 * (properties.payload_format is not None) + 5 * (properties.expiry_s is not None)
    texts = _texts(topic, properties)
    # Each property of text or binary data has its identifier and two bytes of length; a user property is two texts.
    told = fixed + sum(2 + len(text) for text in texts[1:]) + len(texts[1:]) - len(properties.user)
    remaining = 2 + len(texts[0]) + 2 + _digits(told) + told + payload_bytes
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

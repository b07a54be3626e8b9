"""What travels beside a reading's payload: the properties of its Pulsar message, as ``bridge.contract`` names them.

Pure. It decides what is told of a publish; where the message goes is the mapping's, when it is written the
worker's decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.contract import (
    ENVELOPE_VERSION,
    ORIGIN_PROPERTY,
    P_ARRIVAL,
    P_COMMAND_TOPIC,
    P_CONTENT_TYPE,
    P_CORRELATION,
    P_DEVICE,
    P_DUP,
    P_EXPIRY,
    P_LINK,
    P_PAYLOAD_FORMAT,
    P_PROTOCOL,
    P_QOS,
    P_RESPONSE_TOPIC,
    P_RETAIN,
    P_RETAINED,
    P_RULE,
    P_TOPIC,
    P_USER,
    P_VERSION,
    decode_correlation,
    decode_user_properties,
    encode_correlation,
    encode_user_properties,
)
from bridge.mapping import Route
from bridge.mqtt.types import Message, PublishProperties

__all__ = ["from_push", "message_of", "properties_of", "size_of"]


def from_push(message: Message) -> bool:
    """Whether push made this publish, so that it is no reading (H8)."""
    return message.properties is not None and any(
        name == ORIGIN_PROPERTY for name, _ in message.properties.user
    )


def properties_of(
    message: Message, route: Route | None, *, link: str, protocol: str, arrival_us: int, retained: bool
) -> dict[str, str]:
    """Return the properties of the message's envelope.

    ``route`` is None for a message that no rule gave a topic. ``retained`` tells that the broker sent it because
    of a subscription. A topic that is not UTF-8 is told with its bytes escaped.
    """
    told = {
        P_VERSION: ENVELOPE_VERSION,
        P_LINK: link,
        P_PROTOCOL: protocol,
        P_TOPIC: message.topic,
        P_QOS: str(message.qos),
        P_RETAIN: "1" if message.retain else "0",
        P_DUP: "1" if message.dup else "0",
        P_ARRIVAL: str(arrival_us),
    }
    if route is not None:
        told[P_RULE] = route.rule
        if route.device is not None:
            told[P_DEVICE] = route.device
        if route.command_topic is not None:
            told[P_COMMAND_TOPIC] = route.command_topic
    else:
        told[P_TOPIC] = message.topic.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if retained:
        told[P_RETAINED] = "1"
    if message.properties is not None:
        told |= _of_mqtt5(message.properties)
    return told


def _of_mqtt5(properties: PublishProperties) -> dict[str, str]:
    told: dict[str, str] = {}
    if properties.user:
        told[P_USER] = encode_user_properties(list(properties.user))
    if properties.content_type is not None:
        told[P_CONTENT_TYPE] = properties.content_type
    if properties.response_topic is not None:
        told[P_RESPONSE_TOPIC] = properties.response_topic
    if properties.correlation_data is not None:
        told[P_CORRELATION] = encode_correlation(properties.correlation_data)
    if properties.payload_format is not None:
        told[P_PAYLOAD_FORMAT] = str(properties.payload_format)
    if properties.expiry_s is not None:
        told[P_EXPIRY] = str(properties.expiry_s)
    return told


def message_of(payload: bytes, told: Mapping[str, str]) -> Message:
    """Return the publish that an envelope tells of, the other way round than ``properties_of``.

    Raises ContractError when a property cannot be read.
    """

    def number(name: str) -> int | None:
        return int(told[name]) if told.get(name, "").isdecimal() else None

    correlation = told.get(P_CORRELATION)
    properties = PublishProperties(
        user=tuple(decode_user_properties(told.get(P_USER, "[]"))),
        content_type=told.get(P_CONTENT_TYPE),
        response_topic=told.get(P_RESPONSE_TOPIC),
        correlation_data=None if correlation is None else decode_correlation(correlation),
        payload_format=number(P_PAYLOAD_FORMAT),
        expiry_s=number(P_EXPIRY),
    )
    return Message(
        told.get(P_TOPIC, ""),
        payload,
        number(P_QOS) or 0,
        told.get(P_RETAIN) == "1",
        told.get(P_DUP) == "1",
        0,
        None if properties == PublishProperties() else properties,
    )


def size_of(payload: bytes, key: str, properties: dict[str, str]) -> int:
    """Return the bytes that count against Pulsar's limit: payload, key and properties, rounded up for text."""
    text = len(key) + sum(len(name) + len(value) for name, value in properties.items())
    if text > 1024:  # the exact count costs; small texts are within the reserve whatever their characters
        text = len(key.encode()) + sum(len(n) + len(v.encode()) for n, v in properties.items())
    return len(payload) + text

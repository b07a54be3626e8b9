"""What travels beside a reading's payload: the properties of its Pulsar message, as ``bridge.contract`` names them.

Pure. It decides what is told of a publish; where the message goes is the mapping's, when it is written the
worker's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from bridge.contract import (
    ORIGIN_PROPERTY,
    P_CONTENT_TYPE,
    P_CORRELATION,
    P_DUP,
    P_EXPIRY,
    P_INGEST,
    P_PAYLOAD_FORMAT,
    P_QOS,
    P_RESPONSE_TOPIC,
    P_RETAIN,
    P_RETAINED,
    P_TOPIC,
    P_USER,
    decode_correlation,
    decode_user_properties,
    encode_correlation,
    encode_ingest,
    encode_user_properties,
)
from bridge.mapping import Route
from bridge.mqtt.types import Message, PublishProperties
from bridge.pulsar_wire.batches import head_of

__all__ = ["Envelope", "Extra", "from_push", "message_of", "size_of"]


def from_push(message: Message) -> bool:
    """Whether push made this publish, so that it is no reading (H8)."""
    return _from_push(message.properties)


def _from_push(properties: PublishProperties | None) -> bool:
    return properties is not None and any(name == ORIGIN_PROPERTY for name, _ in properties.user)


_EXTRAS: Final = 16_384
_LONG: Final = 512
"""Extras with more text, in characters, are made each time, so that what is kept stays small (H10)."""


class Extra(NamedTuple):
    """What a message tells beside what all of its topic tell."""

    properties: dict[str, str]
    """Not to be changed: messages share them."""
    head: bytes
    """The same, encoded (see ``head_of``)."""
    text: int
    """What they add to the message's size, in bytes, as ``size_of`` counts."""
    from_push: bool


class Envelope:
    """The envelopes of one link. ``mark`` tells retained messages that a subscription brought from live ones."""

    def __init__(self, *, link: str, protocol: str, mark: bool) -> None:
        self._link = link
        self._protocol = protocol
        self._mark = mark
        self._extras: dict[tuple[object, ...], Extra] = {}

    def of_topic(self, topic: str, route: Route | None) -> dict[str, str]:
        """Return what all messages of an MQTT topic tell; it is the whole envelope of a plain one.

        ``route`` is None where no rule gave the topic one. A topic that is not UTF-8 is told with its bytes escaped.
        """
        common = {"link": self._link, "protocol": self._protocol}
        if route is None:
            return {P_TOPIC: _as_utf8(topic), P_INGEST: encode_ingest(**common)}
        return {
            P_TOPIC: topic,
            P_INGEST: encode_ingest(**common, rule=route.rule, device=route.device, command_topic=route.command_topic),
        }

    def of(self, message: Message, of_topic: dict[str, str]) -> dict[str, str]:
        """Return the properties of a message; ``of_topic`` itself, not to be changed, when there is no more to tell."""
        extra = self.extra(*message[2:5], message.properties).properties
        return {**of_topic, **extra} if extra else of_topic

    def extra(self, qos: int, retain: bool, dup: bool, properties: PublishProperties | None) -> Extra:
        """Return what a message with these flags and properties tells beside its topic."""
        said = (qos, retain, dup, properties)
        found = self._extras.get(said)
        if found is None:
            told = self._told(qos, retain, dup, properties)
            found = Extra(told, head_of("", told), size_of(b"", "", told), _from_push(properties))
            if found.text <= _LONG:
                if len(self._extras) >= _EXTRAS:
                    self._extras.clear()  # those in use come back within a turn or two
                self._extras[said] = found
        return found

    def _told(self, qos: int, retain: bool, dup: bool, properties: PublishProperties | None) -> dict[str, str]:
        told: dict[str, str] = {}
        if qos != 1:
            told[P_QOS] = str(qos)
        if retain:
            told[P_RETAIN] = "1"
            if self._mark:
                told[P_RETAINED] = "1"
        if dup:
            told[P_DUP] = "1"
        if properties is not None:
            _add_mqtt5(told, properties)
        return told


def _add_mqtt5(told: dict[str, str], properties: PublishProperties) -> None:
    if properties.user:
        pairs = [(_as_utf8(name), _as_utf8(value)) for name, value in properties.user]
        told[P_USER] = encode_user_properties(pairs)
    if properties.content_type is not None:
        told[P_CONTENT_TYPE] = _as_utf8(properties.content_type)
    if properties.response_topic is not None:
        told[P_RESPONSE_TOPIC] = _as_utf8(properties.response_topic)
    if properties.correlation_data is not None:
        told[P_CORRELATION] = encode_correlation(properties.correlation_data)
    if properties.payload_format is not None:
        told[P_PAYLOAD_FORMAT] = str(properties.payload_format)
    if properties.expiry_s is not None:
        told[P_EXPIRY] = str(properties.expiry_s)


def _as_utf8(text: str) -> str:
    """Return text that Pulsar takes: bytes that were no UTF-8, or halves of surrogate pairs, come escaped.

    The MQTT link and the HTTP handler hand over neither; handlers of other packages may.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def message_of(payload: bytes, told: Mapping[str, str]) -> Message:
    """Return the publish that an envelope tells of, the other way round than ``Envelope.of``.

    Raises ContractError when a property cannot be read.
    """

    def number(name: str) -> int | None:
        text = told.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 20 else None

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
        int(P_INGEST in told) if P_QOS not in told else number(P_QOS) or 0,
        told.get(P_RETAIN) == "1",
        told.get(P_DUP) == "1",
        0,
        None if properties == PublishProperties() else properties,
    )


def size_of(payload: bytes, key: str, properties: dict[str, str]) -> int:
    """Return the bytes that count against Pulsar's limit: payload, key and properties, rounded up for text."""
    text = len(key) + sum(map(len, properties)) + sum(map(len, properties.values()))
    if text > 1024:  # the exact count costs; small texts are within the reserve whatever their characters
        text = len(key.encode()) + sum(len(n) + len(v.encode()) for n, v in properties.items())
    return len(payload) + text

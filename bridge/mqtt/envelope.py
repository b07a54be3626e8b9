"""The envelope of a reading: the properties of its Pulsar message, as ``bridge.contract`` names them.

This module decides which facts of a publish the envelope contains. The mapping decides where the message goes, the
worker when it is written.
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
from bridge.mqtt.types import Message, PublishProperties
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import Route

__all__ = ["Envelope", "Extra", "from_push", "message_of"]


def from_push(properties: PublishProperties | None) -> bool:
    """Whether push made the publish with these properties, so that it is not a reading (H8)."""
    return properties is not None and any(name == ORIGIN_PROPERTY for name, _ in properties.user)


_EXTRAS: Final = 16_384
_LONG: Final = 512
"""Longer extras, in bytes, are not cached, so that the cache stays small (H10)."""


class Extra(NamedTuple):
    """The properties of a message in addition to those of its topic."""

    properties: dict[str, str]
    """Must not be changed, because messages share them."""
    head: bytes
    """The same, encoded (see ``head_of``)."""
    from_push: bool


class Envelope:
    """The envelopes of one link. ``mark`` marks retained messages that are sent for a subscription."""

    def __init__(self, *, link: str, protocol: str, mark: bool) -> None:
        self._link = link
        self._protocol = protocol
        self._mark = mark
        self._extras: dict[tuple[object, ...], Extra] = {}

    def of_topic(self, topic: str, route: Route | None) -> dict[str, str]:
        """Return the properties that all messages of an MQTT topic share; a plain message has no others.

        ``route`` is None if no rule gave the topic one. The invalid bytes of a topic that is not UTF-8 are escaped.
        """
        common = {"link": self._link, "protocol": self._protocol}
        if route is None:
            return {P_TOPIC: _as_utf8(topic), P_INGEST: encode_ingest(**common)}
        return {
            P_TOPIC: topic,
            P_INGEST: encode_ingest(**common, rule=route.rule, device=route.device, command_topic=route.command_topic),
        }

    def of(self, message: Message, of_topic: dict[str, str]) -> dict[str, str]:
        """Return the properties of a message; ``of_topic`` itself, which must not be changed, if it has no others."""
        extra = self.extra(*message[2:5], message.properties).properties
        return {**of_topic, **extra} if extra else of_topic

    def extra(self, qos: int, retain: bool, dup: bool, properties: PublishProperties | None) -> Extra:
        """Return the properties of a message in addition to those of its topic."""
        facts = (qos, retain, dup, properties)
        found = self._extras.get(facts)
        if found is None:
            own = self._own(qos, retain, dup, properties)
            found = Extra(own, head_of("", own), from_push(properties))
            if len(found.head) <= _LONG:
                if len(self._extras) >= _EXTRAS:
                    self._extras.clear()  # extras in use soon return to the cache
                self._extras[facts] = found
        return found

    def _own(self, qos: int, retain: bool, dup: bool, properties: PublishProperties | None) -> dict[str, str]:
        own: dict[str, str] = {}
        if qos != 1:
            own[P_QOS] = str(qos)
        if retain:
            own[P_RETAIN] = "1"
            if self._mark:
                own[P_RETAINED] = "1"
        if dup:
            own[P_DUP] = "1"
        if properties is not None:
            _add_mqtt5(own, properties)
        return own


def _add_mqtt5(own: dict[str, str], properties: PublishProperties) -> None:
    if properties.user:
        pairs = [(_as_utf8(name), _as_utf8(value)) for name, value in properties.user]
        own[P_USER] = encode_user_properties(pairs)
    if properties.content_type is not None:
        own[P_CONTENT_TYPE] = _as_utf8(properties.content_type)
    if properties.response_topic is not None:
        own[P_RESPONSE_TOPIC] = _as_utf8(properties.response_topic)
    if properties.correlation_data is not None:
        own[P_CORRELATION] = encode_correlation(properties.correlation_data)
    if properties.payload_format is not None:
        own[P_PAYLOAD_FORMAT] = str(properties.payload_format)
    if properties.expiry_s is not None:
        own[P_EXPIRY] = str(properties.expiry_s)


def _as_utf8(text: str) -> str:
    """Return text that Pulsar accepts: invalid UTF-8 bytes and halves of surrogate pairs are escaped.

    The MQTT link and the HTTP handler deliver neither; handlers of other packages may.
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


def message_of(payload: bytes, envelope: Mapping[str, str]) -> Message:
    """Return the publish of an envelope, the inverse of ``Envelope.of``.

    Raises ContractError if a property cannot be read.
    """

    def number(name: str) -> int | None:
        text = envelope.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 20 else None

    correlation = envelope.get(P_CORRELATION)
    properties = PublishProperties(
        user=tuple(decode_user_properties(envelope.get(P_USER, "[]"))),
        content_type=envelope.get(P_CONTENT_TYPE),
        response_topic=envelope.get(P_RESPONSE_TOPIC),
        correlation_data=None if correlation is None else decode_correlation(correlation),
        payload_format=number(P_PAYLOAD_FORMAT),
        expiry_s=number(P_EXPIRY),
    )
    return Message(
        envelope.get(P_TOPIC, ""),
        payload,
        int(P_INGEST in envelope) if P_QOS not in envelope else number(P_QOS) or 0,
        envelope.get(P_RETAIN) == "1",
        envelope.get(P_DUP) == "1",
        0,
        None if properties == PublishProperties() else properties,
    )

"""The fast path: QoS 0 and 1 PUBLISH packets, decoded in one loop over what was read. Pure.

paho's decoder takes 12 µs for a PUBLISH of MQTT 3.1.1 and 32 µs for one of MQTT 5. Here complete packets of the
usual kind become messages; everything else (other packet types, QoS 2, malformed packets, what is rare) is
measured and left to paho, in its place in the stream. So this decides only where a packet ends and what a plain
PUBLISH says; what is an error, and how it ends, is decided by paho alone. For each packet that is taken here the
message equals the one that paho would have given (``tests/unit/ingest/test_publishes.py`` compares them).
"""

from __future__ import annotations

from typing import Final

from bridge.mqtt.types import Message, PublishProperties

__all__ = ["MORE", "PublishDecoder", "packet_length"]

MORE: Final = -1
"""In place of a length: the buffer ends within the packet, or within its header."""

_SMALL: Final = 64 * 1024
"""Incomplete packets up to this size, in bytes, wait in the buffer; larger ones are gathered by paho as they come."""

_TOPICS: Final = 65_536
_BLOCKS: Final = 16_384
_LONG: Final = 256
"""Longer topics, in bytes, are decoded each time, so that the cache stays small (H10)."""

_FLAGS: Final = {
    0x30 | dup << 3 | qos << 1 | retain: (qos, bool(retain), bool(dup))
    for dup in (0, 1)
    for qos in (0, 1)
    for retain in (0, 1)
}
"""First byte of a PUBLISH (MQTT 5, 3.3.1) → QoS, RETAIN, DUP. QoS 2 and 3 are not among them."""


def packet_length(data: bytes, at: int) -> int:
    """Return the length of the packet that begins at ``at``, or MORE when its header is not complete.

    A header that is malformed counts with all that follows: whoever reads it will close the connection.
    """
    length = 0
    for digits in range(1, 5):
        if at + digits >= len(data):
            return MORE
        digit = data[at + digits]
        length |= (digit & 127) << 7 * (digits - 1)
        if digit < 128:
            return 1 + digits + length
    return len(data) - at


class PublishDecoder:
    """Decodes the PUBLISH packets of one link. Topics are kept by their bytes, so that equal ones are one object."""

    def __init__(self, *, mqtt5: bool, topics: int = _TOPICS) -> None:
        self._mqtt5 = mqtt5
        self._after_topic = (int(mqtt5), 2 + mqtt5)  # by QoS: packet identifier and length of the properties
        self._topics: dict[bytes, str] = {}
        self._max_topics = topics
        self._blocks: dict[bytes, PublishProperties] = {}

    def decode(self, data: bytes, at: int, limit: int, found: list[Message]) -> tuple[int, int]:
        """Append up to ``limit`` messages to ``found``, from position ``at`` on.

        Returns where it stopped, and why: 0 for the limit, MORE when the packet there is small and not complete,
        else the length of the packet there, which is paho's.
        """
        known, add, new = self._topics.get, found.append, tuple.__new__
        mqtt5, after_topic, flags_of, size = self._mqtt5, self._after_topic, _FLAGS.get, len(data)
        said = self._said
        for _ in range(limit):
            body = at + 2
            if body > size:
                return at, MORE
            length = data[at + 1]
            if length > 127:
                body += 1
                if body > size:
                    return at, MORE
                more = data[at + 2]
                if more > 127:
                    length = packet_length(data, at)
                    if length == MORE:
                        return at, MORE
                    end = at + length
                    body += 1 if length < 2_097_156 else 2
                    if data[body - 1] > 127:  # a length in more bytes than it needs
                        return at, length
                else:
                    end = body + (length & 127 | more << 7)
            else:
                end = body + length
            if end > size:
                length = end - at
                return at, MORE if length <= _SMALL else length
            flags = flags_of(data[at])
            if flags is None or end - body < 3:
                return at, end - at
            qos, retain, dup = flags
            start = body + 2
            cut = start + (data[body] << 8) + data[body + 1]
            if cut + after_topic[qos] > end:
                return at, end - at
            raw = data[start:cut]
            topic = known(raw)
            if topic is None:
                topic = self._topic(raw)
                if topic is None:
                    return at, end - at
            mid = 0
            if qos:
                mid = data[cut] << 8 | data[cut + 1]
                cut += 2
            properties = None
            if mqtt5:
                if data[cut]:
                    properties, cut = said(data, cut, end)
                    if properties is None:
                        return at, end - at
                else:
                    cut += 1
            add(new(Message, (topic, data[cut:end], qos, retain, dup, mid, properties)))
            at = end
        return at, 0

    def _topic(self, raw: bytes) -> str | None:
        """Return a topic that is not in the cache, None when it is one for paho: empty, or not UTF-8."""
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            return None
        if topic and len(raw) <= _LONG:
            if len(self._topics) >= self._max_topics:
                self._topics.clear()  # those in use come back within a turn or two
            self._topics[raw] = topic
        return topic or None

    def _said(self, data: bytes, at: int, end: int) -> tuple[PublishProperties | None, int]:
        """As ``_properties``, and remember what a short block says: devices of one kind say the same each time."""
        begin, length = at + 1, data[at]
        stop = begin + length
        if length > 127 or stop > end:
            return _properties(data, at, end)
        block = data[begin:stop]
        known = self._blocks.get(block)
        if known is not None:
            return known, stop
        found, stop = _properties(data, at, end)
        if found is not None:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            self._blocks[block] = found
        return found, stop


class _NotPlain(Exception):
    """Raised when a property is malformed, forbidden, repeated, or rare enough to leave it to paho."""


def _properties(data: bytes, at: int, end: int) -> tuple[PublishProperties | None, int]:
    """Return the properties whose length stands at ``at``, and where the payload begins; None for paho's."""
    length = data[at]
    at += 1
    if length > 127:
        if at >= end or data[at] > 127:
            return None, 0
        length = length & 127 | data[at] << 7
        at += 1
    stop = at + length
    if stop > end:
        return None, 0
    try:
        return _fields(data, at, stop), stop
    except (_NotPlain, UnicodeDecodeError, IndexError):
        return None, 0


def _fields(data: bytes, at: int, stop: int) -> PublishProperties:
    # Identifiers and types: MQTT 5, 2.2.2.2. What this does not know raises and is paho's.
    user: list[tuple[str, str]] = []
    content_type = response_topic = correlation = payload_format = expiry_s = None
    while at < stop:
        kind = data[at]
        at += 1
        if kind == 38:
            start = at + 2
            end = start + (data[at] << 8) + data[at + 1]
            at = end + 2
            name = data[start:end].decode()
            end = at + (data[end] << 8) + data[end + 1]
            value = data[at:end].decode()
            both = name + value
            if end > stop or "\0" in both or "\ufeff" in both:
                raise _NotPlain
            user.append((name, value))
            at = end
        elif kind == 3 and content_type is None:
            content_type, at = _text(data, at, stop)
        elif kind == 8 and response_topic is None:
            response_topic, at = _text(data, at, stop)
        elif kind == 9 and correlation is None:
            start = at + 2
            at = start + (data[at] << 8) + data[at + 1]
            correlation = data[start:at]
        elif kind == 1 and payload_format is None and data[at] < 2:
            payload_format = data[at]
            at += 1
        elif kind == 2 and expiry_s is None:
            expiry_s = int.from_bytes(data[at : at + 4], "big")
            at += 4
        elif kind == 11 and 0 < data[at] < 128:  # subscription identifier: nobody asks for it
            at += 1
        else:
            raise _NotPlain
    if at != stop:
        raise _NotPlain
    return tuple.__new__(
        PublishProperties,
        (tuple(user), content_type, response_topic, correlation, payload_format, expiry_s),
    )


def _text(data: bytes, at: int, stop: int) -> tuple[str, int]:
    start = at + 2
    end = start + (data[at] << 8) + data[at + 1]
    text = data[start:end].decode()
    # Null and the byte order mark are refused by paho (MQTT 5, 1.5.4).
    if end > stop or "\0" in text or "\ufeff" in text:
        raise _NotPlain
    return text, end

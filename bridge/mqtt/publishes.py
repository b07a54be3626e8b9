"""Decodes PUBLISH packets as they arrive, in one loop over the bytes of a read.

Every PUBLISH with a valid frame (fixed header and remaining length) becomes a message, with any content. If
MQTT 5 or 3.1.1 calls it malformed or a protocol error, the message has a reason (``Message.malformed``) and the
packet's body. So a sender's mistake affects neither the connection nor the messages of others. Other types of packets
are measured and left to the caller, in the order of the stream.

``decode`` reads the usual packets on a fast path; ``_rare`` reads the others: QoS 2 and malformed packets.
"""

from __future__ import annotations

from typing import Any, Final

from bridge.mqtt.packets import MalformedError, variable
from bridge.mqtt.types import Message, PublishProperties

__all__ = ["BAD", "MORE", "PublishDecoder", "packet_length"]

MORE: Final = -1
"""Instead of a length: the packet, or its header, is not complete in the buffer."""

BAD: Final = -2
"""Instead of a length: the remaining length has more than four bytes (MQTT 5, 1.5.5), so the packet has no end."""

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


_CUT: Final = "its properties end within one of them"
_NULL: Final = "a text of its properties contains U+0000 (MQTT-1.5.4-2)"


def packet_length(data: bytes, at: int) -> int:
    """Return the length of the packet that begins at ``at``; MORE if its header is not complete, BAD without end."""
    length = 0
    for digits in range(1, 5):
        if at + digits >= len(data):
            return MORE
        digit = data[at + digits]
        length |= (digit & 127) << 7 * (digits - 1)
        if digit < 128:
            return 1 + digits + length
    return BAD


class PublishDecoder:
    """Decodes the PUBLISH packets of one link. It caches topics by their bytes, so that equal ones are one object."""

    def __init__(self, *, mqtt5: bool, topics: int = _TOPICS) -> None:
        self.met_qos_2 = False
        """Whether a message of QoS 2 was found since the caller set it to False."""
        self._mqtt5 = mqtt5
        self._after_topic = (int(mqtt5), 2 + mqtt5)  # by QoS: packet identifier and length of the properties
        self._topics: dict[bytes, str] = {}
        self._max_topics = topics
        self._blocks: dict[bytes, PublishProperties] = {}

    def decode(self, data: bytes, at: int, limit: int, found: list[Message]) -> tuple[int, int]:
        """Append up to ``limit`` messages to ``found``, from position ``at`` on.

        Returns the position where it stopped, and why: 0 for the limit, MORE if the packet at it is not complete, BAD
        if it has no end. Else it returns that packet's length, because the packet is of another type.
        """
        known, add, new, new_topic = self._topics.get, found.append, tuple.__new__, self._topic
        mqtt5, after_topic, flags_of, size = self._mqtt5, self._after_topic, _FLAGS.get, len(data)
        properties_of = self._cached_properties
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
                    if length < 0:
                        return at, length
                    end = at + length
                    body += 1 + (data[body] > 127)
                else:
                    end = body + (length & 127 | more << 7)
            else:
                end = body + length
            if end > size:
                return at, MORE
            flags = flags_of(data[at])
            if flags is None and data[at] >> 4 != 3:
                return at, end - at
            try:
                if flags is None:
                    raise MalformedError  # or QoS 2: ``_rare`` reads it
                qos, retain, dup = flags
                start = body + 2
                cut = end if start > end else start + (data[body] << 8) + data[body + 1]
                if cut + after_topic[qos] > end:
                    raise MalformedError
                raw = data[start:cut]
                topic = known(raw)
                if topic is None:
                    topic = new_topic(raw)
                mid = 0
                if qos:
                    mid = data[cut] << 8 | data[cut + 1]
                    cut += 2
                    if not mid:
                        raise MalformedError
                properties = None
                if mqtt5:
                    if data[cut]:
                        properties, cut = properties_of(data, cut, end)
                    else:
                        cut += 1
                add(new(Message, (topic, data[cut:end], qos, retain, dup, mid, properties, "")))
            except MalformedError:
                add(self._rare(data, at, body, end))
            at = end
        return at, 0

    def head_of(self, data: bytes, total: int, sha256: str) -> Message:
        """Return the message for a PUBLISH of ``total`` bytes; only its beginning, ``data``, was kept.

        ``sha256`` is the hash of the whole packet.
        """
        start = 2
        while data[start - 1] > 127:
            start += 1
        why = f"its packet has {total} bytes, of which the first {len(data)} are kept; SHA-256 of all: {sha256}"
        return self._rare(data, 0, start, len(data), why)

    def _rare(self, data: bytes, at: int, body: int, end: int, malformed: str = "") -> Message:
        """Read any PUBLISH, byte by byte; ``malformed`` is a reason that is already known."""
        first = data[at]
        qos, retain, dup = first >> 1 & 3, bool(first & 1), bool(first & 8)
        cut = body + 2 + int.from_bytes(data[body : min(body + 2, end)], "big")
        raw = data[body + 2 : min(cut, end)]
        mid = int.from_bytes(data[cut : cut + 2], "big") if qos in (1, 2) and cut + 2 <= end else 0
        self.met_qos_2 |= qos == 2 and mid > 0
        properties = None
        try:
            if malformed:
                raise MalformedError(malformed)
            if qos == 3:
                raise MalformedError("it has QoS 3 (MQTT-3.3.1-4)")
            if cut > end:
                raise MalformedError("its topic is longer than the packet")
            topic = _topic_of(raw)
            if qos:
                cut += 2
                if not mid:
                    raise MalformedError("it has no packet identifier, or 0 (MQTT-2.2.1-3)")
            if self._mqtt5:
                properties, cut = _properties(data, cut, end)
        except MalformedError as e:
            shown = raw.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
            return Message(shown, data[body:end], qos if mid else 0, retain, dup, mid, None, str(e))
        return Message(topic, data[cut:end], qos, retain, dup, mid, properties)

    def _topic(self, raw: bytes) -> str:
        """Return a topic that is not in the cache."""
        topic = _topic_of(raw)
        if len(raw) <= _LONG:
            if len(self._topics) >= self._max_topics:
                self._topics.clear()  # topics in use soon return to the cache
            self._topics[raw] = topic
        return topic

    def _cached_properties(self, data: bytes, at: int, end: int) -> tuple[PublishProperties | None, int]:
        """As ``_properties``, with a cache of short blocks, because equal devices send equal ones."""
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


def _properties(data: bytes, at: int, end: int) -> tuple[PublishProperties | None, int]:
    """Return the properties at ``at``, None if their length is 0, and the payload's position."""
    length, at = variable(data, at, end)
    stop = at + length
    if stop > end:
        raise MalformedError("its properties are longer than the packet")
    if not length:
        return None, stop
    try:
        return _fields(data, at, stop), stop
    except IndexError:
        raise MalformedError(_CUT) from None
    except UnicodeDecodeError:
        raise MalformedError("a text of its properties is not UTF-8 (MQTT-1.5.4-1)") from None


def _fields(data: bytes, at: int, stop: int) -> PublishProperties:
    # Identifiers and types: MQTT 5, 2.2.2.2; which a PUBLISH has, and that all but two come once: 3.3.2.3.
    user: list[tuple[str, str]] = []
    once: dict[int, str | bytes | int] = {}
    while at < stop:
        kind = data[at]
        at += 1
        if kind == 38:
            start = at + 2
            end = start + (data[at] << 8) + data[at + 1]
            at = end + 2
            last = at + (data[end] << 8) + data[end + 1]
            if last > stop:
                raise MalformedError(_CUT)
            name, value = data[start:end].decode(), data[at:last].decode()
            if "\0" in name or "\0" in value:
                raise MalformedError(_NULL)
            user.append((name, value))
            at = last
            continue
        if kind == 11:  # not asked for, and harmless
            number, at = variable(data, at, stop)
            if not number:
                raise MalformedError("it has the subscription identifier 0 (MQTT 5, 3.3.2.3.8)")
            continue
        if kind in once:
            raise MalformedError(f"it has property {kind} twice (MQTT 5, 3.3.2.3)")
        if kind in (3, 8):
            raw, at = _binary(data, at, stop)
            once[kind] = raw.decode()
            if 0 in raw:
                raise MalformedError(_NULL)
        elif kind == 9:
            once[kind], at = _binary(data, at, stop)
        elif kind == 1:
            once[kind] = data[at]
            if data[at] > 1:
                raise MalformedError(f"it has payload format {data[at]} (MQTT 5, 3.3.2.3.2)")
            at += 1
        elif kind == 2:
            once[kind] = int.from_bytes(data[at : at + 4], "big")
            at += 4
        elif kind == 35:
            raise MalformedError("it has a topic alias, and none was allowed (MQTT-3.3.2-10)")
        else:
            raise MalformedError(f"it has property {kind}, which no PUBLISH has (MQTT 5, 2.2.2.2)")
    if at != stop:
        raise MalformedError(_CUT)
    get: Any = once.get
    return tuple.__new__(PublishProperties, (tuple(user), get(3), get(8), get(9), get(1), get(2)))


def _binary(data: bytes, at: int, stop: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + (data[at] << 8) + data[at + 1]
    if end > stop:
        raise MalformedError(_CUT)
    return data[start:end], end


def _topic_of(raw: bytes) -> str:
    """Return a valid topic. U+FEFF and control characters are legal in it (MQTT-1.5.4-3)."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError:
        raise MalformedError("its topic is not UTF-8 (MQTT-1.5.4-1)") from None
    if not topic:
        raise MalformedError("its topic is empty (MQTT-4.7.3-1)")
    if "\0" in topic:
        raise MalformedError("its topic contains U+0000 (MQTT-1.5.4-2)")
    return topic

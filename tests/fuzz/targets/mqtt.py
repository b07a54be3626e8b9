"""MQTT packets from a broker, through the real link over a real socket."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Final, Literal

from hypothesis import strategies as st

from bridge.mqtt.client import Link
from bridge.mqtt.types import Disconnected, LinkHandler, Message, PublishProperties
from bridge.settings.mqtt import MqttSettings
from tests.fuzz.engine import Case, Check, Target
from tests.support.raw_mqtt import packet, text, variable

__all__ = ["MQTT"]

_Protocol = Literal["3.1", "3.1.1", "5"]
_PATIENCE_S: Final = 20.0
_END: Final = "the end"
_NEXT: Final = "the next connection"

# Every code point that MQTT allows: neither U+0000 nor a surrogate (MQTT 5, 1.5.4).
_allowed = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
_texts = st.one_of(
    st.text(_allowed, max_size=8),
    st.sampled_from(
        ["\ufeff", "a\ufeffb", "\x01", "\x1f", "\x7f", "\x9f", "\uffff", "\ufdd0", "\U0010ffff", "é" * 99, ""]
    ),
)
_topics = st.one_of(
    st.sampled_from(["plant/1", "a", "a/b/c", "$SYS/x", "/", " ", "\ufeff/x", "x" * 4000]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0+#"), min_size=1, max_size=12),
)
_payloads = st.binary(max_size=40) | st.sampled_from([b"", b"x" * 200, b"y" * 20_000, b"z" * 70_000])
_users = st.lists(st.tuples(_texts, _texts), max_size=3).map(tuple)
_reasons = st.integers(0, 255)
_mids = st.sampled_from([1, 2, 3, 9, 65_535])

_publishes = st.tuples(
    st.just("publish"),
    _topics,
    _payloads,
    st.sampled_from([0, 1, 1, 1, 2]),
    st.booleans(),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "user": _users,
            "content_type": _texts,
            "response_topic": st.text(_allowed.filter(lambda c: c not in "+#"), min_size=1, max_size=8),
            "correlation_data": st.binary(max_size=20),
            "payload_format": st.integers(0, 1),
            "expiry_s": st.integers(0, 2**32 - 1),
            "subscriptions": st.lists(st.integers(1, 268_435_455), min_size=1, max_size=2).map(tuple),
        },
    ),
)
"""Allowed PUBLISH packets: topic, payload, QoS, RETAIN, DUP and, for MQTT 5, properties."""


def _block(body: bytes) -> bytes:
    return variable(len(body)) + body


@st.composite
def _ack_properties(draw: st.DrawFn) -> bytes:
    """Properties that an acknowledgement may have: a reason and user properties."""
    body = b""
    if draw(st.booleans()):
        body += b"\x1f" + text(draw(_texts))
    for name, value in draw(_users):
        body += b"\x26" + text(name) + text(value)
    return _block(body)


@st.composite
def _acknowledgements(draw: st.DrawFn, protocol: _Protocol) -> tuple[str, bytes]:
    """Packets other than PUBLISH that a broker may send at any time; unknown identifiers and reasons included."""
    kind = draw(st.sampled_from([0x40, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0]))
    if kind == 0xD0:
        return "other", b"\xd0\0"
    body = struct.pack("!H", draw(_mids))
    if kind in (0x90, 0xB0):
        if protocol == "5":
            body += draw(_ack_properties())
        codes = {"5": [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97]}.get(protocol, [0, 1, 2, 0x80])
        if kind == 0xB0:
            codes = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]
        if kind == 0x90 or protocol == "5":
            body += bytes(draw(st.lists(st.sampled_from(codes), min_size=1, max_size=3)))
    elif protocol == "5" and draw(st.booleans()):
        body += bytes([draw(_reasons)])
        if draw(st.booleans()):
            body += draw(_ack_properties())
    return "other", packet(kind, body)


@st.composite
def _disconnects(draw: st.DrawFn) -> tuple[str, bytes]:
    body = b""
    if draw(st.booleans()):
        body = bytes([draw(_reasons)])
        if draw(st.booleans()):
            body += draw(_ack_properties())
    return "last", packet(0xE0, body)


@st.composite
def _damaged(draw: st.DrawFn, protocol: _Protocol) -> tuple[str, bytes]:
    """A packet with some bytes replaced, inserted or removed, or any bytes at all: what it means is not known."""
    if draw(st.integers(0, 4)) == 0:
        return "raw", draw(st.binary(min_size=1, max_size=20))
    raw = draw(
        st.one_of(
            _publishes.map(lambda one: _encoded(one, protocol, 7)),
            _publishes.map(lambda one: _encoded(one, protocol, 7)),
            _acknowledgements(protocol).map(lambda one: one[1]),
        )
    )
    return "raw", draw(_with_errors(raw))


@st.composite
def _with_errors(draw: st.DrawFn, whole: bytes) -> bytes:
    raw = bytearray(whole[:2000])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, min(len(raw) - 1, 60))))
        more = draw(
            st.sampled_from([b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x7f", b"\x80", b"\x23\0\1"])
            | st.binary(min_size=1, max_size=2)
        )
        raw[at : at + draw(st.integers(0, 2))] = more
    fixed = bytes(raw)
    if draw(st.booleans()):  # as a packet of its own length, so that what follows is found
        fixed = packet(fixed[0], fixed[2:])
    return fixed


@st.composite
def _connacks(draw: st.DrawFn, protocol: _Protocol) -> bytes:
    present = draw(st.integers(0, 1))
    if protocol != "5":
        return packet(0x20, bytes([present if protocol == "3.1.1" else 0, 0]))
    if draw(st.integers(0, 3)):
        return packet(0x20, bytes([present, 0, 0]))
    one = [
        st.integers(0, 2**32 - 1).map(lambda n: b"\x11" + struct.pack("!I", n)),
        st.integers(1, 65_535).map(lambda n: b"\x21" + struct.pack("!H", n)),
        st.integers(0, 1).map(lambda n: bytes([0x24, n])),
        st.integers(0, 1).map(lambda n: bytes([0x25, n])),
        st.integers(1000, 2**32 - 1).map(lambda n: b"\x27" + struct.pack("!I", n)),
        _texts.map(lambda t: b"\x12" + text(t)),
        st.integers(0, 65_535).map(lambda n: b"\x22" + struct.pack("!H", n)),
        _texts.map(lambda t: b"\x1f" + text(t)),
        st.integers(0, 1).map(lambda n: bytes([0x28, n])),
        st.integers(0, 1).map(lambda n: bytes([0x29, n])),
        st.integers(0, 1).map(lambda n: bytes([0x2A, n])),
        st.sampled_from([0, 5, 60, 65_535]).map(lambda n: b"\x13" + struct.pack("!H", n)),
        _texts.map(lambda t: b"\x1a" + text(t)),
        _texts.map(lambda t: b"\x1c" + text(t)),
    ]
    chosen = draw(st.lists(st.sampled_from(range(len(one))), unique=True, max_size=4))
    body = b"".join(draw(one[n]) for n in chosen)
    for name, value in draw(_users):
        body += b"\x26" + text(name) + text(value)
    return packet(0x20, bytes([present, 0]) + _block(body))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    protocol = draw(st.sampled_from(["5", "5", "5", "3.1.1", "3.1"]))
    one = [_publishes, _publishes, _acknowledgements(protocol)]
    if draw(st.booleans()):
        one.append(_damaged(protocol))
    items = draw(st.lists(st.one_of(one), max_size=6))
    if protocol == "5" and draw(st.integers(0, 5)) == 0:
        items.append(draw(_disconnects()))
    every = draw(st.integers(0, 7)) == 0
    cuts = True if every else draw(st.lists(st.integers(0, 300), max_size=4))
    connack = draw(_connacks(protocol))
    if draw(st.integers(0, 5)) == 0:  # then what follows means nothing
        connack, items = draw(_with_errors(connack)), [("raw", b""), *items]
    return protocol, connack, items, cuts


def _encoded(one: Any, protocol: str, mid: int) -> bytes:
    _, topic, payload, qos, retain, dup, properties = one
    body = text(topic) + (struct.pack("!H", mid) if qos else b"")
    if protocol == "5":
        block = b"".join(b"\x26" + text(name) + text(value) for name, value in properties.get("user", ()))
        for name, kind in (("content_type", 3), ("response_topic", 8), ("correlation_data", 9)):
            if name in properties:
                block += bytes([kind]) + text(properties[name])
        if "payload_format" in properties:
            block += bytes([1, properties["payload_format"]])
        if "expiry_s" in properties:
            block += b"\2" + struct.pack("!I", properties["expiry_s"])
        block += b"".join(b"\x0b" + variable(n) for n in properties.get("subscriptions", ()))
        body += _block(block)
    # DUP must be 0 at QoS 0 (MQTT-3.3.1-2).
    return packet(0x30 | (bool(qos) and dup) << 3 | qos << 1 | retain, body + payload)


def _expected(one: Any, protocol: str, mid: int) -> Message:
    _, topic, payload, qos, retain, dup, properties = one
    given = {name: value for name, value in properties.items() if name != "subscriptions"}
    own = PublishProperties(**given) if protocol == "5" else PublishProperties()
    return Message(topic, payload, qos, retain, bool(qos) and dup, mid if qos else 0, own)


class _Handler(LinkHandler):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lost: list[Disconnected] = []

    def on_message(self, message: Message) -> None:
        self.messages.append(message._replace(properties=message.properties or PublishProperties()))

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)

    @property
    def topics(self) -> list[str]:
        return [one.topic for one in self.messages]


class _Broker:
    """The listening side; one case after the other connects to it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self.port = int(listener.getsockname()[1])

    def check(self, case: Case) -> None:
        protocol, connack, items, cuts = case
        handler = _Handler()
        settings = MqttSettings(
            port=self.port,
            protocol=protocol,
            reconnect_min="1ms",
            reconnect_max="2ms",
            connect_timeout="1m",
        )
        link = Link(settings, handler)
        for qos in (1, 2, 1):
            link.publish("own", b"", qos=qos)
        try:
            self._play(link, handler, protocol, connack, items, cuts)
        finally:
            link.close()

    def _play(self, link: Link, handler: _Handler, protocol: str, connack: bytes, items: Any, cuts: Any) -> None:
        expected, stream, damaged, left = [], b"", False, False
        for mid, one in enumerate(items, 100):
            if one[0] == "publish":
                stream += _encoded(one, protocol, mid)
                if one[3] == 2:
                    stream += packet(0x62, struct.pack("!H", mid))
                if not damaged:
                    expected.append(_expected(one, protocol, mid))
            else:
                stream += one[1]
                damaged = damaged or one[0] == "raw"
                left = left or one[0] == "last"
        end = _encoded(("publish", _END, b"", 1, False, False, {}), protocol, 7)
        with self._accepted(link) as peer:
            _send(peer, link, handler, [connack, *_pieces(stream if left else stream + end, cuts)])
            if not damaged:
                _turn_until(link, lambda: bool(handler.lost) or _END in handler.topics, "the stream's end")
                assert left or not handler.lost, f"the link closed at allowed packets: {handler.lost[0].why}"
                found = [one for one in handler.messages if one.topic != _END]
                assert found == expected, f"{found} instead of {expected}, lost {handler.lost}"
            with suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
            _turn_until(link, lambda: bool(handler.lost), "the end of the connection")
        found = handler.messages[: len(expected)]
        assert found == expected, f"{found} instead of {expected}, lost {handler.lost[:1]}"
        with self._accepted(link) as peer:
            one = _encoded(("publish", _NEXT, b"", 1, False, False, {}), protocol, 7)
            plain = b"\x20\3\0\0\0" if protocol == "5" else b"\x20\2\0\0"
            before = len(handler.lost)
            _send(peer, link, handler, [plain, one])
            _turn_until(
                link,
                lambda: len(handler.lost) > before or _NEXT in handler.topics,
                "a message on the next connection",
            )
            assert _NEXT in handler.topics, f"the next connection ended: {handler.lost[-1].why}"

    @contextmanager
    def _accepted(self, link: Link) -> Iterator[socket.socket]:
        found: list[socket.socket] = []

        def accepted() -> bool:
            with suppress(BlockingIOError):
                found.append(self._listener.accept()[0])
            return bool(found)

        _turn_until(link, accepted, "a connection")
        with found[0] as peer:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield peer


def _pieces(stream: bytes, cuts: Any) -> list[bytes]:
    if cuts is True:
        size = max(1, len(stream) // 400)
        return [stream[at : at + size] for at in range(0, len(stream), size)]
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


def _send(peer: socket.socket, link: Link, handler: _Handler, pieces: list[bytes]) -> None:
    before = len(handler.lost)
    for piece in pieces:
        while piece and len(handler.lost) == before:
            with suppress(OSError):  # full, or closed by the link
                piece = piece[peer.send(piece) :]
            with suppress(OSError):
                peer.recv(65_536)
            link.turn(0.0)


def _turn_until(link: Link, done: Any, what: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come")
        link.turn(0.02)


@contextmanager
def _opened() -> Iterator[Check]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield _Broker(listener).check


MQTT: Final = Target(
    "mqtt",
    "Each PUBLISH that MQTT allows reaches the handler as it was sent, the link closes at no packet that MQTT allows, "
    "and after any bytes at all the next connection brings messages.",
    _cases,
    _opened,
    examples=100,
)

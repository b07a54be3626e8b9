"""PUBLISH packets against paho's decoder: what paho accepts gives the same message; no packet ends the connection.

Where this decoder differs from paho 2.1, by the specification of MQTT 5:

- U+FEFF in a property is legal (MQTT-1.5.4-3); paho ends the connection.
- A malformed PUBLISH is a message with a reason; paho ends the connection, except for these, which it delivers: a topic
  that is not UTF-8 or contains U+0000 (MQTT-1.5.4-1, MQTT-1.5.4-2), an empty one (MQTT-4.7.3-1), packet identifier 0
  (MQTT-2.2.1-3), a topic alias although none was allowed (MQTT-3.3.2-10), payload formats above 1 (3.3.2.3.2), and a
  last property that is longer than the Property Length leaves it (2.2.2.1): paho reads on into the payload.
- An unrequested subscription identifier is skipped in any number; paho takes one.
- At QoS 2 the message is delivered when PUBLISH comes, and not when PUBREL does: PUBREC waits for its receiver (4.3.3).
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bridge.mqtt.client import Link
from bridge.mqtt.packet_reader import ExactlyOnce
from bridge.mqtt.publishes import BAD, MORE, PublishDecoder, packet_length
from bridge.mqtt.types import Disconnected, LinkHandler, Message, PublishProperties
from bridge.settings.mqtt import MqttSettings
from tests.support.mqtt_streams import CONNACK, PROTOCOLS, by_paho, packets, plain_publish, publishes
from tests.support.raw_mqtt import packet, text

protocols = st.sampled_from(sorted(PROTOCOLS))


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    protocol = draw(protocols)
    return protocol, draw(st.lists(packets(protocol), min_size=1, max_size=6))


def decoder(protocol: str) -> PublishDecoder:
    return PublishDecoder(mqtt5=protocol == "5")


PAHO_TAKES = (
    "its topic ",
    "it has no packet identifier",
    "it has a topic alias",
    "it has payload format",
    "its properties end within one of them",
)
"""Reasons for which paho may deliver a message all the same."""


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_a_sound_frame_is_one_message_and_that_of_paho_where_it_takes_it(data: st.DataObject) -> None:
    protocol = data.draw(protocols)
    raw = data.draw(publishes(protocol))
    found: list[Message] = []
    assert decoder(protocol).decode(raw, 0, 10, found) == (len(raw), MORE)  # nothing left
    (ours,) = found
    assert type(ours.payload) is bytes
    release = packet(0x62, struct.pack("!H", ours.mid)) if ours.qos == 2 else b""
    theirs, lost = by_paho(raw + release, protocol)
    if ours.malformed:
        assert lost or ours.malformed.startswith(PAHO_TAKES)
        assert raw.endswith(ours.payload)
        assert ours.mid == 0 or ours.qos in (1, 2)
    elif lost:
        assert "\ufeff".encode() in raw or raw.count(b"\x0b") > 1
    else:
        assert theirs == found


def test_a_property_beyond_the_length_of_the_properties_is_malformed_though_paho_takes_it() -> None:
    raw = packet(0x30, b"\x00\x03a/b" + b"\x03\x02\x00\x00" + b"\x00\x00payload")
    found: list[Message] = []
    assert decoder("5").decode(raw, 0, 10, found) == (len(raw), MORE)
    assert [one.malformed for one in found] == ["its properties end within one of them"]
    theirs, lost = by_paho(raw, "5")
    assert ([one.payload for one in theirs], lost) == ([b"\x00\x00payload"], False)


@settings(deadline=None, max_examples=500)
@given(protocols, st.integers(0, 15), st.binary(max_size=80))
def test_h33_any_body_in_a_sound_frame_is_a_message(protocol: str, flags: int, body: bytes) -> None:
    following = plain_publish("honest", b"1", 7, protocol=protocol)
    found: list[Message] = []
    raw = packet(0x30 | flags, body) + following
    assert decoder(protocol).decode(raw, 0, 10, found) == (len(raw), MORE)
    assert found[1] == Message("honest", b"1", 1, False, False, 7, None)
    found[0].topic.encode()
    if found[0].malformed:
        assert found[0].payload == body


@pytest.mark.parametrize(
    ("flags", "body", "why"),
    [
        (2, b"\0\1a\0\1\x03\x03\0\1", "end within"),
        (2, b"\0\1a\0\1\x04\x03\0\1\0", "U+0000"),
        (2, b"\0\1a\0\1\x04\x03\0\1\xff", "not UTF-8"),
        (2, b"\0\1a\0\1\x08\x03\0\1a\x03\0\1a", "property 3 twice"),
        (2, b"\0\1a\0\1\x02\x7f\0", "property 127"),
        (2, b"\0\1a\0\1\x02\x01\2", "payload format 2"),
        (2, b"\0\1a\0\1\x7f", "longer than the packet"),
        (2, b"\0\1a\0\1\xff\xff\xff\xff\1", "has no end"),
        (2, b"\0\1a\0\1\x02\x0b\0", "subscription identifier 0"),
        (2, b"\0\0\0\1\0", "empty"),
        (2, b"\0\0\0\1\x03\x23\0\1", "empty"),
        (2, b"\0\1a\0\1\x03\x23\0\1", "topic alias"),
        (2, b"\0\1\xff\0\1\0", "its topic is not UTF-8"),
        (2, b"\0\1\0\0\1\0", "its topic contains U+0000"),
        (2, b"\0\1a\0\0\0", "packet identifier"),
        (6, b"\0\1a\0\1\0", "QoS 3"),
        (0, b"\0", "longer than the packet"),
    ],
)
def test_h33_what_is_malformed_says_why_and_keeps_its_identifier(flags: int, body: bytes, why: str) -> None:
    found: list[Message] = []
    decoder("5").decode(packet(0x30 | flags, body), 0, 10, found)
    (message,) = found
    assert why in message.malformed
    assert message.payload == body
    assert message.mid == (0 if flags != 2 or why == "packet identifier" else 1)


@pytest.mark.parametrize("text_", ["\ufeff", "\ufffe", "\uffff", "\x01\x7f", "\U0010ffff"])
def test_h33_legal_texts_are_kept_as_they_are(text_: str) -> None:
    user, kind = b"\x26" + text(text_) + text("v" + text_), b"\x03" + text(text_)
    block = user + kind
    found: list[Message] = []
    decoder("5").decode(packet(0x32, text(text_) + b"\0\1" + bytes([len(block)]) + block), 0, 10, found)
    properties = PublishProperties(user=((text_, "v" + text_),), content_type=text_)
    assert found == [Message(text_, b"", 1, False, False, 1, properties)]


@settings(deadline=None, max_examples=150)
@given(protocols, st.integers(0, 3), st.text(min_size=1, max_size=5), st.sampled_from([0, 1, 127, 128, 20_000]))
def test_plain_packets_are_taken_at_every_cut(protocol: str, before: int, topic: str, size: int) -> None:
    assume("\0" not in topic)
    one = plain_publish(topic, b"p" * size, 9, protocol=protocol)
    lead = plain_publish("lead", b"", 1, protocol=protocol) * before
    cuts = range(len(lead), len(lead) + len(one)) if size < 1000 else (len(lead), len(lead) + 3, len(lead + one) - 1)
    for cut in cuts:
        under, found = decoder(protocol), []  # type: tuple[PublishDecoder, list[Message]]
        at, theirs = under.decode((lead + one)[:cut], 0, 100, found)
        assert (at, theirs, len(found)) == (len(lead), MORE, before)
        assert under.decode(lead + one, at, 100, found) == (len(lead + one), MORE)
        assert found[-1] == Message(topic, b"p" * size, 1, False, False, 9, None)


@settings(deadline=None, max_examples=300)
@given(protocols, st.binary(max_size=60), st.integers(0, 3))
def test_no_bytes_make_it_raise_or_run_past_their_end(protocol: str, junk: bytes, at: int) -> None:
    found: list[Message] = []
    stopped, theirs = decoder(protocol).decode(junk, min(at, len(junk)), 100, found)
    assert min(at, len(junk)) <= stopped <= len(junk)
    if theirs == MORE:
        assert packet_length(junk, stopped) == MORE or stopped + packet_length(junk, stopped) > len(junk)
    else:
        assert theirs == packet_length(junk, stopped)


def test_a_limit_stops_between_two_messages() -> None:
    raw = plain_publish("t", b"", 1, protocol="5") * 5
    found: list[Message] = []
    at, theirs = decoder("5").decode(raw, 0, 2, found)
    assert (at, theirs, len(found)) == (len(raw) // 5 * 2, 0, 2)


def test_a_remaining_length_of_five_bytes_has_no_end() -> None:
    assert decoder("5").decode(b"\x32\xff\xff\xff\xff\x01", 0, 1, []) == (0, BAD)
    assert decoder("5").decode(b"\x32\xff\xff\xff", 0, 1, []) == (0, MORE)


def test_a_remaining_length_in_more_bytes_than_it_needs_is_read() -> None:
    for length in (b"\x85\0", b"\x85\x80\0", b"\x85\x80\x80\0"):
        found: list[Message] = []
        decoder("3.1.1").decode(b"\x30" + length + b"\0\1axy", 0, 1, found)
        assert found == [Message("a", b"xy", 0, False, False, 0, None)]


def test_the_cache_of_topics_is_bounded() -> None:
    under = PublishDecoder(mqtt5=False, topics=3)
    found: list[Message] = []
    for n in range(10):
        under.decode(plain_publish(f"t/{n}", b"", 1, protocol="3.1.1"), 0, 1, found)
    assert [m.topic for m in found] == [f"t/{n}" for n in range(10)]
    assert len(under._topics) <= 3


class Recorder(LinkHandler):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lost: list[Disconnected] = []

    def on_message(self, message: Message) -> None:
        self.messages.append(message)

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


def through_the_link(pieces: list[bytes], protocol: str) -> list[Message]:
    """Play bytes to a link, piece by piece, then end the stream: the link's own loop, over a real socket."""
    handler = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        link = Link(MqttSettings(port=port, protocol=protocol), handler)  # type: ignore[arg-type]
        try:
            link.turn(0.0)
            peer, _ = listener.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.setblocking(False)
                for piece in [CONNACK[protocol], *pieces]:
                    while piece and not handler.lost:
                        with suppress(OSError):  # full, or closed by a link that has read what it does not take
                            piece = piece[peer.send(piece) :]
                        link.turn(0.0)
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
                while not handler.lost:
                    link.turn(1.0)
        finally:
            link.close()
    return handler.messages


@settings(deadline=None, max_examples=60)
@given(streams(), st.lists(st.integers(0, 400), max_size=4))
def test_h33_a_link_reads_on_after_any_content_of_a_publish(stream: tuple[str, list[bytes]], cuts: list[int]) -> None:
    """However the stream is cut: each PUBLISH is a message, and an honest message behind all of them arrives."""
    protocol, sent = stream
    raw = b"".join(sent) + plain_publish("the end", b"", 1, protocol=protocol)
    edges = sorted({0, len(raw), *(min(c, len(raw)) for c in cuts)})
    messages = through_the_link([raw[a:b] for a, b in pairwise(edges)], protocol)
    found: list[Message] = []
    decoder(protocol).decode(b"".join(one for one in sent if one[0] >> 4 == 3), 0, 100, found)
    assert messages[:-1] == ExactlyOnce().arrived(found)[0]  # none of QoS 2 comes twice
    assert messages[-1].topic == "the end"


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_stream_cut_at_every_byte(protocol: str) -> None:
    plain = [plain_publish(f"t/{n}", b"p" * (n * 60), n + 1, protocol=protocol) for n in range(3)]
    empty = b"\0" if protocol == "5" else b""
    twice = packet(0x34, text("q/2") + b"\0\x63" + empty + b"two") + b"\x62\2\0\x63"  # QoS 2 and its PUBREL
    rich = packet(0x33, text("r") + b"\0\7" + (b"\x0c\x03\0\1t\x26\0\1a\0\2bc" if empty else b"") + b"r")
    raw = plain[0] + twice + plain[1] + b"\xd0\0" + rich + plain[2]
    expected, lost = by_paho(raw, protocol)
    assert [m.payload for m in expected] == [b"", b"two", b"p" * 60, b"r", b"p" * 120]
    assert not lost  # PUBREL follows at once, so that the order is the same as paho's
    for cut in range(len(raw)):
        assert through_the_link([raw[:cut], raw[cut:]], protocol) == expected
    assert through_the_link([raw[n : n + 1] for n in range(len(raw))], protocol) == expected

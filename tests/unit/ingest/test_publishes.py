"""The fast path against paho's own decoder: the same messages, in the same order, and the same end."""

from __future__ import annotations

import socket
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bridge.mqtt.client import Link
from bridge.mqtt.publishes import MORE, PublishDecoder, packet_length
from bridge.mqtt.types import Disconnected, LinkHandler, Message
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


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_what_is_taken_is_what_paho_would_have_given(data: st.DataObject) -> None:
    protocol = data.draw(protocols)
    raw = data.draw(publishes(protocol))
    found: list[Message] = []
    at, theirs = decoder(protocol).decode(raw, 0, 10, found)
    if found:
        assert (at, theirs) == (len(raw), MORE)  # nothing left
        assert (found, False) == by_paho(raw, protocol)
        assert type(found[0].payload) is bytes
    else:
        assert (at, theirs) == (0, len(raw))  # paho's, whole


@settings(deadline=None, max_examples=150)
@given(
    protocols, st.integers(0, 3), st.text(min_size=1, max_size=5), st.sampled_from([0, 1, 127, 128, 20_000])
)
def test_plain_packets_are_taken_at_every_cut(protocol: str, before: int, topic: str, size: int) -> None:
    assume("\0" not in topic)
    one = plain_publish(topic, b"p" * size, 9, protocol=protocol)
    lead = plain_publish("lead", b"", 1, protocol=protocol) * before
    cuts = (
        range(len(lead), len(lead) + len(one))
        if size < 1000
        else (len(lead), len(lead) + 3, len(lead + one) - 1)
    )
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
    assert theirs == MORE or theirs > 0
    assert packet_length(junk, stopped) == MORE or theirs == MORE or theirs == packet_length(junk, stopped)


def test_a_limit_stops_between_two_messages() -> None:
    raw = plain_publish("t", b"", 1, protocol="5") * 5
    found: list[Message] = []
    at, theirs = decoder("5").decode(raw, 0, 2, found)
    assert (at, theirs, len(found)) == (len(raw) // 5 * 2, 0, 2)


def test_a_large_packet_is_paho_s_before_it_is_complete() -> None:
    raw = plain_publish("t", b"x" * 100_000, 1, protocol="5")
    assert decoder("5").decode(raw[:50], 0, 1, []) == (0, len(raw))


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
                        with suppress(
                            OSError
                        ):  # full, or closed by a link that has read what it does not take
                            piece = piece[peer.send(piece) :]
                        link.turn(0.0)
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
                while not handler.lost:
                    link.turn(1.0)
        finally:
            link.close()
    return handler.messages


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # a payload of more than 16 KiB is one
@settings(deadline=None, max_examples=200)
@given(streams(), st.lists(st.integers(0, 400), max_size=4))
def test_a_link_gives_what_paho_alone_would(stream: tuple[str, list[bytes]], cuts: list[int]) -> None:
    """A marker behind the stream arrives if, and only if, nothing before it ended the connection.

    paho sees the stream in one piece: of one in pieces it loses its place where a packet begins with a null.
    """
    protocol, sent = stream
    raw = b"".join(sent) + plain_publish("the end", b"", 1, protocol=protocol)
    edges = sorted({0, len(raw), *(min(c, len(raw)) for c in cuts)})
    pieces = [raw[a:b] for a, b in pairwise(edges)]
    expected, _ = by_paho(raw, protocol)
    assert through_the_link(pieces, protocol) == expected


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_stream_cut_at_every_byte(protocol: str) -> None:
    plain = [plain_publish(f"t/{n}", b"p" * (n * 60), n + 1, protocol=protocol) for n in range(3)]
    empty = b"\0" if protocol == "5" else b""
    twice = packet(0x34, text("q/2") + b"\0\x63" + empty + b"two") + b"\x62\2\0\x63"  # QoS 2 and its PUBREL
    rich = packet(0x33, text("r") + b"\0\7" + (b"\x0c\x03\0\1t\x26\0\1a\0\2bc" if empty else b"") + b"r")
    raw = plain[0] + twice + plain[1] + b"\xd0\0" + rich + plain[2]
    expected, lost = by_paho(raw, protocol)
    assert [m.payload for m in expected] == [b"", b"two", b"p" * 60, b"r", b"p" * 120]
    assert not lost
    for cut in range(len(raw)):
        assert through_the_link([raw[:cut], raw[cut:]], protocol) == expected
    assert through_the_link([raw[n : n + 1] for n in range(len(raw))], protocol) == expected

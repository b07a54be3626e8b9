"""A link against brokers that send what no other sends: what ends the connection, and what only its message."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.mqtt.buffered_socket import HEAD_BYTES
from bridge.mqtt.client import Link
from bridge.mqtt.refusals import perhaps_for_a_packet
from bridge.mqtt.types import Disconnected, LinkHandler, Message, Subscription
from bridge.settings.mqtt import MqttSettings
from tests.support.mqtt_streams import CONNACK, plain_publish
from tests.support.raw_broker import RawBroker
from tests.support.raw_mqtt import packet, text
from tests.support.waiting import poll_for


class Recorder(LinkHandler):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lost: list[Disconnected] = []
        self.granted: list[int] = []

    def on_message(self, message: Message) -> None:
        self.messages.append(message)

    def on_subscribed(self, codes: list[int]) -> None:
        self.granted += codes

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


class Peer:
    """The broker's end of one connection."""

    def __init__(self, link: Link, sock: socket.socket) -> None:
        self._link = link
        self._sock = sock
        self.received = b""
        sock.setblocking(False)

    def send(self, data: bytes) -> None:
        while data:
            with suppress(BlockingIOError):
                data = data[self._sock.send(data) :]
            self._link.turn(0.0)

    def turns(self, done: Callable[[], bool]) -> None:
        def turned() -> bool:
            self._link.turn(0.01)
            with suppress(BlockingIOError, ConnectionError):
                self.received += self._sock.recv(65536)
            return done()

        poll_for(turned, 60, "the link got that far", every=0.0)

    def close(self) -> None:
        self._sock.close()


@contextmanager
def playing(
    protocol: str = "5", connack: bytes = b"", **options: int
) -> Iterator[tuple[Link, Recorder, Callable[[], Peer]]]:
    """A link, what it reports, and what accepts its next connection; ``connack`` is sent on each."""
    handler = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = MqttSettings(
            port=listener.getsockname()[1], protocol=protocol, reconnect_min="1ms", reconnect_max="10ms"
        )  # type: ignore[arg-type]
        link = Link(made, handler, **options)
        peers: list[Peer] = []

        def accept() -> Peer:
            def accepted() -> bool:
                link.turn(0.01)
                with suppress(BlockingIOError):
                    peers.append(Peer(link, listener.accept()[0]))
                    return True
                return False

            poll_for(accepted, 60, "a connection", every=0.0)
            with suppress(OSError):
                peers[-1].send(connack or CONNACK[protocol])
            return peers[-1]

        try:
            yield link, handler, accept
        finally:
            link.close()
            for peer in peers:
                peer.close()


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize(
    "sent",
    [
        b"\x90\1\0",  # SUBACK without a packet identifier
        b"\x90\2\0\1",  # and without a code
        b"\x40\1\0",  # PUBACK of one byte
        b"\x50\0",
        b"\x62\1\1",
        b"\x70\0",
        b"\x20\2\0\0",  # CONNACK a second time
        b"\xc0\0",  # PINGREQ
        b"\x10\0",
        b"\xf0\0",  # AUTH
        b"\0\0",
        b"\x32\xff\xff\xff\xff\x01",
        b"\x90\xff\xff\xff\x7f",  # a SUBACK of 256 MB
    ],
)
def test_h33_unreadable_bytes_of_the_broker_are_reported_as_unreadable(protocol: str, sent: bytes) -> None:
    """Not a close by the peer: so neither a takeover nor evidence against a command (H34, H50)."""
    with playing(protocol, max_packet_bytes=1 << 20) as (_, handler, accept):
        peer = accept()
        peer.turns(lambda: bool(_.connected))
        peer.send(sent)
        peer.turns(lambda: bool(handler.lost))
        (event,) = handler.lost[:1]
        assert event.epoch == 1
        assert event.why.startswith("the broker sent ")
        assert not event.closed_by_peer
        assert not perhaps_for_a_packet(event)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_suback_has_a_code_for_each_filter_and_answers_what_was_asked(protocol: str) -> None:
    """Else a filter that was not granted would count as granted, or a broker that answers nothing end the link's user."""
    none = b"\0" if protocol == "5" else b""
    with playing(protocol) as (link, handler, accept):
        peer = accept()
        peer.turns(lambda: link.connected)
        peer.send(packet(0x90, b"\0\x09" + none + b"\x80"))  # without a request
        link.subscribe([Subscription("a"), Subscription("b")])
        peer.send(packet(0x90, b"\0\1" + none + b"\1\x80"))
        peer.turns(lambda: bool(handler.granted))
        assert handler.granted == [1, 0x80]
        link.subscribe([Subscription("a"), Subscription("b")])
        peer.send(packet(0x90, b"\0\2" + none + b"\1"))
        peer.turns(lambda: bool(handler.lost))
        assert handler.lost[0].why == "the broker sent a malformed SUBACK: it has 1 reason codes for 2 filters"
        assert handler.granted == [1, 0x80]


@pytest.mark.parametrize(
    "connack",
    [
        b"\x20\3\0\x7e\0",
        b"\x20\1\0",
        b"\x20\0",
        b"\x20\5\0\0\2\xff\0",
        b"\x20\3\0\0\x7f",  # properties of 127 bytes, of which none follows
        b"\x20\4\0\0\2\x21",
        b"\x20\3\0\x87\5",
        b"\x32\2\0\0",
    ],
)
def test_h33_a_connack_that_cannot_be_read_is_called_so(connack: bytes) -> None:
    with playing(connack=connack) as (link, handler, accept):
        accept().turns(lambda: bool(handler.lost))
        assert handler.lost[0].why.startswith("the broker sent ")
        assert (handler.lost[0].epoch, handler.lost[0].closed_by_peer) == (0, False)
        assert link.epoch == 0


def test_an_unacceptable_protocol_version_names_the_setting() -> None:
    with playing("3.1.1", b"\x20\2\0\1") as (_, handler, accept):
        accept().turns(lambda: bool(handler.lost))
        assert handler.lost[0].reason == 0x84
        assert "mqtt.protocol" in (handler.lost[0].remedy or "")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["3.1.1", "5"]), st.binary(max_size=60))
def test_no_bytes_of_a_broker_end_the_link(protocol: str, junk: bytes) -> None:
    with playing(protocol) as (link, _, accept):
        peer = accept()
        peer.turns(lambda: link.connected)
        with suppress(OSError):
            peer.send(junk)
        peer.close()
        again = accept()
        again.turns(lambda: link.connected)


@pytest.mark.parametrize(("sent", "reason"), [(0x01, 0x01), (0x7F, 0x7F), (0xFE, 0xFE)])
def test_h49_an_unknown_reason_of_puback_is_a_success_or_a_refusal_by_its_number(sent: int, reason: int) -> None:
    with RawBroker(lambda _: sent) as broker:
        handler, confirmed = Recorder(), list[int]()
        link = Link(MqttSettings(port=broker.port, protocol="5"), handler)
        try:
            for qos in (1, 2):
                link.publish("t", b"x", qos=qos, confirmed=confirmed.append)

            def turned() -> bool:
                link.turn(0.01)
                return len(confirmed) == 2

            poll_for(turned, 60, "both confirmations", every=0.0)
        finally:
            link.disconnect()
            link.close()
    assert confirmed == [reason, reason]
    assert not handler.lost
    assert broker.connections == 1


def test_h49_a_broker_that_closes_after_connack_is_dialled_with_backoff() -> None:
    with RawBroker(closes=5) as broker:
        handler = Recorder()
        made = MqttSettings(port=broker.port, protocol="5", reconnect_min="1ms", reconnect_max="100ms")
        link = Link(made, handler)
        attempts: list[int] = []
        try:

            def turned() -> bool:
                before = len(handler.lost)
                link.turn(0.01)
                attempts.extend([link.reconnects.attempts] * (len(handler.lost) - before))
                return broker.connections > 5 and link.connected

            poll_for(turned, 60, "the connection that stays", every=0.0)
        finally:
            link.disconnect()
            link.close()
    assert attempts == [1, 2, 3, 4, 5]


def qos_2(topic: str, mid: int, payload: bytes, *, dup: bool = False) -> bytes:
    return packet(0x3C if dup else 0x34, text(topic) + mid.to_bytes(2, "big") + b"\0" + payload)


def test_h51_pubrec_waits_for_the_receiver_in_the_order_of_arrival() -> None:
    with playing() as (link, handler, accept):
        peer = accept()
        peer.turns(lambda: link.connected)
        peer.send(
            plain_publish("a", b"1", 1, protocol="5") + qos_2("a", 2, b"2") + plain_publish("a", b"3", 3, protocol="5")
        )
        peer.turns(lambda: len(handler.messages) == 3)
        peer.received = b""
        peer.send(qos_2("a", 2, b"2", dup=True))  # while it waits: neither delivered nor answered
        assert link.acknowledge([1, 2, 3], link.epoch)
        peer.turns(lambda: len(peer.received) == 12)
        assert peer.received == b"\x40\2\0\1" + b"\x50\2\0\2" + b"\x40\2\0\3"
        peer.send(qos_2("a", 2, b"2", dup=True))
        peer.turns(lambda: len(peer.received) == 16)
        assert peer.received[12:] == b"\x50\2\0\2"
        peer.send(b"\x62\2\0\2")
        peer.turns(lambda: len(peer.received) == 20)
        assert peer.received[16:] == b"\x70\2\0\2"
        assert [m.payload for m in handler.messages] == [b"1", b"2", b"3"]
        peer.send(qos_2("a", 2, b"4"))  # the identifier is free, and this is another message
        peer.turns(lambda: len(handler.messages) == 4)
        assert not handler.lost


def test_h51_what_was_not_acknowledged_comes_again_and_is_delivered_again() -> None:
    with playing(connack=b"\x20\3\1\0\0") as (link, handler, accept):
        for epoch in (1, 2):
            peer = accept()
            peer.turns(lambda: link.connected)
            peer.send(qos_2("a", 5, b"x", dup=epoch == 2))
            peer.turns(lambda epoch=epoch: len(handler.messages) == epoch)  # type: ignore[misc]
            if epoch == 1:
                peer.close()
        assert link.acknowledge([5], 2)
        peer.turns(lambda: peer.received.endswith(b"\x50\2\0\5"))


@pytest.mark.parametrize("size", [70_000, 1_000_000, 3_000_000])
def test_a_large_packet_is_gathered_and_one_over_the_limit_is_cut(size: int) -> None:
    limit = 2_000_000
    with playing(max_packet_bytes=limit) as (link, handler, accept):
        peer = accept()
        peer.turns(lambda: link.connected)
        payload = bytes(range(256)) * (size // 256)
        large = plain_publish("big", payload, 9, protocol="5")
        peer.send(large + plain_publish("next", b"1", 10, protocol="5"))
        peer.turns(lambda: len(handler.messages) == 2)
        big, following = handler.messages
        assert (big.topic, big.mid, following.topic) == ("big", 9, "next")
        if len(large) <= limit:
            assert (big.payload, big.malformed) == (payload, "")
        else:
            assert f"{len(large)} bytes" in big.malformed
            assert len(big.payload) < HEAD_BYTES
            assert large.startswith(big.payload, len(large) - len(payload) - 8)


def test_h35_a_link_that_names_no_limit_keeps_no_256_mib_for_one_message() -> None:
    """Devices publish to push, and to what the other clients of this process subscribe to."""
    with playing() as (link, handler, accept):
        peer = accept()
        peer.turns(lambda: link.connected)
        peer.send(plain_publish("big", bytes(17 << 20), 9, protocol="5"))
        peer.turns(lambda: len(handler.messages) == 1)
        (big,) = handler.messages
        assert (big.topic, big.mid) == ("big", 9)
        assert len(big.payload) < HEAD_BYTES
        assert "SHA-256" in big.malformed


def test_h42_a_text_that_is_not_utf_8_is_refused_and_the_next_publish_goes() -> None:
    with RawBroker() as broker:
        link = Link(MqttSettings(port=broker.port, protocol="5"), Recorder())
        confirmed: list[int] = []
        try:
            with pytest.raises(ValueError, match="surrogates"):
                link.publish("a/\udcff", b"")
            from bridge.mqtt.types import PublishProperties

            bad = PublishProperties(user=(("k", "\ud800"),))
            link.publish("a", b"1", properties=bad, confirmed=confirmed.append)
            link.publish("a", b"2", confirmed=confirmed.append)

            def turned() -> bool:
                link.turn(0.01)
                return len(confirmed) == 2

            poll_for(turned, 60, "both", every=0.0)
        finally:
            link.disconnect()
            link.close()
    assert confirmed == [0x83, 0]
    assert [one.payload for one in broker.taken] == [b"2"]

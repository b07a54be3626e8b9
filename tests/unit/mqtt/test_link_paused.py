"""A link that has stopped reading, against a peer on a real socket that goes on sending (H3)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from bridge.mqtt import buffered_socket
from bridge.mqtt.buffered_socket import MAX_PACKET_BYTES, BufferedSocket, dialled
from bridge.mqtt.client import Link
from bridge.mqtt.types import Disconnected, LinkHandler, Message
from bridge.settings.mqtt import MqttSettings
from tests.support.mqtt_packets import PINGREQ, PINGRESP, publish
from tests.support.mqtt_streams import CONNACK
from tests.support.waiting import poll_for


class Pausing(LinkHandler):
    """Reads all there is, or nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.lost: list[Disconnected] = []

    def on_messages(self, messages: Sequence[Message]) -> None:
        self.count += len(messages)

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


class Peer:
    """What a broker does, by hand: it sends as much as its socket takes, and counts what comes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent = b""
        self.sent = 0
        self.received = bytearray()
        self._answered = 0
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)

    def send(self, packet: bytes, count: int = 1) -> bool:
        """Send ``packet`` so many times, as far as the socket takes it. Returns whether it took all."""
        if not self._unsent:
            self._unsent = packet * count
            self.sent += count
        return self.flush()

    def flush(self) -> bool:
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self._sock.send(self._unsent) :] if self._unsent else b""
        return not self._unsent

    def pings(self) -> int:
        with suppress(BlockingIOError):
            self.received += self._sock.recv(65536)
        return self.received.count(PINGREQ)

    def answer(self) -> None:
        """Answer the pings that came, behind what the socket has not taken yet."""
        pings = self.pings()
        self._unsent += PINGRESP * (pings - self._answered)
        self._answered = pings


@contextmanager
def connected(keep_alive_s: int) -> Iterator[tuple[Link, Pausing, Peer]]:
    """A link of MQTT 3.1.1 that is connected, with a keep-alive shorter than the settings allow."""
    handler = Pausing()
    with socket.create_server(("127.0.0.1", 0)) as broker:
        settings = MqttSettings(port=broker.getsockname()[1], protocol="3.1.1")
        link = Link(settings.model_copy(update={"keep_alive": keep_alive_s}), handler)
        try:
            link.turn(0.0)
            accepted, _ = broker.accept()
            with accepted:
                peer = Peer(accepted)
                peer.send(CONNACK["3.1.1"])
                peer.sent = 0

                def accepts() -> bool:
                    link.turn(0.01)
                    return link.connected

                poll_for(accepts, 30, "CONNACK", every=0.0)
                yield link, handler, peer
        finally:
            link.close()


def test_h3_pings_arrive_although_the_kernel_has_no_room_for_what_the_broker_sends() -> None:
    """Small segments after large ones take more memory than the kernel has promised: it throws the last away.

    A few PUBLISHes are shorter than the unit of the window here, 1 KiB: so the peer's acknowledgements lie beyond a window of 0.
    """
    packet = publish("3.1.1", b"t/d", bytes(300), 1)
    with connected(keep_alive_s=2) as (link, handler, peer):

        def turned() -> bool:
            link.turn(0.001)
            peer.answer()  # a busy machine may take longer than a keep-alive
            return peer.flush()

        peer.send(packet, 3000)
        poll_for(lambda: turned() and handler.count == peer.sent, 30, "what came in large pieces", every=0.0)
        link.paused = True

        def trickled() -> bool:
            link.turn(0.001)
            return not peer.send(packet)

        poll_for(trickled, 60, "the buffers on the way to be full", every=0.0)
        pings = peer.pings()

        def pinged() -> bool:
            trickled()
            return peer.pings() >= pings + 4

        poll_for(pinged, 30, "four pings", every=0.0)
        link.paused = False
        poll_for(lambda: turned() and handler.count == peer.sent, 30, "all that was sent", every=0.0)
        assert link.epoch == 1
        assert not handler.lost


def test_h39_a_broker_that_reads_no_answer_is_read_no_further_and_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on with messages and PINGRESP."""
    monkeypatch.setattr(buffered_socket, "_OUT_LIMIT", 100_000)
    packets = publish("3.1.1", b"t/d", b"", 1) + b"\xd0\0"
    answered = 0
    with connected(keep_alive_s=2) as (link, handler, peer):

        def lost() -> bool:
            nonlocal answered
            peer.send(packets, 100)
            link.turn(0.001)
            # A thousand for each message, so that the kernel's buffers are full soon.
            link.acknowledge([1] * 1000 * (handler.count - answered), link.epoch)
            answered = handler.count
            return bool(handler.lost)

        poll_for(lost, 60, "the end of the connection", every=0.0)
        assert "PINGREQ" in handler.lost[0].why
        assert handler.count < peer.sent


def test_h3_what_is_read_for_a_link_that_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the kernel would report a full buffer without end."""
    came = iter(range(1_000_000))
    monkeypatch.setattr(buffered_socket, "_arrivals", lambda _sock: (0, next(came)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            sock = BufferedSocket(ours)
            for second in range(500):
                with suppress(BlockingIOError):
                    theirs.send(bytes(65536))
                sock.make_room(float(second))
                assert sock.make_room(second + 0.5) == 0  # once a second
            assert 512 * 1024 <= sock.pending() < 512 * 1024 + 65536


def test_a_kernel_with_room_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.setblocking(False)
            sock = BufferedSocket(ours)
            for second in range(10):
                theirs.send(b"x")
                assert sock.make_room(float(second)) == 0
            assert sock.fill() == 10


def test_a_socket_without_tcp_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sock = BufferedSocket(ours)
        theirs.send(b"x")
        assert sock.make_room(0.0) == sock.make_room(1.0) == 0


def test_a_connection_for_which_tls_has_no_files_is_closed(tmp_path: Path) -> None:
    """As while they are replaced: the next attempt finds them whole, and no socket is left from this one."""
    half = tmp_path / "ca.pem"
    half.write_text("-----BEGIN CERTIFICATE-----\nMIIB")
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = MqttSettings(port=server.getsockname()[1], tls=True, tls_ca=half)
        with pytest.raises(ConfigError, match=r"mqtt\.tls_ca"):
            dialled(settings, MAX_PACKET_BYTES)
        theirs, _ = server.accept()
        with theirs:
            assert theirs.recv(1) == b""

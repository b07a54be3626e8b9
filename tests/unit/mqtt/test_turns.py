"""Several links of one thread: none waits for a broker that is another link's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.mqtt.buffered_socket import BufferedSocket
from bridge.mqtt.client import Link
from bridge.mqtt.dialling import Dialler
from bridge.mqtt.turns import turn_all
from bridge.mqtt.types import Connected, Disconnected, LinkHandler
from bridge.poller import Poller
from bridge.settings.mqtt import MqttSettings
from tests.support.waiting import poll_for

CONNACK = b"\x20\x03\x00\x00\x00"


class Noted(LinkHandler):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_connected(self, event: Connected) -> None:
        self.events.append("up")

    def on_disconnected(self, event: Disconnected) -> None:
        self.events.append(event.why)


@contextmanager
def broker() -> Iterator[int]:
    """A broker that confirms each publish; yields its port."""

    def serve() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(CONNACK)
            while data := peer.recv(4096):
                if data[0] & 0xF0 == 0x30:
                    mid = 4 + data[3]
                    peer.sendall(b"\x40\x02" + data[mid : mid + 2])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def test_a_link_publishes_while_another_dials_in_vain_and_a_third_waits_for_a_connack() -> None:
    poller, confirmed = Poller(), list[int]()
    with broker() as port, socket.create_server(("127.0.0.1", 0)) as silent:
        settings = [MqttSettings(port=port), MqttSettings(port=1), MqttSettings(port=silent.getsockname()[1])]
        settings = [one.model_copy(update={"connect_timeout": 0.2}) for one in settings]
        handlers = [Noted() for _ in settings]
        links = [Link(s, h, persistent=False, poller=poller) for s, h in zip(settings, handlers, strict=True)]
        sent = 0

        def on_turn(_now: float) -> None:
            nonlocal sent
            if links[0].connected and sent == len(confirmed):
                sent += 1
                links[0].publish("t", b"x", confirmed=confirmed.append)

        def done() -> bool:
            turn_all(links, poller, 0.1, on_turn)
            return len(confirmed) >= 20 and any("no CONNACK" in why for why in handlers[2].events)

        poll_for(done, 20, "publishes, and the time-out of the silent broker", every=0.0)
        assert handlers[0].events == ["up"]
        assert "refused" in handlers[1].events[0]
        for link in links:
            link.disconnect()
        links[0].close()


def test_a_dial_that_is_given_up_closes_its_socket_when_it_is_there() -> None:
    near, far = socket.socketpair()
    begun, goes_on, woken = threading.Event(), threading.Event(), list[bool]()

    def dial(_receive_maximum: int) -> BufferedSocket:
        begun.set()
        goes_on.wait(20)
        return BufferedSocket(near, 1000)

    dialler = Dialler(dial, lambda: woken.append(True))
    assert dialler.dial(10) is None
    assert begun.wait(20)
    assert dialler.under_way
    dialler.cancel()
    assert not dialler.under_way
    goes_on.set()
    with far:
        assert far.recv(1) == b"", "closed"
    assert not woken

"""A link against a listener that takes connections and says nothing: each attempt fails for its own reason."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bridge.mqtt.client import Link
from bridge.mqtt.types import Disconnected, LinkHandler
from bridge.settings.mqtt import MqttSettings
from tests.support.mqtt_streams import CONNACK
from tests.support.waiting import poll_for


class Losses(LinkHandler):
    def __init__(self) -> None:
        self.lost: list[Disconnected] = []

    def on_disconnected(self, event: Disconnected) -> None:
        self.lost.append(event)


def test_a_broker_that_says_nothing_is_dialled_again_and_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = MqttSettings(
            port=silent.getsockname()[1],
            client_id="t",
            connect_timeout="50ms",
            reconnect_min="10ms",
            reconnect_max="20ms",
        )
        losses = Losses()
        link = Link(settings, losses)

        def turned() -> bool:
            link.turn(0.02)
            return len(losses.lost) >= 5

        try:
            poll_for(turned, 30, "five attempts", every=0.0)
        finally:
            link.disconnect()
            link.close()
    assert {event.why for event in losses.lost} == {"no CONNACK within 0.05 s"}


@contextmanager
def dialled() -> Iterator[tuple[Link, socket.socket]]:
    """A link that has dialled, and the broker's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as broker:
        link = Link(MqttSettings(port=broker.getsockname()[1], protocol="3.1.1"), Losses())
        try:
            link.turn(0.0)
            peer, _ = broker.accept()
            with peer:
                yield link, peer
        finally:
            link.close()


def test_a_release_of_a_qos_2_message_is_completed_even_when_we_never_saw_it() -> None:
    """The message went to a process before us; without PUBCOMP the broker would never free its slot in the window."""
    with dialled() as (link, peer):
        peer.setblocking(False)
        peer.sendall(CONNACK["3.1.1"] + b"\x62\2\0\x63")

        def answered() -> bool:
            link.turn(0.02)
            with suppress(BlockingIOError):
                answers.extend(peer.recv(1000))
            return answers.endswith(b"\x70\2\0\x63")

        answers = bytearray()
        poll_for(answered, 30, "PUBCOMP", every=0.0)


def test_a_broker_that_does_not_close_after_disconnect_is_left_once() -> None:
    """The broker keeps the connection open and sends nothing. The link closes it once, without an error."""
    with dialled() as (link, peer):
        peer.sendall(CONNACK["3.1.1"])

        def connected() -> bool:
            link.turn(0.02)
            return link.connected

        poll_for(connected, 30, "CONNACK", every=0.0)
        link.disconnect()
        peer.settimeout(10)
        received = b"".join(iter(lambda: peer.recv(1000), b""))
        assert received.endswith(b"\xe0\0")


def test_h6_a_connect_without_connack_is_reported_as_unanswered_and_a_refused_dial_is_not() -> None:
    def first_loss(link: Link) -> Disconnected:
        losses = link.handler = Losses()

        def lost() -> bool:
            link.turn(0.02)
            return bool(losses.lost)

        poll_for(lost, 30, "the loss", every=0.0)
        return losses.lost[0]

    with dialled() as (link, peer):
        peer.close()
        assert first_loss(link).unanswered
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    link = Link(MqttSettings(port=port), Losses())
    try:
        assert not first_loss(link).unanswered
    finally:
        link.close()

"""Connections on real sockets, without Pulsar."""

from __future__ import annotations

import socket
from typing import NoReturn, cast

import pytest

from bridge.http.app import HttpApp
from bridge.http.connections import Connections
from bridge.intake.awaited import AwaitedIntake, SaturatedError
from bridge.mqtt.types import Message
from bridge.protocols.handler import Acceptor, Address
from bridge.protocols.listening import Listening
from bridge.settings import Settings
from bridge.settings.http import HttpSettings


class Full:
    """An intake without room, which says so at length: few answers fill the buffers of a socket."""

    def take(self, message: Message) -> NoReturn:
        raise SaturatedError("full " * 10_000)


def send_for_ever(raw: socket.socket, data: bytes) -> None:
    while True:
        raw.sendall(data)


def test_h39_a_client_that_does_not_read_its_answers_is_cut_off() -> None:
    settings = Settings(http=HttpSettings(limits={"read_timeout": "500ms"}))
    app = HttpApp(settings, cast("AwaitedIntake", Full()))
    listening = Listening()
    listening.start()
    try:
        connections = Connections(settings, app, listening.loop)
        (address,) = listening.open("http", [(Address("127.0.0.1", 0), Acceptor(connections.connect))])
        request = b"POST /topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        with socket.create_connection(address, timeout=30) as raw, pytest.raises(ConnectionError):
            send_for_ever(raw, request * 100)
    finally:
        listening.end()

"""The listeners' event loop, as the process's health sees it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.protocols.handler import Acceptor, Address
from bridge.protocols.listening import Listening
from tests.support.waiting import poll_for


def test_a_handler_that_blocks_the_loop_makes_the_process_sick_until_it_lets_go() -> None:
    health = Health(stuck_s=1.5)
    listening = Listening(health)
    listening.start()
    release = threading.Event()
    try:
        poll_for(lambda: health.verdict(time.monotonic()).ready, 10, "the loop to turn")
        listening.loop.call_soon_threadsafe(release.wait)
        sick = poll_for(lambda: health.verdict(time.monotonic()).sick, 30, "the loop to stand still")
        assert "has not run" in sick["listeners"]
        release.set()
        poll_for(lambda: health.verdict(time.monotonic()).healthy, 10, "the loop to turn again")
    finally:
        release.set()
        listening.end()


@pytest.mark.parametrize("here", [True, False])
def test_an_address_of_the_host_that_this_machine_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    listening = Listening()
    listening.start()
    hosts = ["192.0.2.1", "127.0.0.1"] if here else ["192.0.2.1"]  # the first is for documentation: RFC 5737

    async def addresses(_host: object, port: int, **_more: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(listening.loop, "getaddrinfo", addresses)
    gone = threading.Event()

    class Gone(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            gone.set()

    listeners = [(Address("some-host", 0), Acceptor(Gone))]
    try:
        if here:
            (bound,) = listening.open("http", listeners)
            socket.create_connection(bound, timeout=30).close()
            assert gone.wait(30)  # else the loop ends with the connection open
        else:
            with pytest.raises(TerminalError, match="cannot listen on some-host:0"):
                listening.open("http", listeners)
    finally:
        listening.end()

"""Ports are chosen seconds before a server binds them: no other process may choose them meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from bridge.errors import TerminalError
from bridge.settings.local import LocalSettings
from pulsebridge.local import ports

OTHER = """
import sys
from pulsebridge.local import ports
ports._FIRST, ports._LAST = map(int, sys.argv[1:3])
print(*ports.free_ports(int(sys.argv[3])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Three neighbouring ports that are free, the only ones to choose from."""
    # Outside the range of free_ports: another test beside this one would take one of the three, and then none is left.
    first = next(n for n in range(10_000 + os.getpid() % 9_000, 20_000) if all(map(ports.is_free, range(n + 1, n + 4))))
    monkeypatch.setattr(ports, "_reserved", type(ports._reserved)(maxlen=3))
    monkeypatch.setattr(ports, "_FIRST", first + 1)
    monkeypatch.setattr(ports, "_LAST", first + 3)
    yield [first + 1, first + 2, first + 3]
    for held in ports._reserved:
        held.close()


def test_two_processes_choose_different_ports(three: list[int]) -> None:
    command = [sys.executable, "-c", OTHER, str(three[0]), str(three[-1]), "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = [int(word) for word in other.stdout.readline().split()]
        ours = ports.free_ports(1)
        other.communicate()
    assert sorted(theirs + ours) == three


def test_a_server_listens_on_a_port_that_is_kept_for_it(three: list[int]) -> None:
    (port,) = ports.free_ports(1)
    assert ports.is_free(port)
    with closing(socket.socket()) as server, closing(socket.socket()) as device:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers in Java, C and Erlang do
        server.bind(("127.0.0.1", port))
        server.listen()
        device.connect(("127.0.0.1", port))
        assert not ports.is_free(port)


def test_a_used_port_is_refused_with_the_option_that_uses_its_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TerminalError, match=rf"port {port} \(--mqtt-port\)") as caught:
            ports.refuse_used(LocalSettings(mqtt_port=port))
        assert "give its URL (--mqtt)" in (caught.value.remedy or "")
        # `init --mqtt localhost` writes the port; --mqtt names the broker that listens there, so it may be used
        ports.refuse_used(LocalSettings(mqtt_port=port, mqtt_url=f"mqtt://localhost:{port}"))
        servers = {"pulsar_url": f"pulsar://127.0.0.1:{port}", "admin_url": f"http://127.0.0.1:{port}"}
        ports.refuse_used(LocalSettings(pulsar_port=port, admin_port=port, **servers))

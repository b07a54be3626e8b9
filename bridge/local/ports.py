"""Free loopback ports for servers that must come back on the same one, and who listens where."""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping

import psutil

from bridge.errors import TerminalError

__all__ = ["free_ports", "is_free", "loopback_interface", "refuse_taken"]

# Below every system's ephemeral range: a client that dials a killed server's port from that range can meet itself,
# and then holds the port that the server needs to come back.
_FIRST, _LAST = 20_000, 31_999
_reserved: deque[socket.socket] = deque(maxlen=256)
"""Sockets that keep the last ports that were chosen."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1 at ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def refuse_taken(given: Mapping[str, int]) -> None:
    """Raise TerminalError for the first option whose port (0: none given) another process has."""
    for option, port in given.items():
        if port and not is_free(port):
            raise TerminalError(
                f"port {port} ({option}) is taken by another process",
                remedy=f"stop that process, or leave {option} out to get a free port",
            )


def free_ports(count: int, *, taken: Iterable[int] = ()) -> list[int]:
    """Return ``count`` different free ports, none of them in ``taken``, that no other call returns soon, in this process
    or in another one: a server binds its port seconds later.
    """
    chosen: list[int] = []
    skipped = set(taken)
    generator = random.Random(time.time_ns())  # a seeded test run must not draw the ports of another one
    while len(chosen) < count:
        port = generator.randint(_FIRST, _LAST)
        if port not in skipped and _reserve(port):
            skipped.add(port)
            chosen.append(port)
    return chosen


def _reserve(port: int) -> bool:
    """Bind a port without listening, unless another socket has it: a server may bind it all the same, as with SO_REUSEADDR the
    kernel refuses it only where another socket listens.
    """
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return False
    _reserved.append(held)
    return True


def loopback_interface() -> str:
    """Return the name of the interface that has 127.0.0.1: ``lo`` on Linux, ``lo0`` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == "127.0.0.1" for a in addresses):
            return name
    return "lo"

"""Free loopback ports for servers that must restart on the same port."""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Iterable

import psutil

from bridge.errors import TerminalError
from bridge.settings.local import LocalSettings

__all__ = ["free_ports", "is_free", "loopback_interface", "refuse_used"]

# Below every system's ephemeral range: a client that dials a killed server's port from that range can connect to
# itself, and then occupies the port that the server needs for its restart.
_FIRST, _LAST = 20_000, 31_999
_reserved: deque[socket.socket] = deque(maxlen=256)
"""Sockets that reserve the last chosen ports."""


def is_free(port: int) -> bool:
    """Return whether a server can listen on 127.0.0.1 at ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def refuse_used(settings: LocalSettings) -> None:
    """Raise TerminalError for the first option whose port (0: none given) another process uses.

    The port of a server whose URL is given does not count, because that server listens there, and none is started.
    """
    given = {"mqtt_port": settings.mqtt_url, "pulsar_port": settings.pulsar_url, "admin_port": settings.pulsar_url}
    urls = {"mqtt_port": "--mqtt", "pulsar_port": "--pulsar and --admin", "admin_port": "--pulsar and --admin"}
    for name in (name for name, url in given.items() if url is None):
        port, option = getattr(settings, name), f"--{name.replace('_', '-')}"
        if port and not is_free(port):
            raise TerminalError(
                f"another process uses port {port} ({option})",
                remedy=f"stop that process (servers of another project: `pulsebridge down` in its folder), or leave {option} "
                f"out to get a free port; to use the server that listens there, give its URL ({urls[name]})",
            )


def free_ports(count: int, *, excluded: Iterable[int] = ()) -> list[int]:
    """Return ``count`` different free ports outside ``excluded``.

    No other call returns them soon, in this process or in another one, because a server binds its port seconds later.
    """
    chosen: list[int] = []
    skipped = set(excluded)
    generator = random.Random(time.time_ns())  # a seeded test run must not draw the ports of another one
    while len(chosen) < count:
        port = generator.randint(_FIRST, _LAST)
        if port not in skipped and _reserve(port):
            skipped.add(port)
            chosen.append(port)
    return chosen


def _reserve(port: int) -> bool:
    """Bind a port without listening, unless another socket uses it. Return whether it is reserved.

    A server can still bind it, because with SO_REUSEADDR the kernel refuses it only if another socket listens.
    """
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    reserving = socket.socket()
    reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserving.bind(("127.0.0.1", port))
    except OSError:
        reserving.close()
        return False
    _reserved.append(reserving)
    return True


def loopback_interface() -> str:
    """Return the name of the interface with 127.0.0.1: ``lo`` on Linux, ``lo0`` on macOS."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == "127.0.0.1" for a in addresses):
            return name
    return "lo"

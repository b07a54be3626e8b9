"""Ports that workers on one machine share: the kernel distributes the connections (SO_REUSEPORT).

Any process of the same user can bind a shared port without an error. So the owner of the workers first checks that no
other process listens on it. It binds each port while it runs, which also fixes a port 0.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bridge.errors import ConfigError, TerminalError

__all__ = ["refuse_without_sharing", "reserved"]


def refuse_without_sharing(protocols: list[str]) -> None:
    """Raise ConfigError if the platform does not let processes share a port."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            f"messaging_protocols names {', '.join(protocols)}: several workers cannot share a port on this platform",
            remedy="run that protocol in a separate process, with --set messaging_protocols=…",
        )


@contextmanager
def reserved(host: str, wanted: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Reserve a port of ``host`` for each name while the block runs. Yields the ports; 0 becomes a free one.

    Raises TerminalError if a port is in use, or the host is not an address of this machine.
    """
    with ExitStack() as stack:
        yield {name: _reserve(stack, host, name, port) for name, port in wanted.items()}


def _reserve(stack: ExitStack, host: str, name: str, port: int) -> int:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        one = stack.enter_context(socket.socket(family, kind, protocol))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(address)  # without listen, so it gets no connection
    except OSError as e:
        raise TerminalError(
            f"the workers cannot listen on {host}:{port} ({name}): {e.strerror or e}",
            remedy="choose another address, or stop the process that uses it",
        ) from e
    return int(one.getsockname()[1])

"""Ports that several workers on one machine listen on together: the kernel deals the connections (SO_REUSEPORT).

A port that is shared so is taken by anybody of the same user without an error; so the owner of the workers looks
beforehand whether somebody else listens there, and holds each port while it lives, which also fixes a port 0.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bridge.errors import ConfigError, TerminalError

__all__ = ["held", "refuse_without_sharing"]


def refuse_without_sharing(protocols: list[str]) -> None:
    """Raise ConfigError where the platform does not let processes share a port."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            f"messaging_protocols names {', '.join(protocols)}: several workers cannot listen on one port here",
            remedy="run that protocol in a process of its own, with --set messaging_protocols=…",
        )


@contextmanager
def held(host: str, wanted: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Hold a port of ``host`` for each name while the block runs; 0 becomes a free one. Yields the ports.

    Raises TerminalError when a port is taken, or the host is none of this machine's addresses.
    """
    with ExitStack() as stack:
        yield {name: _hold(stack, host, name, port) for name, port in wanted.items()}


def _hold(stack: ExitStack, host: str, name: str, port: int) -> int:
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
        one.bind(address)  # and no listen: it gets no connection
    except OSError as e:
        raise TerminalError(
            f"the workers cannot listen on {host}:{port} ({name}): {e.strerror or e}",
            remedy="choose another address, or end the process that has it",
        ) from e
    return int(one.getsockname()[1])

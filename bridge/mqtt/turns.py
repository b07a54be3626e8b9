"""One turn of several links of one thread, which wait for their sockets together.

None delays the others: each has a socket of its own, which never blocks, and dials in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Protocol

from bridge.poller import Poller

__all__ = ["turn_all"]


class _Link(Protocol):
    def steps(self) -> Generator[float, Collection[int], None]: ...


def turn_all(links: Iterable[_Link], poller: Poller, timeout: float, on_turn: Callable[[float], None]) -> None:
    """Run one turn of links that share a poller: connect, wait up to ``timeout`` seconds, read, ``on_turn``, write."""
    steps = [link.steps() for link in links]
    readable = poller.wait_all(min([timeout, *map(next, steps)]))
    for one in steps:
        one.send(readable)
    on_turn(time.monotonic())
    for one in steps:
        next(one, None)

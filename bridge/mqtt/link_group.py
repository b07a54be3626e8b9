"""Several links of one thread, which wait for their sockets together.

None delays the others: each has a socket of its own, which never blocks, and dials in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bridge.mqtt.client import Link
from bridge.poller import Poller

__all__ = ["LinkGroup"]


class LinkGroup:
    """The turns of several links, made with ``poller``. ``on_turn`` is called instead of those of their handlers."""

    def __init__(self, poller: Poller, on_turn: Callable[[float], None]) -> None:
        self._poller = poller
        self._on_turn = on_turn

    def turn(self, links: Sequence[Link], timeout: float) -> None:
        """Run one turn of these links, as ``Link.turn`` does of one."""
        for link in links:
            timeout = min(timeout, link.begin_turn())
        sockets = {link: link.watch() for link in links}
        readable = self._poller.wait_all(timeout)
        for link in links:
            link.receive(sockets[link] in readable)
        for link in links:
            link.enter_handler()
        self._on_turn(time.monotonic())
        for link in links:
            link.end_turn()

    def wake(self) -> None:
        """End the present wait. From any thread."""
        self._poller.wake()

    def close(self) -> None:
        """Free the poller, after the links are closed."""
        self._poller.close()

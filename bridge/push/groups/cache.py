"""The payloads of group commands that a push process keeps at hand, shared by its partitions: which, and who waits.

Bounded in bytes; what was used longest ago goes first. However many ask for a payload that is not there, it is read
once: the first one has it fetched, the others wait for the same read. No I/O here; safe to call from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from bridge.contract.commands import CommandPosition

__all__ = ["Deliver", "PayloadCache"]

Deliver = Callable[[CommandPosition, bytes | None], None]
"""Called with a payload that was waited for, None when Pulsar does not have it any more. On the fetching thread."""


class PayloadCache:
    """Payloads by the position of their group command."""

    def __init__(
        self,
        limit: int,
        fetch: Callable[[CommandPosition], None],
        hit: Callable[[], None] = lambda: None,
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """``limit`` is in bytes. ``fetch`` orders a read, and ``fetched`` follows; it must not block. ``hit`` counts what
        needed no read of its own, ``missed`` what was read because of it.
        """
        self._limit = limit
        self._hit = hit
        self._missed = missed
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: OrderedDict[CommandPosition, bytes] = OrderedDict()
        self._waiting: dict[CommandPosition, list[Deliver]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """What is kept, in bytes; never above the limit."""
        return self._bytes

    def ask(self, position: CommandPosition, deliver: Deliver) -> bytes | None:
        """Return the payload, or None; then ``deliver`` is called once, later."""
        with self._lock:
            payload = self._kept.get(position)
            if payload is not None:
                self._hit()
                self._kept.move_to_end(position)
                return payload
            waiting = self._waiting.get(position)
            if waiting is not None:
                self._hit()
                waiting.append(deliver)
                return None
            self._missed()
            self._waiting[position] = [deliver]
        self._fetch(position)
        return None

    def fetched(self, position: CommandPosition, payload: bytes | None) -> None:
        """Take what was read, None when it is not there, and tell all who wait for it."""
        with self._lock:
            waiting = self._waiting.pop(position, [])
            if payload is not None and position not in self._kept and len(payload) <= self._limit:
                self._kept[position] = payload
                self._bytes += len(payload)
                while self._bytes > self._limit:
                    _, gone = self._kept.popitem(last=False)
                    self._bytes -= len(gone)
        for deliver in waiting:
            deliver(position, payload)

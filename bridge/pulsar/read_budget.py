"""Bounds what was read from Pulsar and is still needed."""

from __future__ import annotations

import threading

__all__ = ["ReadBudget"]


class ReadBudget:
    """The room for messages that were read and are still needed, in messages and bytes. A reader waits for room."""

    def __init__(self, messages: int, size: int) -> None:
        self._room = threading.Condition()
        self._messages = messages
        self._bytes = size
        self._open = True

    def wait(self) -> bool:
        """Wait until there is room. Returns False when the budget was closed."""
        with self._room:
            self._room.wait_for(lambda: not self._open or (self._messages > 0 and self._bytes > 0))
            return self._open

    def acquire(self, size: int) -> None:
        """A message of ``size`` bytes was read."""
        with self._room:
            self._messages -= 1
            self._bytes -= size

    def release(self, size: int) -> None:
        """A message of ``size`` bytes is not needed any more."""
        with self._room:
            self._messages += 1
            self._bytes += size
            self._room.notify_all()

    def close(self) -> None:
        """End all waits, now and later."""
        with self._room:
            self._open = False
            self._room.notify_all()

"""Bounds what is held of what was read from Pulsar."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """Bounds what is taken from Pulsar and not acknowledged, in messages and bytes; full means wait."""

    def __init__(self, messages: int, size: int) -> None:
        self._room = threading.Condition()
        self._messages = messages
        self._bytes = size
        self._open = True

    def enter(self) -> bool:
        """Wait until there is room. Returns False when the gate was closed."""
        with self._room:
            self._room.wait_for(lambda: not self._open or (self._messages > 0 and self._bytes > 0))
            return self._open

    def took(self, size: int) -> None:
        """One message of ``size`` bytes was taken."""
        with self._room:
            self._messages -= 1
            self._bytes -= size

    def gave(self, size: int) -> None:
        """One message of ``size`` bytes is not held any more."""
        with self._room:
            self._messages += 1
            self._bytes += size
            self._room.notify_all()

    def close(self) -> None:
        """Let nobody in any more and wake who waits."""
        with self._room:
            self._open = False
            self._room.notify_all()

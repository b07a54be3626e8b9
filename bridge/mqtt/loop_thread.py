"""A loop in a thread of its own; its class defines the turn."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from bridge.errors import PulsebridgeError

__all__ = ["LoopThread"]


class LoopThread(ABC):
    """Calls ``turn`` until it is stopped. ``stop``, ``wake`` and ``join`` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self.failure: BaseException | None = None
        """The exception that stopped the loop in the thread of ``start``."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def turn(self, timeout: float = 1.0) -> None:
        """Run one turn; called on the loop thread. An exception stops the loop."""

    @abstractmethod
    def wake(self) -> None:
        """Make the loop thread run its next turn at once; called from any thread."""

    @abstractmethod
    def disconnect(self) -> None:
        """Called on the loop thread when the loop has ended."""

    @abstractmethod
    def close(self) -> None:
        """Called on the loop thread after ``disconnect``: free the loop's resources."""

    def start(self) -> None:
        """Run the loop in its own thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to send DISCONNECT, close, and end."""
        self._stopping.set()
        self.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread of ``start()``. Returns whether it ended; raises the exception that stopped it."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            try:
                while not self._stopping.is_set():
                    self.turn()
            finally:
                self.disconnect()
                self.close()
        except BaseException as e:
            self.failure = e
            if not isinstance(e, PulsebridgeError):
                raise

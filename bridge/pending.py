"""Counts sent messages and their confirmations, and makes the writing thread wait for confirmations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bridge.errors import PulsebridgeError, TransientError

__all__ = ["MAX_PENDING_BYTES", "Pending"]

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Most unconfirmed bytes of one writer, because a thousand of the largest messages would be 5 GB."""


class Pending:
    """Unconfirmed messages of one writer. Confirmations arrive on the client's threads; the first error is final."""

    def __init__(self, what: str, *, remedy: str, why: Callable[[], str] = lambda: "") -> None:
        """``what`` names the messages, in the plural. ``why`` adds known causes to the error after a timeout."""
        self._what = what
        self._remedy = remedy
        self._why = why
        self._changed = threading.Condition()
        self._pending = 0
        self._bytes = 0
        self._answers = 0
        self._error: PulsebridgeError | None = None

    def sent(self, size: int = 0) -> None:
        """Count one more message, of this size in bytes. Call it before the send."""
        with self._changed:
            self._pending += 1
            self._bytes += size

    def done(self, error: PulsebridgeError | None = None, size: int = 0) -> None:
        """Count the confirmation of a message of this size, or its error. Called on any thread; it does not raise."""
        with self._changed:
            self._pending -= 1
            self._bytes -= size
            self._answers += 1
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def wait(self, at_most: int, timeout_s: float, room: int = 0) -> None:
        """Wait until at most ``at_most`` messages are unconfirmed, and ``room`` more bytes may be sent.

        A message above the limit in bytes goes alone. Raises the first reported error, or TransientError after
        ``timeout_s`` seconds without a confirmation.
        """
        with self._changed:
            while self._error is None and (
                self._pending > at_most or (self._pending and self._bytes + room > MAX_PENDING_BYTES)
            ):
                seen = self._answers
                self._changed.wait_for(lambda: self._answers != seen or self._error is not None, timeout_s)  # noqa: B023
                if self._answers == seen and self._error is None:
                    raise TransientError(
                        f"{self._pending} {self._what} after {timeout_s:g} s{self._why()}",
                        remedy=self._remedy,
                    )
            if self._error is not None:
                raise self._error

"""Counts what was sent and what was answered, and lets one thread wait for the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bridge.errors import PulsebridgeError, TransientError
from bridge.pulsar_client import OK, MessageId
from bridge.pulsar_errors import as_our_error

__all__ = ["MAX_PENDING_BYTES", "Pending", "Receipts"]

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""What one task sends at most before it waits for answers, in bytes: a thousand of the largest rows would be 5 GB."""


class Pending:
    """What is under way in one task. Answers come on threads of the client's own; the first error is the last word."""

    def __init__(self, what: str, *, remedy: str, why: Callable[[], str] = lambda: "") -> None:
        """``what`` names what is sent, in the plural; ``why`` adds to the error what is known when none is answered."""
        self._what = what
        self._remedy = remedy
        self._why = why
        self._changed = threading.Condition()
        self._pending = 0
        self._bytes = 0
        self._answers = 0
        self._error: PulsebridgeError | None = None

    def sent(self, size: int = 0) -> None:
        """Count one more, of so many bytes; call it before the send."""
        with self._changed:
            self._pending += 1
            self._bytes += size

    def done(self, error: PulsebridgeError | None = None, size: int = 0) -> None:
        """Take the answer to what was sent with that size. Called on any thread; it does not raise."""
        with self._changed:
            self._pending -= 1
            self._bytes -= size
            self._answers += 1
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def wait(self, at_most: int, timeout_s: float, room: int = 0) -> None:
        """Wait until at most ``at_most`` answers are missing, and ``room`` bytes more may be under way.

        What is larger than all that may be under way goes alone. Raises the first error that was answered, TransientError when no answer came for ``timeout_s`` seconds.
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


class Receipts(Pending):
    """Messages to Pulsar and their receipts."""

    def __init__(self) -> None:
        super().__init__(
            "messages have no receipt from Pulsar",
            remedy="Spark retries the task; see that Pulsar is up, or raise sendTimeoutMs",
        )

    def answered(self, result: object, _id: MessageId, size: int = 0) -> None:
        """Take the receipt of so many bytes. Called by Pulsar's client on a thread of its own; must not raise."""
        self.done(None if result == OK else as_our_error(result, "writing a row"), size)

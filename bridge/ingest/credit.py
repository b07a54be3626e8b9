"""How many unacknowledged messages to allow the broker in one connection (MQTT 5, Receive Maximum). Pure.

The broker may have that many on their way; one window is the right number. But some brokers count for ever what a
former connection of the session left unacknowledged (Artemis 2.40, until it restarts): once that is a whole window
they send nothing at all, without a word. It looks like a silent fleet. So a connection to a kept session that
brings no message for a while is replaced by one with twice the credit; where the fleet is silent that does no harm.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Credit"]

_MOST: Final = 65_535
_PATIENCE_S: Final = 5.0


class Credit:
    """The credit of one session's connections. Times are seconds of a monotonic clock."""

    def __init__(self, window: int) -> None:
        self.granted = window
        """What the next CONNECT allows."""
        self._patience_s = _PATIENCE_S
        self._due = math.inf

    def connected(self, now: float, *, session_present: bool) -> None:
        """Begin a connection; a new session has nothing of former ones."""
        self._due = now + self._patience_s if session_present and self.granted < _MOST else math.inf

    def ended(self) -> None:
        """Note that the connection is gone, or that it has brought a message: from then on acknowledgements free credit."""
        self._due = math.inf

    def exhausted(self, now: float) -> bool:
        """Whether to connect anew with ``granted``, which is more than before. Each time is twice as long in coming."""
        if now < self._due:
            return False
        self._due = math.inf
        self._patience_s *= 2
        self.granted = min(2 * self.granted, _MOST)
        return True

"""The credit of a connection: its unacknowledged messages, as Receive Maximum of MQTT 5.

One window is the right number. But some brokers count messages that a former connection left unacknowledged
(Artemis 2.40, until it restarts). After a whole window of them they send nothing and report no error, which looks like
a silent fleet. So a connection to a kept session without messages for a while is replaced by one with twice the credit.
This does no harm if the fleet is silent.
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
        """The Receive Maximum of the next CONNECT."""
        self._patience_s = _PATIENCE_S
        self._due = math.inf

    def connected(self, now: float, *, session_present: bool) -> None:
        """Begin a connection; a new session has no messages of former ones."""
        self._due = now + self._patience_s if session_present and self.granted < _MOST else math.inf

    def ended(self) -> None:
        """Note a lost connection or its first message. From that message on, acknowledgements free credit."""
        self._due = math.inf

    def exhausted(self, now: float) -> bool:
        """Whether to reconnect with a larger ``granted``. Each wait is twice as long as the one before."""
        if now < self._due:
            return False
        self._due = math.inf
        self._patience_s *= 2
        self.granted = min(2 * self.granted, _MOST)
        return True

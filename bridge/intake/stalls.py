"""Decides when a partition is blocked: it stores nothing while Pulsar stores other messages.

Time in which Pulsar is unreachable does not count, because every partition needs a moment after an outage. So the owner
asks Pulsar repeatedly while a partition makes no progress. Only good answers over the whole time make it blocked.
"""

from __future__ import annotations

__all__ = ["Stall"]


class Stall:
    """How long one partition has made no progress. Times are seconds of a monotonic clock; 0.0 means never."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when messages wait and none was stored."""
        self.why = ""
        """Pulsar's last answer about the partition."""
        self._good_since = 0.0
        self._asked = 0.0
        self._asking = False

    def progressed(self) -> None:
        """Note that a message was stored."""
        self.since = self._good_since = 0.0
        self.why = ""

    def looked(self, now: float, *, waiting: bool) -> None:
        """Note whether messages wait."""
        if not waiting:
            self.progressed()
        elif not self.since:
            self.since = now

    def ask_due(self, now: float, every_s: float) -> bool:
        """Whether to ask Pulsar now; if so, the caller passes the answer to ``answered``."""
        if not self.since or self._asking or now - max(self.since, self._asked) < every_s:
            return False
        self._asking = True
        return True

    def answered(self, now: float, *, good: bool, why: str) -> None:
        """Process an answer. ``good``: the partition's broker has answered; ``why``: the reason that it states."""
        self._asking = False
        self._asked = now
        if not self.since:
            return
        self.why = why
        if not good:
            self._good_since = 0.0
        elif not self._good_since:
            self._good_since = now

    def restart(self) -> None:
        """Restart the count, because Pulsar stored nothing else either."""
        self._good_since = 0.0

    def blocked(self, now: float, after_s: float) -> bool:
        """Whether it made no progress for ``after_s`` in which Pulsar answered each time."""
        return bool(self.since and self._good_since) and now - self._good_since >= after_s

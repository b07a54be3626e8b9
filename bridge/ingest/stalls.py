"""When a partition counts as blocked: it takes nothing while Pulsar takes other messages. Pure.

Time in which Pulsar itself cannot be reached does not count: after an outage each partition needs a moment, and
none of them is to blame. So Pulsar is asked again and again while a partition stands still, and only an unbroken row
of good answers over the whole time makes it blocked.
"""

from __future__ import annotations

__all__ = ["Stall"]


class Stall:
    """How long one lane has made no progress. Times are seconds of a monotonic clock; 0.0 stands for never."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when something waits and nothing was stored."""
        self.why = ""
        """What Pulsar said of the partition when it was asked last."""
        self._good_since = 0.0
        self._asked = 0.0
        self._asking = False

    def progressed(self) -> None:
        """Note that something was stored."""
        self.since = self._good_since = 0.0
        self.why = ""

    def looked(self, now: float, *, waiting: bool) -> None:
        """Note whether something waits."""
        if not waiting:
            self.progressed()
        elif not self.since:
            self.since = now

    def ask_due(self, now: float, every_s: float) -> bool:
        """Whether Pulsar is to be asked now; if so the next answer must come to ``answered``."""
        if not self.since or self._asking or now - max(self.since, self._asked) < every_s:
            return False
        self._asking = True
        return True

    def answered(self, now: float, *, good: bool, why: str) -> None:
        """Take an answer: ``good`` when the broker of the partition has given one, ``why`` what it says of it."""
        self._asking = False
        self._asked = now
        if not self.since:
            return
        self.why = why
        if not good:
            self._good_since = 0.0
        elif not self._good_since:
            self._good_since = now

    def again(self) -> None:
        """Begin to count anew: Pulsar did not take anything else either."""
        self._good_since = 0.0

    def blocked(self, now: float, after_s: float) -> bool:
        """Whether it has stood still for ``after_s`` in which Pulsar answered each time."""
        return bool(self.since and self._good_since) and now - self._good_since >= after_s

"""When to send PINGREQ, when a connection counts as dead, and how long to wait before the next attempt. Pure.

PINGRESP waits behind every PUBLISH that the broker sent before it. A link that has stopped reading, because
nobody takes what it has read, therefore sees no PINGRESP on a connection that is healthy, and must not judge by it
(H3). Times are seconds of a monotonic clock.

After such a time the answer may still be on its way for as long again: what found no room in our kernel is sent again
by the broker's after a wait that doubles each time. So we wait longer then, by as long as nothing was read, but at most
twice the interval: MQTT names no time (3.1.2.10: "a reasonable amount"), and a new connection is quicker than TCP, whose
longest wait is two minutes.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KeepAlive", "backoff_s"]

_PING_SHARE: Final = 0.5
"""A ping goes out after this share of the interval, so that a late turn of the loop does not miss the broker's limit."""


class KeepAlive:
    """The keep-alive of one connection (MQTT 5, 3.1.2.10)."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._last_sent = 0.0
        self._last_read = 0.0
        self._last_sign = 0.0
        self._ping_sent: float | None = None
        self._pings = 0
        self.answered = 0
        """How many pings the broker has answered on this connection."""

    def opened(self, now: float, interval_s: float) -> None:
        """Begin a connection; ``interval_s`` is the broker's Server Keep Alive where it named one, 0 for none."""
        self.interval_s = interval_s
        self._last_sent = self._last_read = self._last_sign = now
        self._ping_sent = None
        self._pings = self.answered = 0

    def sent(self, now: float) -> None:
        """Note that bytes were written."""
        self._last_sent = now

    def received(self, now: float) -> None:
        """Note that bytes were read: a sign of life, whatever they are."""
        self._last_read = self._last_sign = now
        self._ping_sent = None

    def pinged(self, now: float) -> int:
        """Note that a PINGREQ was written. Returns its number on this connection."""
        self._last_sent = now
        self._pings += 1
        if self._ping_sent is None:
            self._ping_sent = now
        return self._pings

    def pong(self) -> None:
        """Note that PINGRESP came."""
        self.answered += 1

    def judged(self, now: float, *, caught_up: bool) -> None:
        """Tell whether all that had arrived was read. While it was not, silence says nothing."""
        if not caught_up:
            self._last_sign = now

    def ping_due(self, now: float) -> bool:
        """Whether to send PINGREQ now: we, or the broker, have been silent for half the interval."""
        if self.interval_s <= 0:
            return False
        wait = self.interval_s * _PING_SHARE
        if now - self._last_sent >= wait:
            return True
        return self._ping_sent is None and now - self._last_sign >= wait

    def dead(self, now: float) -> bool:
        """Whether a ping has been without answer for a whole interval in which we read all there was; see above."""
        if self._ping_sent is None or self.interval_s <= 0:
            return False
        unread = self._last_sign - self._last_read
        return now - max(self._ping_sent, self._last_sign) >= self.interval_s + min(unread, self.interval_s)

    def next_in(self, now: float) -> float:
        """How long nothing is to be done, in seconds; at most the interval."""
        if self.interval_s <= 0:
            return 60.0
        return max(0.0, min(self.interval_s, self.interval_s * _PING_SHARE - (now - self._last_sent)))


def backoff_s(attempt: int, shortest_s: float, longest_s: float, chance: float) -> float:
    """Return the wait before reconnect number ``attempt`` (from 0), in seconds; ``chance`` is between 0 and 1.

    It doubles up to ``longest_s``; half of it is left to chance, so that many clients do not come back at once.
    """
    ceiling = min(longest_s, shortest_s * 2.0 ** min(attempt, 30))
    return ceiling * (0.5 + 0.5 * chance)

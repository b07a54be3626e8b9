"""Decides when to send PINGREQ, when a connection is dead, and when to reconnect.

PINGRESP arrives after every PUBLISH that the broker sent before it. A link that has paused reading therefore gets no
PINGRESP on a healthy connection, so its absence must not count (H3). Times are seconds of a monotonic clock.

After a pause the answer may be in transit for as long as the pause: the broker's kernel resends the segments that ours
had no room for after a wait that doubles each time. So the limit grows by the time without a read, but at most to
twice the interval. MQTT defines no time (3.1.2.10: "a reasonable amount"), and a new connection is quicker than TCP,
whose longest wait is two minutes.
"""

from __future__ import annotations

import random
from typing import Final

from bridge.backoff import backoff_s
from bridge.mqtt.refusals import AT_ONCE_S
from bridge.mqtt.types import Disconnected
from bridge.settings.mqtt import MqttSettings

__all__ = ["KeepAlive", "Reconnects"]

_PING_SHARE: Final = 0.5
"""Share of the interval before a ping. A late turn of the loop then still meets the broker's limit."""

_SOON_S: Final = 1.0
"""Longest wait, in seconds, before a reconnect to a broker that accepted the last connection."""


class KeepAlive:
    """The keep-alive of one connection (MQTT 5, 3.1.2.10)."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.opened_at = 0.0
        self._last_sent = 0.0
        self._last_read = 0.0
        self._last_sign = 0.0
        self._ping_sent: float | None = None
        self._pings = 0
        self.answered = 0
        """How many pings the broker has answered on this connection."""

    def opened(self, now: float, interval_s: float) -> None:
        """Begin a connection; ``interval_s`` is the broker's Server Keep Alive if it sent one, 0 for none."""
        self.interval_s = interval_s
        self.opened_at = self._last_sent = self._last_read = self._last_sign = now
        self._ping_sent = None
        self._pings = self.answered = 0

    def sent(self, now: float) -> None:
        """Note that bytes were written."""
        self._last_sent = now

    def received(self, now: float) -> None:
        """Note that bytes were read; any bytes prove that the connection is alive."""
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

    def note_reading(self, now: float, *, caught_up: bool) -> None:
        """Note whether all arrived bytes were read. While they were not, silence is not evidence."""
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
        """Whether a ping has no answer for an interval in which we read all arrived bytes; see above."""
        if self._ping_sent is None or self.interval_s <= 0:
            return False
        unread = self._last_sign - self._last_read
        return now - max(self._ping_sent, self._last_sign) >= self.interval_s + min(unread, self.interval_s)

    def next_in(self, now: float) -> float:
        """Return how long nothing is due, in seconds; at most the interval."""
        if self.interval_s <= 0:
            return 60.0
        return max(0.0, min(self.interval_s, self.interval_s * _PING_SHARE - (now - self._last_sent)))


class Reconnects:
    """The attempts of one link to connect, with backoff."""

    def __init__(self) -> None:
        self.attempts = 0
        """How many attempts in a row failed, or brought a connection that ended within ``AT_ONCE_S``."""
        self.due = 0.0
        """When the next attempt begins; during an attempt, when it fails without a CONNACK."""
        self.lost: Disconnected | None = None
        """The loss that is not reported to the handler."""

    def take_loss(self, now: float, opened_at: float, settings: MqttSettings) -> Disconnected | None:
        """Return the loss to report, None without one. The next attempt is then due after a while."""
        event, self.lost = self.lost, None
        if event is None:
            return None
        # A broker that accepts us and closes at once must not be redialled without a pause. One message that makes it
        # close must not delay the others as long as a broker that is down.
        self.attempts = 0 if event.epoch > 0 and now - opened_at >= AT_ONCE_S else self.attempts + 1
        shortest_s, longest_s = float(settings.reconnect_min), float(settings.reconnect_max)
        if event.epoch:
            longest_s = min(longest_s, max(shortest_s, _SOON_S))
        self.due = now + backoff_s(self.attempts, shortest_s, longest_s, random.random())
        return event

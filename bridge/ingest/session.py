"""What to subscribe to on a connection, and whether another process uses our client id. Pure.

Each SUBSCRIBE brings the retained messages again, so it goes out only for filters that the broker's session does
not have yet (H6). Whether it has them is known from CONNACK's session-present flag and from the filters that the
last SUBACK granted; where those are kept is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bridge.mqtt.types import DISCONNECT_TAKEN_OVER, Disconnected, Subscription

__all__ = ["SessionPlan", "TakeoverJudge", "plan_session", "wanted_subscriptions"]

_TAKEOVERS: Final = 3
_TAKEOVER_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What to send after a CONNACK."""

    subscribe: tuple[Subscription, ...]
    unsubscribe: tuple[str, ...]


def wanted_subscriptions(
    filters: Sequence[str], qos: int, retained: Literal["keep", "mark", "skip"]
) -> tuple[Subscription, ...]:
    """Return the subscriptions for ``filters``.

    The RETAIN flag tells a replayed message from a live one only if the broker clears it on live ones, so Retain
    As Published is set where that difference is of no interest (``keep``), and left off otherwise. Without it, a
    live reading that a device publishes with RETAIN, as many do, would be skipped as a replayed one.
    """
    handling = 2 if retained == "skip" else 1
    return tuple(Subscription(f, qos, retained == "keep", handling) for f in filters)


def plan_session(
    wanted: Sequence[Subscription], granted: Mapping[str, int] | None, *, session_present: bool
) -> SessionPlan:
    """Return what to send. ``granted`` are the filters of the kept session with their QoS, None when unknown."""
    if not session_present:
        return SessionPlan(tuple(wanted), ())
    known = {} if granted is None else granted
    return SessionPlan(
        tuple(s for s in wanted if known.get(s.filter) != s.qos),
        tuple(f for f in known if f not in {s.filter for s in wanted}),
    )


class TakeoverJudge:
    """Tells another process with our client id from a network that fails.

    MQTT 5 brokers say so (DISCONNECT 0x8E). Before MQTT 5 a taken connection is closed without a word; three of
    those in a minute, with no failed attempt between them, mean that somebody else connects each time (H10).
    """

    def __init__(self) -> None:
        self._closed: deque[float] = deque(maxlen=_TAKEOVERS)

    def lost(self, event: Disconnected, now: float) -> bool:
        """Take the end of a connection at ``now``, in seconds. Returns whether another process uses the client id."""
        if event.reason == DISCONNECT_TAKEN_OVER:
            return True
        if event.epoch == 0 or not event.closed_by_peer:
            self._closed.clear()
            return False
        self._closed.append(now)
        return len(self._closed) == _TAKEOVERS and now - self._closed[0] <= _TAKEOVER_WINDOW_S

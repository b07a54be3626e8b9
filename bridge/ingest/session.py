"""What to subscribe to on a connection. Pure.

Each SUBSCRIBE brings the retained messages again, so it goes out only for filters that the broker's session does
not have yet (H6). Whether it has them is known from CONNACK's session-present flag and from the filters that the
last SUBACK granted; where those are kept is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bridge.mqtt.types import Subscription

__all__ = ["SessionPlan", "plan_session", "wanted_subscriptions"]


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

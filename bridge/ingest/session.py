"""Decides which filters to subscribe to on a connection.

For each SUBSCRIBE the broker resends the retained messages. So it is sent only for filters that the broker's session
lacks (H6). CONNACK's session-present flag and the filters of the last SUBACK show these. The caller stores the filters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bridge.mqtt.types import Subscription

__all__ = ["SessionPlan", "plan_session", "wanted_subscriptions"]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The filters to send after a CONNACK."""

    subscribe: tuple[Subscription, ...]
    unsubscribe: tuple[str, ...]


def wanted_subscriptions(
    filters: Sequence[str], qos: int, retained: Literal["keep", "mark", "skip"]
) -> tuple[Subscription, ...]:
    """Return the subscriptions for ``filters``.

    The RETAIN flag distinguishes replayed from live messages only if the broker clears it on live ones. So Retain As
    Published is set only for ``keep``, which needs no distinction. Otherwise a live reading that a device publishes
    with RETAIN, as many do, would be skipped as a replayed one.
    """
    handling = 2 if retained == "skip" else 1
    return tuple(Subscription(f, qos, retained == "keep", handling) for f in filters)


def plan_session(
    wanted: Sequence[Subscription], granted: Mapping[str, int] | None, *, session_present: bool
) -> SessionPlan:
    """Return the plan. ``granted`` are the filters of the kept session with their QoS, None if unknown."""
    if not session_present:
        return SessionPlan(tuple(wanted), ())
    known = {} if granted is None else granted
    return SessionPlan(
        tuple(s for s in wanted if known.get(s.filter) != s.qos),
        tuple(f for f in known if f not in {s.filter for s in wanted}),
    )

"""Limits the Pulsar topics that devices may name, by route and by device.

A topic costs metadata in Pulsar and a producer in ingest, and a client chooses its name. So each route may have
``ingest.limits.topics``. Each device in the MQTT topic may have ``ingest.limits.topics_per_device`` of these. No route
or device can use the budget of another (H46). A route with a fixed Pulsar topic is never refused.

At the end of each period of ``ingest.limits.topic_idle`` the topics are released that no message of the period named.
They stay in Pulsar, so a route adds at most one budget of topics to Pulsar in each period.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bridge.settings.ingest import IngestLimits

__all__ = ["TopicBudget"]


class _Owner(NamedTuple):
    route: str
    device: str | None


class TopicBudget:
    """The counted Pulsar topics, by full name. Mappers of several threads may share one.

    ``known`` are the existing topics. ``claim`` assigns them to the routes that can name them, so that a route does not
    get another budget at a restart.
    """

    def __init__(self, limits: IngestLimits, known: Iterable[str] = ()) -> None:
        self._limits = limits
        self._since: float | None = None
        self._lock = threading.Lock()
        self._current: dict[str, _Owner] = {}
        self._previous: dict[str, _Owner] = {}
        self._counts: Counter[_Owner] = Counter()
        self._unclaimed = set(known)
        self.period = 0
        """The number of periods that have ended."""

    def __len__(self) -> int:
        """Return the number of counted topics."""
        return len(self._current) + len(self._previous) + len(self._unclaimed)

    def claim(self, route: str, names: Callable[[str], bool]) -> None:
        """Assign to a route the unassigned existing topics that it ``names``."""
        with self._lock:
            for full in [one for one in self._unclaimed if names(one)]:
                self._unclaimed.discard(full)
                self._previous[full] = _Owner(route, None)
                self._counts[_Owner(route, None)] += 1

    def refusal(self, route: str, device: str | None, full: str, *, fixed: bool) -> str | None:
        """Count a topic that a route names. Returns why it is refused, None if it is not.

        ``device`` is the one in the MQTT topic, None without any. ``fixed`` means that no device chooses the name.
        """
        with self._lock:
            if full in self._current:
                return None
            owner = self._previous.pop(full, None)
            if owner is None:
                owner, whole = _Owner(route, device), _Owner(route, None)
                count = self._counts[whole]
                if not fixed and count >= self._limits.topics:
                    return f"route {route} has {count} Pulsar topics, ingest.limits.topics is {self._limits.topics}"
                if not fixed and device is not None and self._counts[owner] >= self._limits.topics_per_device:
                    return (
                        f"the device has {self._counts[owner]} Pulsar topics of route {route}, "
                        f"ingest.limits.topics_per_device is {self._limits.topics_per_device}"
                    )
                for one in {owner, whole}:
                    self._counts[one] += 1
                self._unclaimed.discard(full)
            self._current[full] = owner
            return None

    def turn(self, now: float) -> None:
        """End the period if it is over at ``now``, in seconds. Mappers then drop their routes: see ``period``."""
        with self._lock:
            if self._since is None:
                self._since = now
            if now - self._since < self._limits.topic_idle:
                return
            self._since = now
            for owner in self._previous.values():
                for one in {owner, _Owner(owner.route, None)}:
                    self._counts[one] -= 1
            self._counts = +self._counts
            self._previous, self._current = self._current, {}
            self._unclaimed.clear()
            self.period += 1

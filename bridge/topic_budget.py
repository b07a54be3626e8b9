"""How many Pulsar topics devices may name: a budget for each route, and for each device within it. Pure.

A topic costs metadata in Pulsar and a producer here, and whoever publishes chooses its name. So each route has
``ingest.max_topics`` of its own, and each device that the MQTT topic names has ``ingest.max_topics_per_device`` of these:
no route and no device can use up what belongs to another (H46). A route whose Pulsar topic has a fixed name is never
refused. A topic without messages stops counting: at the end of each period of ``ingest.topic_idle_s`` the topics are released that
no message named in it. They stay in Pulsar; so a route adds at most one budget of topics to Pulsar in each period.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["TopicBudget"]


class _Owner(NamedTuple):
    route: str
    device: str | None


class TopicBudget:
    """The Pulsar topics that count, by full local name. Mappers of several threads may share one.

    ``known`` are topics that exist already. ``claim`` gives them to the routes that can name them, so that a restart
    does not give a route a second budget.
    """

    def __init__(self, per_route: int, per_device: int, period_s: float = math.inf, known: Iterable[str] = ()) -> None:
        self._per_route = per_route
        self._per_device = per_device
        self._period_s = period_s
        self._since: float | None = None
        self._lock = threading.Lock()
        self._current: dict[str, _Owner] = {}
        self._previous: dict[str, _Owner] = {}
        self._counts: Counter[_Owner] = Counter()
        self._unclaimed = set(known)
        self.period = 0
        """How many periods have ended."""

    def __len__(self) -> int:
        """How many topics count."""
        return len(self._current) + len(self._previous) + len(self._unclaimed)

    def claim(self, route: str, names: Callable[[str], bool]) -> None:
        """Give a route the existing topics that are nobody's and that it ``names``."""
        with self._lock:
            for full in [one for one in self._unclaimed if names(one)]:
                self._unclaimed.discard(full)
                self._previous[full] = _Owner(route, None)
                self._counts[_Owner(route, None)] += 1

    def refusal(self, route: str, device: str | None, full: str, *, fixed: bool) -> str | None:
        """Count a topic that a route names. Returns why it may not be named, None when it may.

        ``device`` is the one in the MQTT topic, None without any; ``fixed`` tells a name that no device chooses.
        """
        with self._lock:
            if full in self._current:
                return None
            owner = self._previous.pop(full, None)
            if owner is None:
                owner, whole = _Owner(route, device), _Owner(route, None)
                if not fixed and self._counts[whole] >= self._per_route:
                    return (
                        f"route {route} has {self._counts[whole]} Pulsar topics, ingest.max_topics is {self._per_route}"
                    )
                if not fixed and device is not None and self._counts[owner] >= self._per_device:
                    return (
                        f"the device has {self._counts[owner]} Pulsar topics of route {route}, "
                        f"ingest.max_topics_per_device is {self._per_device}"
                    )
                for one in {owner, whole}:
                    self._counts[one] += 1
                self._unclaimed.discard(full)
            self._current[full] = owner
            return None

    def turn(self, now: float) -> None:
        """End the period if it is over at ``now``, in seconds. Mappers have to forget their routes then: see ``period``."""
        with self._lock:
            if self._since is None:
                self._since = now
            if now - self._since < self._period_s:
                return
            self._since = now
            for owner in self._previous.values():
                for one in {owner, _Owner(owner.route, None)}:
                    self._counts[one] -= 1
            self._counts = +self._counts
            self._previous, self._current = self._current, {}
            self._unclaimed.clear()
            self.period += 1

    def copy(self) -> TopicBudget:
        """Return another one in the same state."""
        made = TopicBudget(self._per_route, self._per_device, self._period_s, self._unclaimed)
        made._current, made._previous = dict(self._current), dict(self._previous)
        made._counts = Counter(self._counts)
        return made

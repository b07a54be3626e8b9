"""Whether what a query has not read fills a backlog quota: at the quota producers wait, and with them the devices (H13).

The quotas are asked for once a minute; sizes come from the snapshot of a trigger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from bridge.contract import Position
from bridge.loggers import get_logger
from sources.planning import PartitionView

__all__ = ["QuotaWatch"]

_log = get_logger("source")
_EVERY_S: Final = 60.0
_SHARE: Final = 0.5


class QuotaWatch:
    """Says once for each partition that its subscription holds half of what its quota allows, and when it no longer does."""

    def __init__(
        self,
        subscription: str,
        limits: Callable[[Iterable[str]], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limits`` returns the bytes of backlog that a partition of each topic may have, where there is a limit."""
        self._subscription = subscription
        self._limits = limits
        self._clock = clock
        self._asked_at = -math.inf
        self._full: set[str] = set()

    def look(self, views: Mapping[str, PartitionView], partitions: Mapping[str, str]) -> set[str]:
        """Return the partitions that are half full, as of the last look; ``partitions`` gives each one's topic."""
        now = self._clock()
        if now - self._asked_at < _EVERY_S:
            return self._full
        self._asked_at = now
        limits = self._limits(dict.fromkeys(partitions.values()))
        before, self._full = self._full, set()
        for name, topic in partitions.items():
            limit, view = limits.get(topic), views.get(name)
            held = None if view is None else view.holds.get(self._subscription)
            if limit is None or view is None or held is None:
                continue
            size = view.backlog(Position(held.ledger, held.entry + 1))[1]
            if size < _SHARE * limit:
                continue
            self._full.add(name)
            if name not in before:
                _log.warning(
                    "what the query has not read fills half of the backlog quota, at which producers wait: "
                    "let it catch up, or raise the quota (pulsar-admin namespaces set-backlog-quota)",
                    partition=name,
                    held=size,
                    quota=limit,
                )
        for name in sorted(before - self._full):
            _log.info("the backlog is below half of the quota again", partition=name)
        return self._full

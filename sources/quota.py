"""Warns if unread messages of a query fill half of a backlog quota (H13).

A full quota blocks producers, and so devices. Quotas are requested once a minute; sizes come from a trigger's snapshot.
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
    """Logs once if a partition's backlog reaches half of its quota or falls below."""

    def __init__(
        self,
        subscription: str,
        limits: Callable[[Iterable[str]], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limits`` returns the allowed bytes of backlog per partition, for topics with a limit."""
        self._subscription = subscription
        self._limits = limits
        self._clock = clock
        self._asked_at = -math.inf
        self._full: set[str] = set()

    def look(self, views: Mapping[str, PartitionView], partitions: Mapping[str, str]) -> set[str]:
        """Return the partitions at half of their quota at the last check. ``partitions`` gives each one's topic."""
        now = self._clock()
        if now - self._asked_at < _EVERY_S:
            return self._full
        self._asked_at = now
        limits = self._limits(dict.fromkeys(partitions.values()))
        before, self._full = self._full, set()
        for name, topic in partitions.items():
            limit, view = limits.get(topic), views.get(name)
            mark_delete = None if view is None else view.mark_deletes.get(self._subscription)
            if limit is None or view is None or mark_delete is None:
                continue
            size = view.backlog(Position(mark_delete.ledger, mark_delete.entry + 1))[1]
            if size < _SHARE * limit:
                continue
            self._full.add(name)
            if name not in before:
                _log.warning(
                    "unread messages fill half of the backlog quota; a full quota blocks producers. Action: "
                    "let the query catch up, or raise the quota (pulsar-admin namespaces set-backlog-quota)",
                    partition=name,
                    backlog_bytes=size,
                    quota=limit,
                )
        for name in sorted(before - self._full):
            _log.info("the backlog fell below half of the quota", partition=name)
        return self._full

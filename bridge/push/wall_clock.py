"""Whether the host's clock was set back while a partition was ours.

The core gets the time in µs since the epoch, because expiries and signs of life have it. A clock that is set back makes
every wait that began before longer: after an hour back, a parked device ignores signs of life for an hour, because they
seem older than its absence. So the session ends, and the partition is taken over again from what is stored. A clock that is
set forward ends waits early, which costs a repetition at most.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

__all__ = ["WallClock"]

log = structlog.get_logger("push")

_STEP_S: Final = 1.0
"""A clock that is slewed goes back by less, and the clock that it is compared with is slewed with it."""


class WallClock:
    """Detects whether the clock was set back since it was made."""

    def __init__(self) -> None:
        self._ahead_s = _ahead_s()

    def was_set_back(self, partition: int) -> bool:
        """Return whether the clock was set back, and log it."""
        back_s = self.set_back_s()
        if back_s:
            log.warning(
                "the clock was set back, and push takes the partition over again. Action: see what sets this host's clock",
                partition=partition,
                seconds=round(back_s, 1),
            )
        return back_s > 0

    def set_back_s(self) -> float:
        """Return by how many seconds the clock was set back, 0.0 where it was not. It may have been set ahead before."""
        ahead = _ahead_s()
        self._ahead_s = max(self._ahead_s, ahead)
        back = self._ahead_s - ahead
        return back if back > _STEP_S else 0.0


def _ahead_s() -> float:
    return time.time_ns() / 1e9 - time.monotonic()

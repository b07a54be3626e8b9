"""What happens when a worker of ``ingest --workers N`` ends: another try, later each time, or the end of all. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bridge.cli import EXIT_FAILED, EXIT_USAGE
from bridge.mqtt.keepalive import backoff_s

__all__ = ["Restarts", "Wait"]

_MIN_S: Final = 0.5
_MAX_S: Final = 30.0
_SETTLED_S: Final = 60.0
_TERMINAL: Final = frozenset({EXIT_FAILED, EXIT_USAGE})


@dataclass(frozen=True, slots=True)
class Wait:
    """Start the worker again after so many seconds."""

    seconds: float


@dataclass
class Restarts:
    """The ends of the workers so far.

    A worker that ends with the exit code of an error of ours has said what somebody must change: the others would
    meet the same, so all end. Any other end (a signal, an abort, a stop that nobody here asked for) is tried again.
    """

    _began: dict[int, float] = field(default_factory=dict)
    _attempts: dict[int, int] = field(default_factory=dict)

    def started(self, worker: int, now: float) -> None:
        """Note that a worker was started at ``now``, in seconds."""
        self._began[worker] = now

    def ended(self, worker: int, code: int, now: float) -> Wait | None:
        """Return when to start it again, None when all must end. ``code`` is negative for a signal."""
        if code in _TERMINAL:
            return None
        if now - self._began.get(worker, now) >= _SETTLED_S:
            self._attempts[worker] = 0
        attempt = self._attempts.get(worker, 0)
        self._attempts[worker] = attempt + 1
        return Wait(backoff_s(attempt, _MIN_S, _MAX_S, 0.5))

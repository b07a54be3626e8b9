"""Decides whether an ended worker of ``ingest --workers N`` restarts, or all workers end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bridge.backoff import backoff_s
from bridge.errors import EXIT_FAILED, EXIT_USAGE

__all__ = ["Restarts", "Wait"]

_MIN_S: Final = 0.5
_MAX_S: Final = 30.0
_SETTLED_S: Final = 60.0
_TERMINAL: Final = frozenset({EXIT_FAILED, EXIT_USAGE})


@dataclass(frozen=True, slots=True)
class Wait:
    """Restart the worker after this many seconds."""

    seconds: float


@dataclass
class Restarts:
    """The starts and restarts of the workers so far.

    A worker that exits with the code of a Pulsebridge error has logged what an operator must change. The others would
    fail in the same way, so all end. After any other exit (a signal, an abort, a stop that this process did not
    request) the worker restarts, later each time.
    """

    _began: dict[int, float] = field(default_factory=dict)
    _attempts: dict[int, int] = field(default_factory=dict)

    def started(self, worker: int, now: float) -> None:
        """Note that a worker was started at ``now``, in seconds."""
        self._began[worker] = now

    def ended(self, worker: int, code: int, now: float) -> Wait | None:
        """Return when to restart it, None if all must end. ``code`` is negative for a signal."""
        if code in _TERMINAL:
            return None
        if now - self._began.get(worker, now) >= _SETTLED_S:
            self._attempts[worker] = 0
        attempt = self._attempts.get(worker, 0)
        self._attempts[worker] = attempt + 1
        return Wait(backoff_s(attempt, _MIN_S, _MAX_S, 0.5))

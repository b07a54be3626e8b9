"""Calls that wait for Pulsar: a pool runs them, and the loop thread gets their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Background"]


class Background:
    """A pool of ``workers`` threads. ``wake`` makes the loop call ``turn``; the pool calls it."""

    def __init__(self, workers: int, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._outcomes: deque[Callable[[float], None]] = deque()
        pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self.submit: Callable[..., object] = pool.submit
        self._pool = pool

    def report(self, outcome: Callable[[float], None]) -> None:
        """Have the loop call ``outcome`` with its time. The pool calls this."""
        self._outcomes.append(outcome)
        self._wake()

    def turn(self, now: float) -> None:
        """Apply the outcomes, in order. The loop calls this."""
        while self._outcomes:
            self._outcomes.popleft()(now)

    def close(self) -> None:
        """Drop what has not begun, and wait for the rest. It waits for Pulsar."""
        self._pool.shutdown(wait=True, cancel_futures=True)

"""Decides whether too many of the rows that silver judged of late were bad: a share over a window of time.

Events in, answers out; it has no clock. What is done about it is decided by ``streaming.quality_gate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["BadShare", "Judged"]


class Judged(NamedTuple):
    """How many rows of a window, or of a batch, passed every rule, and how many did not."""

    good: int
    bad: int

    @property
    def rows(self) -> int:
        """All of them."""
        return self.good + self.bad

    @property
    def share(self) -> float:
        """The bad ones among all, 0 without any row."""
        return self.bad / self.rows if self.rows else 0.0


class _Batch(NamedTuple):
    number: int
    at_s: float
    good: int
    bad: int


@dataclass(frozen=True)
class _Limits:
    share: float
    window_s: float
    min_rows: int


class BadShare:
    """The window. ``limit``: share that may be bad; ``window_s``: age in seconds beyond which a batch is forgotten;
    below ``min_rows`` rows in the window nothing is over the limit.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, limit: float, window_s: float, min_rows: int) -> None:
        self._limits = _Limits(limit, window_s, min_rows)
        # Replaced as a whole, never changed: the thread that serves metrics reads it too.
        self._batches: tuple[_Batch, ...] = ()

    def saw(self, number: int, at_s: float, good: int, bad: int) -> None:
        """Take in a judged batch; one that is judged again takes the place of the first."""
        kept = (b for b in self._batches if b.number != number and self._in_window(b, at_s))
        self._batches = (*kept, _Batch(number, at_s, good, bad))

    def window(self, now_s: float) -> Judged:
        """Return what was judged within the window that ends now. Safe to call from another thread."""
        batches = [b for b in self._batches if self._in_window(b, now_s)]
        return Judged(sum(b.good for b in batches), sum(b.bad for b in batches))

    def share(self, now_s: float) -> float:
        """Return the share of bad rows in the window, 0 while it has fewer rows than a share needs."""
        found = self.window(now_s)
        return found.share if found.rows >= self._limits.min_rows else 0.0

    def over(self, now_s: float) -> bool:
        """Whether it is over the limit."""
        return self.share(now_s) > self._limits.share

    def _in_window(self, batch: _Batch, now_s: float) -> bool:
        return now_s - batch.at_s <= self._limits.window_s

"""The wait before a retry."""

from __future__ import annotations

__all__ = ["backoff_s"]


def backoff_s(attempt: int, shortest_s: float, longest_s: float, chance: float) -> float:
    """Return the wait before retry number ``attempt`` (from 0), in seconds; ``chance`` is between 0 and 1.

    It doubles up to ``longest_s``; half of it is random, so that many clients do not retry at once.
    """
    ceiling = min(longest_s, shortest_s * 2.0 ** min(attempt, 30))
    return ceiling * (0.5 + 0.5 * chance)

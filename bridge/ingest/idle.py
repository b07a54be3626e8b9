"""Which producers to close because nobody writes to their partitions (H10). Pure.

A producer costs memory here and at the broker, and partitions come and go with the devices' topics. One that has
nothing on its way may be closed at any time: the next message opens another, and waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

__all__ = ["AT_ONCE", "KEEP", "REST_S", "IdlePolicy", "to_close"]

T = TypeVar("T")

REST_S: Final = 5.0
"""So long a producer stays open though there are too many, in seconds: where more partitions than that are in use at
the same time, opening a producer for each message would cost more than the producers."""
AT_ONCE: Final = 100
"""So many are closed at once; the others follow."""


class IdlePolicy(NamedTuple):
    """When producers are closed: after ``idle_s`` seconds without a message, or earlier beyond ``most`` open ones."""

    idle_s: float
    most: int


KEEP: Final = IdlePolicy(float("inf"), 1 << 62)


def to_close(idle: Iterable[tuple[float, T]], opened: int, now: float, policy: IdlePolicy) -> list[T]:
    """Return which producers to close, those that were used least lately first.

    ``idle`` are those with nothing on its way, each with the time of its last message; ``opened`` counts all.
    """
    surplus = opened - policy.most
    rest_s = min(REST_S, policy.idle_s)
    found: list[T] = []
    for used, one in sorted(idle, key=lambda each: each[0]):
        if len(found) == AT_ONCE or now - used < (rest_s if len(found) < surplus else policy.idle_s):
            break
        found.append(one)
    return found

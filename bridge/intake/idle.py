"""Selects producers to close because their partitions get no messages (H10).

A producer costs memory here and at the broker, and partitions come and go with the devices' topics. A producer without
unconfirmed messages may be closed at any time. The next message opens another one and waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

__all__ = ["AT_ONCE", "KEEP", "REST_S", "IdlePolicy", "to_close"]

T = TypeVar("T")

REST_S: Final = 5.0
"""How long a surplus producer stays open after its last message, in seconds. If more partitions are in use at once,
opening a producer for each message would cost more than the producers."""
AT_ONCE: Final = 100
"""Most producers that are closed at once; the others follow."""


class IdlePolicy(NamedTuple):
    """Producers close after ``idle_s`` seconds without a message, or earlier beyond ``most`` open ones."""

    idle_s: float
    most: int


KEEP: Final = IdlePolicy(float("inf"), 1 << 62)


def to_close(idle: Iterable[tuple[float, T]], opened: int, now: float, policy: IdlePolicy) -> list[T]:
    """Return the producers to close, least recently used first.

    ``idle`` are those without unconfirmed messages, each with the time of its last message; ``opened`` counts all.
    """
    surplus = opened - policy.most
    rest_s = min(REST_S, policy.idle_s)
    found: list[T] = []
    for used, one in sorted(idle, key=lambda each: each[0]):
        if len(found) == AT_ONCE or now - used < (rest_s if len(found) < surplus else policy.idle_s):
            break
        found.append(one)
    return found

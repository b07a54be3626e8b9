"""Counts numbered messages as they arrive, in memory that does not grow with their number."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Arrivals"]

_SHOWN: Final = 20


@dataclass
class Arrivals:
    """What has arrived of numbers that count from 0 for each device: the next number, a repeat, or a fault."""

    last: dict[str, int] = field(default_factory=dict)
    repeats: int = 0
    faults: list[str] = field(default_factory=list)
    """The first arrivals after which an earlier number lacks: it is lost, or comes out of order."""
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    """Of the first copies since the last sample."""

    def arrived(self, device: str, number: int, sent_at: float) -> None:
        """Count a message; ``sent_at`` in seconds since the epoch."""
        last = self.last.get(device, -1)
        if number <= last:
            self.repeats += 1
            return
        if number > last + 1 and len(self.faults) < _SHOWN:
            self.faults.append(f"{device}: {number} after {last}")
        self.last[device] = number
        self.latencies_s.append(time.time() - sent_at)

    @property
    def total(self) -> int:
        """How many numbers have arrived, repeats left out."""
        numbers = list(self.last.values())
        return sum(numbers) + len(numbers)

    def lacking(self, sent: Mapping[str, int]) -> int:
        """Return how many of the messages sent by each device have not arrived."""
        return sum(max(0, count - 1 - self.last.get(device, -1)) for device, count in sent.items())

    def latency_s(self) -> float | None:
        """Return the median since the last call, None if nothing arrived."""
        taken = sorted(self.latencies_s.popleft() for _ in range(len(self.latencies_s)))
        return taken[len(taken) // 2] if taken else None

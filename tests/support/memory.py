"""How the memory of a process moves: samples over a time, and the slope of the line through them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import poll_for

__all__ = ["memory_samples", "peak_memory", "slope"]


def memory_samples(
    pids: Sequence[int], seconds: float, *, every: float = 0.5, say: Callable[[str], None] | None = None
) -> list[list[tuple[float, float]]]:
    """Sample the resident memory of processes for ``seconds``; returns (time in s, bytes) for each of them."""
    processes = [psutil.Process(pid) for pid in pids]
    found: list[list[tuple[float, float]]] = [[] for _ in processes]
    begin = time.monotonic()
    reported = begin

    def sampled() -> bool:
        nonlocal reported
        now = time.monotonic()
        for samples, process in zip(found, processes, strict=True):
            samples.append((now - begin, float(process.memory_info().rss)))
        if say is not None and now - reported >= 30:
            reported = now
            say(f"{now - begin:.0f} s: " + ", ".join(f"{s[-1][1] / 1e6:.1f} MB" for s in found))
        return now - begin >= seconds

    poll_for(sampled, seconds + 60, "the end of the sampling", every=every)
    return found


def peak_memory(pid: int) -> int:
    """Return the most resident memory that a process has had so far, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found.group(1))


def slope(samples: Sequence[tuple[float, float]], *, after_s: float = 0.0) -> float:
    """Return the slope of the least-squares line through the samples from ``after_s`` on, in bytes per second."""
    points = [(x, y) for x, y in samples if x >= after_s]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread

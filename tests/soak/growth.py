"""Decides whether a measured value of a long run grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

__all__ = ["WARM_UP", "grows"]

WARM_UP: Final = 0.25
"""The share of the samples, from the start, that counts as warm-up."""


def grows(samples: Sequence[float], *, share: float, least: float) -> bool:
    """Return whether the medians of the quarters after the warm-up rise.

    A value grows if its last median exceeds the first by more than ``share`` of the first and by more than ``least``
    (in the unit of the samples), and no median is below the one before it. So a peak or a saw tooth is no growth.

    Raises:
        ValueError: if a quarter would have fewer than three samples.
    """
    kept = samples[int(len(samples) * WARM_UP) :]
    size = len(kept) // 4
    if size < 3:
        raise ValueError(f"{len(samples)} samples are too few to show growth: a quarter needs 3, take more samples")
    first, *others = (statistics.median(kept[i * size : (i + 1) * size]) for i in range(4))
    rising = all(a <= b for a, b in zip([first, *others], others, strict=False))
    return rising and others[-1] - first > max(share * abs(first), least)

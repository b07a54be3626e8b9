"""Geometry of the charts of a device: one line for each metric, as SVG points with bounded length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pulsebridge.ui.lakehouse import Reading
from pulsebridge.ui.rows import number_text, time_text

__all__ = ["HEIGHT", "WIDTH", "Chart", "charts"]

WIDTH: Final = 600
HEIGHT: Final = 120
_POINTS: Final = 400
_CHARTS: Final = 12
_FAR: Final = 1e300
"""Beyond, a difference of two numbers is infinite."""


@dataclass(frozen=True)
class Chart:
    """One metric over time."""

    metric: str
    points: str
    """Points of a polyline in a box of ``WIDTH`` and ``HEIGHT``."""
    count: int
    lowest: str
    highest: str
    last: str
    first_time: str
    last_time: str


def charts(readings: Iterable[Reading]) -> list[Chart]:
    """Return a chart for each metric with numbers, the first twelve by name. The readings are in order of time."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in readings:
        if one.value is not None and abs(one.value) < _FAR:  # not for NaN
            series[one.metric].append((one.us, one.value))
    return [_chart(metric, series[metric]) for metric in sorted(series)[:_CHARTS]]


def _chart(metric: str, points: Sequence[tuple[int, float]]) -> Chart:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    begin, end = points[0][0], points[-1][0]
    shown = " ".join(
        f"{(us - begin) / ((end - begin) or 1) * WIDTH:.1f},"
        f"{HEIGHT - ((value - low) / (high - low) if high > low else 0.5) * HEIGHT:.1f}"
        for us, value in _thinned(points)
    )
    times = time_text(begin), time_text(end)
    return Chart(metric, shown, len(points), number_text(low), number_text(high), number_text(values[-1]), *times)


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return at most ``_POINTS`` points: lowest and highest of each part, so that no peak disappears."""
    if len(points) <= _POINTS:
        return points
    size = -(-len(points) // (_POINTS // 2))
    found: list[tuple[int, float]] = []
    for at in range(0, len(points), size):
        part = points[at : at + size]
        found += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return found

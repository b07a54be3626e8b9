"""Sets of strings described by literals and stars, and whether two of them meet. Pure.

MQTT filters, templates of topics and templates of keys are all such sets. Two rules that could produce the same
topic and key, or a subscription that could bring a command back, are found before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

__all__ = ["Pattern", "Star", "filter_pattern", "meet", "regex"]


class Star(Enum):
    """A part that stands for many strings."""

    LEVEL = "one topic level: any characters but a slash"
    REST = "any characters"


Pattern = tuple["str | Star", ...]
"""Literals and stars, in order."""


def filter_pattern(levels: Sequence[str | Star]) -> tuple[Pattern, ...]:
    """Return the patterns of an MQTT filter given by its levels; ``a/#`` also matches ``a`` (MQTT-4.7.1-2)."""
    parts: list[str | Star] = []
    for number, level in enumerate(levels):
        if number:
            parts.append("/")
        parts.append(level)
    whole = tuple(parts)
    if len(levels) > 1 and levels[-1] is Star.REST:
        return whole, tuple(parts[:-2])
    return (whole,)


def regex(pattern: Pattern) -> re.Pattern[str]:
    """Return the regular expression that matches the pattern's strings whole."""
    pieces = {Star.LEVEL: "[^/]*", Star.REST: ".*"}
    text = "".join(re.escape(p) if isinstance(p, str) else pieces[p] for p in pattern)
    return re.compile(text + r"\Z", re.DOTALL)


def meet(a: Pattern, b: Pattern) -> bool:
    """Return whether some string belongs to both patterns."""
    left, right = _characters(a), _characters(b)
    todo = [(0, 0)]
    seen = {(0, 0)}
    while todo:
        i, j = todo.pop()
        if i == len(left) and j == len(right):
            return True
        x = left[i] if i < len(left) else None
        y = right[j] if j < len(right) else None
        for step in _steps(i, j, x, y):
            if step not in seen:
                seen.add(step)
                todo.append(step)
    return False


def _steps(i: int, j: int, x: str | Star | None, y: str | Star | None) -> Iterator[tuple[int, int]]:
    if isinstance(x, Star):
        yield i + 1, j  # the star ends here
        if isinstance(y, str) and (x is Star.REST or y != "/"):
            yield i, j + 1  # it takes the other side's character
    if isinstance(y, Star):
        yield i, j + 1
        if isinstance(x, str) and (y is Star.REST or x != "/"):
            yield i + 1, j
    if isinstance(x, str) and x == y:
        yield i + 1, j + 1


def _characters(pattern: Pattern) -> tuple[str | Star, ...]:
    found: list[str | Star] = []
    for part in pattern:
        if isinstance(part, str):
            found.extend(part)
        else:
            found.append(part)
    return tuple(found)

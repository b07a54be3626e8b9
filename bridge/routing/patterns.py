"""Sets of strings, described by literals and stars, and their overlaps.

MQTT filters, templates of topics and templates of keys are such sets. Overlaps show rules that could produce the same
topic and key, and subscriptions that would receive commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum

__all__ = ["Pattern", "Star", "matcher", "meet", "regex"]


class Star(Enum):
    """A part that matches many strings."""

    LEVEL = "one topic level: any characters but a slash"
    REST = "any characters"


Pattern = tuple["str | Star", ...]
"""Literals and stars, in order."""


def regex(pattern: Pattern) -> re.Pattern[str]:
    """Return the regular expression that matches whole strings of the pattern."""
    pieces = {Star.LEVEL: "[^/]*", Star.REST: ".*"}
    text = "".join(re.escape(p) if isinstance(p, str) else pieces[p] for p in pattern)
    return re.compile(text + r"\Z", re.DOTALL)


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    """Return a function that decides whether a text matches the pattern, in linear time.

    Devices choose topics of up to 65,535 bytes. A regular expression with two stars in a level would try all pairs of
    positions, so such patterns use an automaton.
    """
    if _one_way(pattern):
        match = regex(pattern).match
        return lambda text: match(text) is not None
    return _Automaton(pattern).match


def _one_way(pattern: Pattern) -> bool:
    """Return whether a regular expression of the pattern never backtracks to an earlier star."""
    before: Star | None = None
    slash = True
    for part in pattern:
        if isinstance(part, str):
            slash = slash or "/" in part
        elif before is Star.REST or not slash:
            return False
        else:
            before, slash = part, False
    return True


class _Automaton:
    """A nondeterministic automaton for a pattern. State n has matched its first n characters and stars; states are
    bits."""

    def __init__(self, pattern: Pattern) -> None:
        parts = _characters(pattern)
        self._end = 1 << len(parts)
        self._stars = sum(1 << n for n, part in enumerate(parts) if isinstance(part, Star))
        self._rests = sum(1 << n for n, part in enumerate(parts) if part is Star.REST)
        self._at: dict[str, int] = {}
        for n, part in enumerate(parts):
            if isinstance(part, str):
                self._at[part] = self._at.get(part, 0) | 1 << n

    def _skip(self, states: int) -> int:
        """Add the states that are reached because a star may match nothing."""
        while (more := states | (states & self._stars) << 1) != states:
            states = more
        return states

    def match(self, text: str) -> bool:
        states = self._skip(1)
        for character in text:
            stay = states & (self._rests if character == "/" else self._stars)
            states = self._skip(stay | (states & self._at.get(character, 0)) << 1)
            if not states:
                return False
        return bool(states & self._end)


def meet(a: Pattern, b: Pattern) -> bool:
    """Return whether a string exists that both patterns match."""
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
        yield i + 1, j  # the star is complete
        if isinstance(y, str) and (x is Star.REST or y != "/"):
            yield i, j + 1  # it matches the other side's character
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

"""Plays worlds that are drawn from seeds, and shrinks a run that breaks the promise."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

__all__ = ["STEPS", "Event", "Run", "Scenario", "failure_of", "first_failure", "shrink"]

STEPS: Final = 300
"""Events of one world."""
_SILENT: Final = structlog.make_filtering_bound_logger(logging.CRITICAL)

Event = tuple[str, int]
"""A method of the world, and the number by which it chooses among what may happen."""


@dataclass(frozen=True)
class Scenario:
    """A kind of world. ``draw`` returns what makes a world of this kind, ``events`` are the names of its events.

    Those of ``rare`` are drawn less often. A world has a method for each event, and ``finish``, which lets everything work
    and then checks what must hold in the end.
    """

    name: str
    draw: Callable[[random.Random], Callable[[], Any]]
    events: Sequence[str]
    rare: frozenset[str]
    finishes: float = 0.1
    """How many of the worlds let everything work in the end."""
    weights: Sequence[int] = (1, 4, 16)
    """How much more often the other events are drawn, one of these for each world."""

    def run(self, seed: int) -> Run:
        """Return the run of a seed."""
        chance = random.Random(seed)
        make, weight = self.draw(chance), chance.choice(self.weights)
        weighted = [event for event in self.events for _ in range(1 if event in self.rare else weight)]
        number = chance.random
        events = [(weighted[int(number() * len(weighted))], int(number() * 1000)) for _ in range(STEPS)]
        return Run(make, events, finish=chance.random() < self.finishes)


class Run(NamedTuple):
    """A world and its events."""

    make: Callable[[], Any]
    events: list[Event]
    finish: bool

    def play(self) -> None:
        """Play the events. Raises whatever the world or the product raises."""
        world = self.make()
        for event, choice in self.events:
            getattr(world, event)(choice)
        if self.finish:
            world.finish()


def failure_of(run: Run) -> str:
    """Return how the run fails, empty if it does not."""
    former = structlog.get_config()
    structlog.configure(wrapper_class=_SILENT)
    try:
        run.play()
    except Exception as error:  # noqa: BLE001 an error of the product is a violation as well
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        structlog.configure(**former)
    return ""


def first_failure(scenario: Scenario, seed: int, worlds: int) -> tuple[int, str] | None:
    """Play the worlds of ``worlds`` seeds from ``seed`` on. Returns the first seed that fails, and how."""
    for one in range(seed, seed + worlds):
        failure = failure_of(scenario.run(one))
        if failure:
            return one, failure
    return None


def shrink(run: Run) -> Run:
    """Delete events while the run still fails: first many at once, then single ones, until none can go."""
    size = len(run.events) // 2
    while size:
        at, deleted = 0, False
        while at < len(run.events):
            shorter = run._replace(events=run.events[:at] + run.events[at + size :])
            if failure_of(shorter):
                run, deleted = shorter, True
            else:
                at += size
        size = size if deleted and size == 1 else size // 2
    return run

"""Decides the order of the protocol handlers' phases: steps out, their results in.

Invariants: Each phase of a handler comes at most once, in the order INITIALIZE, ADVERTISE, START, STOP. A phase is
over for all handlers before the next begins. A handler whose INITIALIZE began is stopped exactly once. After the first
failure, or ``stop``, only STOP steps follow, in the reverse of the given order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Lifecycle", "Phase", "Step"]


class Phase(IntEnum):
    """A phase of a handler."""

    INITIALIZE = 1
    ADVERTISE = 2
    START = 3
    STOP = 4


class Step(NamedTuple):
    """The phase to run next, and the name of its handler."""

    phase: Phase
    name: str


class Lifecycle:
    """The phases of the handlers ``names``, in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._reached: dict[str, Phase] = {}
        self._current: Step | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """Whether every handler has started and none is to be stopped."""
        return (
            not self._stopping
            and self._current is None
            and all(self._reached.get(n) is Phase.START for n in self._names)
        )

    @property
    def over(self) -> bool:
        """Whether a stop was requested, or followed a failure, and is done."""
        return self._stopping and self._current is None and self._step() is None

    def next(self, up_to: Phase = Phase.STOP) -> Step | None:
        """Return the next step, which ``done`` or ``failed`` must answer; None without one.

        ``up_to`` bounds the phases before STOP. Raises RuntimeError while another step is under way.
        """
        if self._current is not None:
            raise RuntimeError(f"{self._current.phase.name} of {self._current.name} is under way")
        step = self._step()
        if step is None or (step.phase is not Phase.STOP and step.phase > up_to):
            return None
        self._current = step
        self._reached[step.name] = step.phase
        return step

    def _step(self) -> Step | None:
        if self._stopping:
            for name in reversed(self._names):
                if self._reached.get(name, Phase.STOP) is not Phase.STOP:
                    return Step(Phase.STOP, name)
            return None
        for phase in (Phase.INITIALIZE, Phase.ADVERTISE, Phase.START):
            for name in self._names:
                if self._reached.get(name, 0) < phase:
                    return Step(phase, name)
        return None

    def done(self) -> None:
        """Note that the step under way has succeeded."""
        self._current = None

    def failed(self) -> None:
        """Note that the step under way has failed: only STOP follows. A failed STOP counts as done."""
        self._current = None
        self._stopping = True

    def stop(self) -> None:
        """Request STOP of all handlers that began."""
        self._stopping = True

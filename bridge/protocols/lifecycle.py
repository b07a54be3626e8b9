"""In which order the phases of the protocol handlers come. Pure: steps out, their results in.

Invariants: each phase of a handler comes at most once, in the order INITIALIZE, ADVERTISE, START, STOP; a phase is
over for all handlers before the next begins; a handler whose INITIALIZE was begun is stopped exactly once; after the
first failure, or ``stop``, only STOP steps follow, in the reverse of the given order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Lifecycle", "Phase", "Step"]


class Phase(IntEnum):
    """A phase of a handler's life."""

    INITIALIZE = 1
    ADVERTISE = 2
    START = 3
    STOP = 4


class Step(NamedTuple):
    """What to do next."""

    phase: Phase
    name: str


class Lifecycle:
    """The common life of the handlers called ``names``, in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._reached: dict[str, Phase] = {}
        self._doing: Step | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """Whether every handler has been started and none is to be stopped."""
        return (
            not self._stopping and self._doing is None and all(self._reached.get(n) is Phase.START for n in self._names)
        )

    @property
    def over(self) -> bool:
        """Whether a stop was asked for, or came of a failure, and is done."""
        return self._stopping and self._doing is None and self._step() is None

    def next(self, up_to: Phase = Phase.STOP) -> Step | None:
        """Return the next step, to be answered by ``done`` or ``failed``; None when nothing is to be done.

        ``up_to`` bounds the phases on the way up. Raises RuntimeError while another step is under way.
        """
        if self._doing is not None:
            raise RuntimeError(f"{self._doing.phase.name} of {self._doing.name} is under way")
        step = self._step()
        if step is None or (step.phase is not Phase.STOP and step.phase > up_to):
            return None
        self._doing = step
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
        """The step under way has succeeded."""
        self._doing = None

    def failed(self) -> None:
        """The step under way has failed: from now on only STOP follows. A failed STOP counts as done."""
        self._doing = None
        self._stopping = True

    def stop(self) -> None:
        """Ask for STOP of all that was begun."""
        self._stopping = True

"""Whether a process works, and whether it serves. Pure: events in, verdict out; the clock is the caller's.

Two questions are kept apart. A process is *healthy* until it cannot recover by itself: a part has failed for good,
or a loop has not turned for too long. It is *ready* when everything that it needs is there: subscribed at every
link, Pulsar answering, partitions owned. A server that is away makes it not ready and leaves it healthy: to be
started again would help nobody.

Threads: a part is told by the thread that it belongs to and read by any; each event is one assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Health", "Part", "Verdict"]


class _State(Enum):
    READY = auto()
    WAITING = auto()
    STANDBY = auto()


class Part:
    """One thing that the process needs, by the name under which it is shown. Made by ``Health.part``.

    ``loop`` tells that a thread takes turns for it: it serves, and is stuck when it does not turn.
    ``answers_within_s`` bounds how old the last answer of a server may be, in seconds, while the part is ready.
    """

    def __init__(self, name: str, *, loop: bool, answers_within_s: float | None) -> None:
        self.name = name
        self.loop = loop
        self.answers_within_s = answers_within_s
        self._state: tuple[_State, str] = (_State.WAITING, "starting")
        self._failure = ""
        self._beat: float | None = None

    def ready(self) -> None:
        """It is there."""
        self._state = (_State.READY, "")

    def waits(self, why: str) -> None:
        """It is not there, and will be tried again."""
        self._state = (_State.WAITING, why)

    def stands_by(self, why: str) -> None:
        """It is not ours and need not be. That makes no other part unready, but a process of such parts serves nobody.

        Its loop may wait for as long as that lasts, and is judged again from its next turn on.
        """
        self._state = (_State.STANDBY, why)
        self._beat = None

    def turned(self, now: float) -> None:
        """Its loop took a turn, or its server answered, at ``now`` (monotonic, in seconds)."""
        self._beat = now

    def failed(self, why: str) -> None:
        """It will not work again in this process, whatever happens."""
        self._failure = why or "failed"

    def sickness(self, now: float, stuck_s: float) -> str:
        """Return why the process cannot recover from this part by itself, empty when it can."""
        if self._failure:
            return self._failure
        if self.loop and self._beat is not None and now - self._beat > stuck_s:
            return f"its loop has not turned for {now - self._beat:.0f} s"
        return ""

    def absence(self, now: float) -> tuple[str, bool]:
        """Return why it is not ready, empty when it is, and whether it merely stands by."""
        state, why = self._state
        if state is not _State.READY:
            return why, state is _State.STANDBY
        limit, beat = self.answers_within_s, self._beat
        if limit is not None and beat is not None and now - beat > limit:
            return f"no answer for {now - beat:.0f} s", False
        return "", False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both answers, each with the parts that it failed on, by name."""

    sick: dict[str, str]
    """Why the process has to be started again; empty when it is healthy."""
    missing: dict[str, str]
    """What the process waits for; empty when it is ready."""

    @property
    def healthy(self) -> bool:
        """Whether the process works or can come back by itself."""
        return not self.sick

    @property
    def ready(self) -> bool:
        """Whether it serves now."""
        return not self.missing


class Health:
    """The parts of one process. ``stuck_s`` is how long a loop may go without a turn, in seconds."""

    def __init__(self, stuck_s: float = 60.0) -> None:
        self._stuck_s = stuck_s
        self._parts: tuple[Part, ...] = ()
        self.ending = False
        """Whether the process was asked to end."""

    def part(self, name: str, *, loop: bool = False, answers_within_s: float | None = None) -> Part:
        """Add a part; it is not ready before it says so. One of the same name is replaced."""
        part = Part(name, loop=loop, answers_within_s=answers_within_s)
        self._parts = (*(p for p in self._parts if p.name != name), part)
        return part

    def __contains__(self, name: str) -> bool:
        """Whether there is a part of this name."""
        return any(p.name == name for p in self._parts)

    def remove(self, part: Part) -> None:
        """Take a part out that ended on purpose."""
        self._parts = tuple(p for p in self._parts if p is not part)

    def stopping(self) -> None:
        """The process was asked to end: it serves no more, and its loops may stand still."""
        self.ending = True

    def verdict(self, now: float) -> Verdict:
        """Judge at ``now`` (monotonic, in seconds)."""
        if self.ending:
            return Verdict({}, {"process": "stopping"})
        parts = self._parts
        sick = {p.name: why for p in parts if (why := p.sickness(now, self._stuck_s))}
        absent = {p: p.absence(now) for p in parts}
        missing = {p.name: why for p, (why, standby) in absent.items() if why and not standby}
        standing_by = {p.name: why for p, (why, standby) in absent.items() if standby}
        if not missing and standing_by and not any(p.loop and not why for p, (why, _) in absent.items()):
            missing = standing_by
        if not parts:
            missing = {"process": "starting"}
        return Verdict(sick, sick | missing)

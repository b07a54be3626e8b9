"""Decides whether a process is healthy and whether it is ready. The caller gives the time.

A process is *healthy* until it cannot recover by itself: a part failed permanently, or a loop is stuck. It is
*ready* if all its parts are: it is subscribed at every link, Pulsar answers, it owns its partitions. If a server is
unreachable, the process is not ready but healthy, because a restart would not help.

Threads: the owning thread updates a part, any thread reads it; each event is one assignment.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Health", "Part", "Verdict"]


class Part:
    """One requirement of the process, under the name that is shown. Made by ``Health.part``.

    With ``loop``, a thread with a loop serves the part; it is stuck if the loop does not run.
    ``answers_within_s`` is the maximum age of a server's last answer while the part is ready, in seconds.
    """

    def __init__(self, name: str, *, loop: bool, answers_within_s: float | None) -> None:
        self.name = name
        self.loop = loop
        self.answers_within_s = answers_within_s
        self._absence = ("starting", False)  # why it is not ready, and whether it stands by
        self._failure = ""
        self._beat: float | None = None

    def ready(self) -> None:
        """Mark the part as ready."""
        self._absence = ("", False)

    def waits(self, why: str) -> None:
        """Mark the part as not ready; the process retries."""
        self._absence = (why, False)

    def stands_by(self, why: str) -> None:
        """Mark the part as standby: another process owns it.

        A standby part does not make the process unready, unless no loop is ready. The loop may wait during standby; its
        age counts from its next run.
        """
        self._absence = (why, True)
        self._beat = None

    def turned(self, now: float) -> None:
        """Record that the loop ran, or that the server answered, at ``now`` (monotonic, in seconds)."""
        self._beat = now

    def failed(self, why: str) -> None:
        """Mark the part as permanently failed in this process."""
        self._failure = why or "failed"

    def failure_text(self, now: float, stuck_s: float) -> str:
        """Return why the process cannot recover from this part by itself; empty if it can."""
        if self._failure:
            return self._failure
        if self.loop and self._beat is not None and now - self._beat > stuck_s:
            return f"its loop has not run for {now - self._beat:.0f} s"
        return ""

    def absence(self, now: float) -> tuple[str, bool]:
        """Return why the part is not ready, empty if it is, and whether it stands by."""
        why, standby = self._absence
        limit, beat = self.answers_within_s, self._beat
        if not (why or standby) and limit is not None and beat is not None and now - beat > limit:
            return f"no answer for {now - beat:.0f} s", False
        return why, standby


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both results, with the reasons by name of the part."""

    sick: dict[str, str]
    """Why the process needs a restart; empty if it is healthy."""
    missing: dict[str, str]
    """What the process waits for; empty if it is ready."""

    @property
    def healthy(self) -> bool:
        """Whether the process works or can recover by itself."""
        return not self.sick

    @property
    def ready(self) -> bool:
        """Whether it serves now."""
        return not self.missing


class Health:
    """The parts of one process. ``stuck_s`` is the maximum time between two runs of a loop, in seconds."""

    def __init__(self, stuck_s: float = 60.0) -> None:
        self._stuck_s = stuck_s
        self._parts: tuple[Part, ...] = ()
        self.ending = False
        """Whether the process is stopping."""

    def part(self, name: str, *, loop: bool = False, answers_within_s: float | None = None) -> Part:
        """Add a part that is not ready; it replaces one of the same name."""
        part = Part(name, loop=loop, answers_within_s=answers_within_s)
        self._parts = (*(p for p in self._parts if p.name != name), part)
        return part

    def __contains__(self, name: str) -> bool:
        """Whether a part of this name exists."""
        return any(p.name == name for p in self._parts)

    def remove(self, part: Part) -> None:
        """Remove a part that ended on purpose."""
        self._parts = tuple(p for p in self._parts if p is not part)

    def stopping(self) -> None:
        """Mark the process as stopping: it is not ready, and its loops may stop."""
        self.ending = True

    def verdict(self, now: float) -> Verdict:
        """Return the verdict at ``now`` (monotonic, in seconds)."""
        if self.ending:
            return Verdict({}, {"process": "stopping"})
        parts = self._parts
        sick = {p.name: why for p in parts if (why := p.failure_text(now, self._stuck_s))}
        absent = {p: p.absence(now) for p in parts}
        missing = {p.name: why for p, (why, standby) in absent.items() if why and not standby}
        standbys = {p.name: why for p, (why, standby) in absent.items() if standby}
        if not missing and standbys and not any(p.loop and not why for p, (why, _) in absent.items()):
            missing = standbys
        if not parts:
            missing = {"process": "starting"}
        return Verdict(sick, sick | missing)

"""Stalls: of one partition, which may become blocked, and of all messages of a link, which are logged.

A partition is blocked if it stores nothing while Pulsar stores other messages.
Time in which Pulsar is unreachable does not count, because every partition needs a moment after an outage. So the owner
asks Pulsar repeatedly while a partition makes no progress. Only good answers over the whole time make it blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from bridge.health import Part
from bridge.intake.readings import Stalled
from bridge.settings.ingest import IngestSettings

__all__ = ["Stall", "StallLog"]

log = structlog.get_logger("ingest")


class Stall:
    """How long one partition has made no progress. Times are seconds of a monotonic clock; 0.0 means never."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when messages wait and none was stored."""
        self.why = ""
        """Pulsar's last answer about the partition."""
        self._good_since = 0.0
        self._asked = 0.0
        self._asking = False

    def progressed(self) -> None:
        """Note that a message was stored."""
        self.since = self._good_since = 0.0
        self.why = ""

    def looked(self, now: float, *, waiting: bool) -> None:
        """Note whether messages wait."""
        if not waiting:
            self.progressed()
        elif not self.since:
            self.since = now

    def ask_due(self, now: float, every_s: float) -> bool:
        """Whether to ask Pulsar now; if so, the caller passes the answer to ``answered``."""
        if not self.since or self._asking or now - max(self.since, self._asked) < every_s:
            return False
        self._asking = True
        return True

    def answered(self, now: float, *, good: bool, why: str) -> None:
        """Process an answer. ``good``: the partition's broker has answered; ``why``: the reason that it states."""
        self._asking = False
        self._asked = now
        if not self.since:
            return
        self.why = why
        if not good:
            self._good_since = 0.0
        elif not self._good_since:
            self._good_since = now

    def restart(self) -> None:
        """Restart the count, because Pulsar stored nothing else either."""
        self._good_since = 0.0

    def blocked(self, now: float, after_s: float) -> bool:
        """Whether it made no progress for ``after_s`` in which Pulsar answered each time."""
        return bool(self.since and self._good_since) and now - self._good_since >= after_s


class StallLog:
    """Reports that Pulsar confirms nothing for a link: in its health, and in the log, ever more rarely."""

    def __init__(self, part: Part, settings: IngestSettings) -> None:
        self._part = part
        self._part.ready()
        self._settings = settings
        self._since = 0.0  # start of the stall, 0 without one
        self._next_report = self._report_every = 0.0

    def watch(self, now: float, age: float, stalled: Callable[[], Iterable[Stalled]], in_flight: int) -> None:
        """Note the age of the oldest message; ``stalled`` returns the topics that delay the ``in_flight`` ones."""
        if age < self._settings.stall_warning:
            if self._since:
                self._part.ready()
                log.warning("ingest no longer stalls. Action: none", after_s=round(now - self._since))
                self._since = 0.0
            return
        self._part.waits(f"Pulsar has confirmed nothing for {age:.0f} s")
        if not self._since:
            self._since = self._next_report = now - age
            self._report_every = 30.0
        if now >= self._next_report:
            self._next_report = now + self._report_every
            self._report_every = min(2 * self._report_every, 600.0)
            self._report(now, age, sorted(stalled(), key=lambda one: one.oldest), in_flight)

    def _report(self, now: float, age: float, stalled: list[Stalled], in_flight: int) -> None:
        """Log stalled topics, oldest first: one topic delays all, because acknowledgements leave in order."""
        for one in stalled[:3]:
            log.warning(
                "Pulsar does not confirm; nothing is lost, but every acknowledgement waits for it: "
                + (one.why or "the cause is unknown")
                + ". Action: check that Pulsar runs, and the quota of the topic",
                topic=one.name,
                waiting=one.waiting,
                oldest_s=round(now - one.oldest),
            )
        advice = "it acknowledges nothing until these topics flow. Action: fix them"
        if self._settings.on_blocked == "wait":
            advice += ", or set ingest.on_blocked: deadletter, so that one blocked topic does not delay the others"
        log.warning(f"ingest stalls: {advice}", topics=len(stalled), oldest_s=round(age), in_flight=in_flight)

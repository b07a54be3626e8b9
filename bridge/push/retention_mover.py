"""Moves the retention subscription of a partition's parked commands, behind which Pulsar may trim.

It moves forward with what the core needs no more, and back if a device gets again what was released before. Every process
that may consume can move it, also a former owner that was stopped while it moved the subscription, and continues hours
later. Such a process knows of no command that came after our takeover. So after a move back the subscription is moved there
again at each scan, until it belongs behind the last command of our takeover: what a former owner releases is retained again
before long, and Pulsar deletes nothing of it unless it trims in between.
"""

from __future__ import annotations

from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.push.partition import Partition
from bridge.push.puller import Puller

__all__ = ["RetentionMover", "RetentionPosition"]

_FIRST_S: Final = 5.0
_EVERY_S: Final = 60.0


class RetentionPosition:
    """Where the subscription is, as its owner knows. Positions within an entry count as one."""

    def __init__(self, horizon: CommandPosition | None) -> None:
        """``horizon``: the last command of the topic at the takeover; None for none."""
        self._horizon = horizon
        self._at: CommandPosition | None = None
        self._repeats = False

    def forward(self, to: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek, None for nowhere; nothing before ``to`` is needed, None if that is unknown."""
        if to is None:
            return None
        ahead = self._at is None or to[:2] > self._at[:2]
        self._at = to
        beyond = self._horizon is None or to[:2] >= self._horizon[:2]
        self._repeats = self._repeats and not beyond
        return to if ahead else None

    def back(self, to: CommandPosition | None) -> CommandPosition | None:
        """Return where to seek unless it is before that, None for nowhere; everything from ``to`` on is needed again."""
        if to is None:
            return None
        self._repeats = self._horizon is not None
        if self._at is not None and to[:2] >= self._at[:2]:
            return None
        self._at = to
        return to

    def repeated(self) -> CommandPosition | None:
        """Return where to seek again unless it is before that, None for nowhere."""
        return self._at if self._repeats else None


class RetentionMover:
    """Scans for what the core needs, and moves the subscriptions of commands and relocated commands."""

    def __init__(
        self, core: Partition, puller: Puller, horizon: CommandPosition | None, *, every_s: float, now: float
    ) -> None:
        """``horizon``: the last command at the takeover. A scan begins ``every_s`` seconds after the last one ended, 0 for
        the default, and a minute after it at the latest; ``now`` in seconds of the monotonic clock.
        """
        self._retention = core.retention
        self._resume = core.resume
        self._puller = puller
        self._position = RetentionPosition(horizon)
        self._every_s = min(_EVERY_S, every_s or _EVERY_S)
        self._next = now + _FIRST_S
        self._copies_from: CommandPosition | None = None

    def turn(self, now: float, now_us: int, *, proven: bool) -> None:
        """Continue the scan, and let Pulsar trim what no device needs, if the ownership is ``proven`` (H25)."""
        retention = self._retention
        if not retention.scanning and now >= self._next:
            retention.begin_scan()
        if retention.scan(now_us):
            self._next = now + self._every_s
            position = retention.trims_to(now_us)
            if proven:
                self._move(position)

    def _move(self, position: CommandPosition | None) -> None:
        self._seek(self._position.forward(position))
        self._seek(self._position.repeated(), back=True)
        copy = None if position is None else self._retention.keeps_copies_from()
        if copy is not None and (self._copies_from is None or copy[:2] > self._copies_from[:2]):
            self._copies_from = copy
            self._puller.retain_from(copy, relocated=True)

    def move_back(self) -> None:
        """Retain what is sent again, before it is trimmed; what was before it is released later."""
        self._seek(self._position.back(self._resume.resends_from), back=True)

    def _seek(self, position: CommandPosition | None, *, back: bool = False) -> None:
        if position is not None:
            self._puller.retain_from(position, back=back)

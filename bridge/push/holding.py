"""Has the puller move the holds of a partition's commands and of their copies, now and then; on the session's thread."""

from __future__ import annotations

from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.push.parked_hold import ParkedHold
from bridge.push.partition import Partition
from bridge.push.pulling import Puller

__all__ = ["Holding"]

_FIRST_S: Final = 5.0
_EVERY_S: Final = 60.0


class Holding:
    """The holds, as the owner of one partition moves them."""

    def __init__(
        self,
        core: Partition,
        puller: Puller,
        horizon: CommandPosition | None,
        *,
        every_s: float,
        now: float,
    ) -> None:
        """``horizon``: the last command when we took over, None for none. A look begins ``every_s`` seconds after the last
        one ended, 0 for the default, and a minute after at the latest; ``now`` in seconds of the monotonic clock.
        """
        self._core = core
        self._puller = puller
        self._hold = ParkedHold(horizon)
        self._every_s = min(_EVERY_S, every_s or _EVERY_S)
        self._next = now + _FIRST_S
        self._copies_from: CommandPosition | None = None

    @property
    def looking(self) -> bool:
        """Whether a look is under way, of which each turn takes a part."""
        return self._core.retention.scanning

    def turn(self, now: float, now_us: int, *, sure: bool) -> None:
        """Look on, and let Pulsar trim what no device waits for; not unless it is ``sure`` that the partition is ours (H25)."""
        core = self._core
        if not core.retention.scanning and now >= self._next:
            core.retention.begin_scan()
        if core.retention.scan(now_us):
            self._next = now + self._every_s
            position = core.retention.trims_to(now_us)
            if sure:
                self._move(position)

    def _move(self, position: CommandPosition | None) -> None:
        self._seek(self._hold.look(position))
        self._seek(self._hold.again(), back=True)
        place = None if position is None else self._core.retention.keeps_copies_from()
        if place is not None and (self._copies_from is None or place[:2] > self._copies_from[:2]):
            self._copies_from = place
            self._puller.hold_from(place, moved=True)

    def back(self) -> None:
        """Hold what is sent once more, so that no retention ends while it waits; what stood before it is let go later."""
        self._seek(self._hold.back(self._core.resume.resends_from), back=True)

    def _seek(self, position: CommandPosition | None, *, back: bool = False) -> None:
        if position is not None:
            self._puller.hold_from(position, back=back)

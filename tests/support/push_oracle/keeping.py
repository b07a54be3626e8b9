"""Up to where Pulsar may trim: before the oldest command that may still be wanted, from there or from the topic of the
moved ones. Pure.

To find it each device is looked at, and of a hundred thousand that takes a tenth of a second in which no command is
pushed. So a look goes on over many turns, some devices in each, while commands come and go. What it finds is true all
the same, or further back than need be: it counts what was not acknowledged and the last that had come when it began, and
all that comes later stands behind these. What is wanted anew from before, because a device asked for it, is noted.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from bridge.contract.commands import CommandPosition
from tests.support.push_oracle.cursor import BEFORE_ALL, Cursor
from tests.support.push_oracle.parked import GONE, Parked
from tests.support.push_oracle.queues import Limits
from tests.support.push_oracle.replay import ReplayCore

__all__ = ["KeepingCore", "Look"]

_DEVICES: Final = 500
"""So many are looked at together: about a millisecond."""


@dataclass(slots=True)
class Look:
    """What a look has found so far."""

    names: list[str]  # not looked at
    highest: CommandPosition  # of what had come when it began
    kept: CommandPosition | None
    copies: CommandPosition | None = None

    def wants(self, position: CommandPosition | None, copy: CommandPosition | None = None) -> None:
        """Keep a command, and a copy of one."""
        self.kept = _earlier(self.kept, position)
        self.copies = _earlier(self.copies, None if copy == GONE else copy)


def _earlier(one: CommandPosition | None, other: CommandPosition | None) -> CommandPosition | None:
    return min((position for position in (one, other) if position is not None), default=None)


class KeepingCore(ReplayCore):
    """Knows which commands Pulsar is to keep."""

    def __init__(
        self,
        partition: int,
        limits: Limits,
        cursors: Mapping[str, Cursor],
        horizon: CommandPosition | None,
        parked: MutableMapping[str, dict[str, bytes]] | None = None,
        *,
        owner: str = "owner",
        now_us: int = 0,
        left_us: int = 0,
    ) -> None:
        """As ``ReplayCore``."""
        super().__init__(partition, limits, cursors, horizon, parked, owner=owner, now_us=now_us, left_us=left_us)
        self._look: Look | None = None
        self._found: Look | None = None  # by the last one
        self._held_back: deque[tuple[int, CommandPosition]] = deque()  # when what was kept

    @property
    def looking(self) -> bool:
        """Whether a look is under way."""
        return self._look is not None

    def begin_look(self) -> None:
        """Begin to look which commands are wanted."""
        names = [*self._asleep, *self._devices]
        names += [name for name in self._cursors if name not in self._asleep]
        names.reverse()  # the last one is the next
        kept = min(self._held, default=None)
        self._look = Look(names, self._highest, kept)
        if self._highest != BEFORE_ALL:
            self._look.wants(self._highest)

    def look_on(self, now_us: int, most: int = _DEVICES) -> bool:
        """Look at some more devices. Returns whether all were looked at: ``hold_from`` says what was found then."""
        look = self._look
        if look is None:
            return False
        for _ in range(min(most, len(look.names))):
            self._look_over(look.names.pop(), look, now_us)
        return not look.names

    def _look_over(self, name: str, look: Look, now_us: int) -> None:
        device = self._devices.get(name)
        cursor = self._cursors.get(name) if device is None else device.cursor
        if cursor is not None and cursor.sure:
            cursor.seen(now_us - self._limits.unsure_us)  # of one that gives no signs they are not kept for ever
            look.wants(cursor.sure[0].one.position if cursor.sure else None)
        parked = self._parked_of(name)
        if parked is not None:
            first = parked.first_staying()
            look.wants(None if first is None else parked.position(first), parked.places_from)

    def _parked_of(self, name: str) -> Parked | None:
        asleep, device = self._asleep.get(name), self._devices.get(name)
        if asleep is not None:
            return asleep[0]
        return None if device is None else device.parked

    def _wanted_anew(self, position: CommandPosition | None, copy: CommandPosition | None) -> None:
        """What nobody wanted any more is, or a copy was made: a look may have passed its device."""
        if self._look is not None:
            self._look.wants(position, copy)

    def keeps_from(self, now_us: int) -> CommandPosition | None:
        """Return the oldest command that may still be wanted from Pulsar: what is behind it need not be held (H25). Ends the
        look that is under way, or takes one.

        Without any it is the last one that came; None when none has come.
        """
        return self._ended_look(now_us).kept

    def _ended_look(self, now_us: int) -> Look:
        if self._look is None:
            self.begin_look()
        self.look_on(now_us, sys.maxsize)
        look = self._look
        assert look is not None
        self._look = None
        self._found = look
        return look

    def hold_from(self, now_us: int) -> CommandPosition | None:
        """Return up to where Pulsar may trim, that one excluded, as ``keeps_from``; None where it may not trim more than it
        has.

        A later owner may push again what was confirmed within ``unsure_us``, for it need not know the sign of life that
        came since (H26). So the hold stands where it might have stood that long ago.
        """
        look = self._ended_look(now_us)
        kept = look.kept
        # What is not acknowledged comes first, and may have to be parked; behind the last that came may stand one that a
        # former owner did not acknowledge, older than all that is parked: the look counts the last that came.
        if look.highest == BEFORE_ALL or kept is None or self._limits.answers:
            return None if look.highest == BEFORE_ALL else kept
        if not self._held_back or self._held_back[-1][1] != kept:
            self._held_back.append((now_us, kept))
        past = now_us - self._limits.unsure_us
        while len(self._held_back) > 1 and self._held_back[1][0] <= past:
            self._held_back.popleft()
        since, then = self._held_back[0]
        return min(then, kept) if since <= past else None

    def keeps_copies_from(self) -> CommandPosition | None:
        """Return the oldest copy that was wanted at the end of the last look, None without one."""
        return None if self._found is None else self._found.copies

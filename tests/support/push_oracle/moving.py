"""What is done for commands that wait for very long: they are copied to a topic of their own. Pure.

The hold of the commands partition stands before the oldest command that is wanted from there. One device that is away
for a month would keep a month of everybody's commands; so what waits longer than ``move_after_us`` is copied to the
topic ``parked-commands``, which has such commands alone, and the hold goes on (H30).

Commit order of a move; the process may die between any two steps
----------------------------------------------------------------
1. ``Copy`` → ``copied``: the commands, in order, are in the other topic. Died before: copies that no segment names.
2. ``StoreSegment`` → ``move_stored``: a segment that says where the copies are, with what those that it replaces have
   besides; then these are removed. Died before: as after 1. Died in between: an id stands in both, and its copy counts.
3. The hold passes the old place. Died before: Pulsar keeps more than is needed.

A command keeps the position that it had: order, cursor and what devices see go by it, so a copy that is made twice is
no second command. A device that comes back in the middle is served from where its commands stood: the move is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.contract.commands import CommandPosition
from tests.support.push_oracle.actions import Copy, StoreSegment
from tests.support.push_oracle.cursor import Cursor
from tests.support.push_oracle.keeping import KeepingCore, Look
from tests.support.push_oracle.parked import GONE, Parked, segment_key
from tests.support.push_oracle.queues import Device, Limits

__all__ = ["MovingCore"]

_AT_ONCE: Final = 8


@dataclass(slots=True)
class _Move:
    """One segment under way."""

    number: int
    name: str
    parked: Parked
    wanted: list[CommandPosition]
    places: list[CommandPosition] = field(default_factory=list)
    coming: bool = False
    storing: bool = False


class MovingCore(KeepingCore):
    """Moves the commands of devices that are away for long, one segment after the other."""

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
        """As ``KeepingCore``."""
        super().__init__(partition, limits, cursors, horizon, parked, owner=owner, now_us=now_us, left_us=left_us)
        self._to_move: deque[str] = deque()
        self._move: _Move | None = None
        self._moves = 0
        self._moves_next = True  # before the next probe
        self._finds_moves = False
        self._last_place: CommandPosition | None = None

    def begin_look(self) -> None:
        """As before; the look also finds what waits for too long where it stands, unless some of that is left."""
        super().begin_look()
        self._finds_moves = bool(self._limits.move_after_us) and not self._to_move

    def _look_over(self, name: str, look: Look, now_us: int) -> None:
        device = self._devices.get(name)
        if self._finds_moves and device is not None and self._moves_before_its_turn(device, now_us):
            self._try_later(device, now_us)
        asleep = self._asleep.get(name)
        if self._finds_moves and asleep is not None and self._stays_too_long(asleep[0], now_us):
            self._to_move.append(name)
        super()._look_over(name, look, now_us)

    def _moves_before_its_turn(self, device: Device, now_us: int) -> bool:
        """Whether it only waits to be tried, which may take as long as it likes, and what it waits for is to be moved."""
        idle = device.probing and device.wanting and not device.coming and not device.queue
        return idle and self._stays_too_long(device.parked, now_us)

    def _stays_too_long(self, parked: Parked, now_us: int) -> bool:
        return bool(parked.stays) and now_us - parked.stays_since_us >= self._limits.move_after_us

    def _ended_look(self, now_us: int) -> Look:
        """As before; what is being moved is wanted from where it was until that is stored, and so are its copies."""
        look = super()._ended_look(now_us)
        move = self._move
        if move is not None and move.storing:
            look.wants(move.wanted[0])
        for place in () if move is None else move.places:
            look.wants(None, place)
        return look

    def keeps_copies_from(self) -> CommandPosition | None:
        """Return the oldest copy that was wanted at the end of the last look; without any the last one that was made, None
        without.
        """
        return super().keeps_copies_from() or self._last_place

    def next_time_us(self) -> int | None:
        """Return when ``tick`` is due, as before."""
        due = super().next_time_us()
        if not self._moves_now or (self._move is not None and (self._move.coming or self._move.storing)):
            return due
        missing = max(0.0, self._at_once - self._tokens)
        at = self._tokens_at_us + int(missing * 1_000_000 / self._limits.replay_rate) + 1
        return at if due is None else min(at, due)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way."""
        return super().settled and not (self._move is not None and self._move.coming)

    @property
    def _moves_now(self) -> bool:
        """Whether it is the turn of something to be moved: devices that are back come first, and with probes, of which
        there may always be one more, it takes turns.
        """
        some = self._move is not None or bool(self._to_move)
        may = some and self._link and not self._draining and not self._pulling.back
        return may and (self._moves_next or not (self._pulling and self._pulls_now))

    def _move_some(self) -> None:
        if not self._moves_now or self._tokens < self._at_once:
            return
        move = self._move or self._next_move()
        if move is None or move.coming or move.storing:
            return
        if not self._sleeps(move):
            self._move = None
            return
        left = move.wanted[len(move.places) :]
        count = min(_AT_ONCE, len(left), int(self._tokens))
        if count:
            self._tokens -= count
            self._moves_next = False
            move.coming = True
            self._actions.append(Copy(move.number, tuple(left[:count])))

    def _pull(self) -> None:
        before = self._tokens
        super()._pull()
        self._moves_next = self._moves_next or self._tokens < before

    def _next_move(self) -> _Move | None:
        while self._to_move:
            name = self._to_move.popleft()
            asleep = self._asleep.get(name)
            wanted = [] if asleep is None else asleep[0].to_move()
            if asleep is not None and wanted:
                self._moves += 1
                self._move = _Move(self._moves, name, asleep[0], wanted)
                return self._move
        return None

    def _sleeps(self, move: _Move) -> bool:
        asleep = self._asleep.get(move.name)
        return asleep is not None and asleep[0] is move.parked

    def copied(self, number: int, places: Sequence[CommandPosition], now_us: int) -> None:
        """The commands of a ``Copy`` are in the other topic, or ``GONE`` where Pulsar had them no more."""
        made = [place for place in places if place != GONE]
        self._last_place = max([*made, *([self._last_place] if self._last_place else [])], default=None)
        move = self._move
        if move is None or move.number != number:
            return
        move.coming = False
        move.places += places
        if len(move.places) < len(move.wanted):
            return
        self._store_moved(move, now_us)

    def _store_moved(self, move: _Move, now_us: int) -> None:
        name = move.name
        moved = None
        if self._sleeps(move):
            moved = move.parked.moved(move.wanted, move.places, lambda: self._new_key(name), now_us)
        if moved is None:
            self._move = None
            return
        made, replaced = moved
        for place in move.places:
            self._wanted_anew(None, place)
        move.storing = True
        for key in made:
            self._store_fixed(move.parked, key, move=move.number if key == made[-1] else 0)
        for old in replaced:
            self._remove(old)

    def _store_fixed(self, parked: Parked, key: str, *, move: int = 0) -> None:
        """Store a segment that is not written again."""
        payload = parked.payload(key)
        assert payload is not None
        self._busy += 1
        self._actions.append(StoreSegment(key, payload, move=move))

    def _new_key(self, name: str) -> str:
        self._segments += 1
        return segment_key(name, self._owner, self._segments)

    def copy_failed(self, number: int) -> None:
        """The commands of a ``Copy`` could not be copied. What is to be moved is looked for anew."""
        self._to_move.clear()
        if self._move is not None and self._move.number == number:
            self._move = None

    def move_stored(self, number: int) -> None:
        """The segment that says where the copies are is stored."""
        move = self._move
        if move is not None and move.number == number:
            self._move = None
            if self._sleeps(move) and move.parked.stays:
                self._to_move.appendleft(move.name)

"""What is parked, and how devices that are back get it: waking, probing, pulling at a shaped rate. Pure.

Who is away, and what is parked for it, is decided by ``core``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Final
from zlib import crc32

from bridge.contract.commands import CommandPosition
from bridge.errors import ContractError
from tests.support.push_oracle.actions import Forget, Pull, StoreSegment
from tests.support.push_oracle.cursor import BEFORE_ALL, Cursor, Sure
from tests.support.push_oracle.late import Given, LateAnswers
from tests.support.push_oracle.live import LiveCore
from tests.support.push_oracle.parked import Parked, ParkedId, read_segment, segment_key
from tests.support.push_oracle.presence import Presence
from tests.support.push_oracle.queues import Device, Item, Limits, Mode, State
from tests.support.push_oracle.turns import UNHEARD_EVERY, Turns

__all__ = ["DUE", "ReplayCore"]

_AHEAD: Final = 16
"""Parked commands of one device that are pulled and not settled."""
_AT_ONCE: Final = 8
"""So many of them are pulled together, where the rate allows that: they lie close together."""
_UNHEARD: Final = 16
"""Devices that wait for their turn to be tried; of the others that are due the ids are all that is kept."""
_SECOND: Final = 1_000_000
_TIMERS: Final = 100
_FAILING: Final = 8
"""So many times the window may wait for devices that live and do not answer, beside it."""
DUE: Final = 0
"""In place of the time of a probe: it waits for its turn."""
_AGAIN: Final = "sent again: the device asked for it, or may not have had it"


class ReplayCore(LiveCore):
    """The parked commands of a partition."""

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
        """``cursors`` and ``parked`` (segments by device and key) are what the former owners stored; up to ``horizon``
        the last one may have pushed beyond them. ``parked`` is emptied: with many devices it is as large as what is made
        of it. ``owner`` names this one in the keys of segments.
        ``left_us``: when the last one wrote last; by what was heard before, it has decided.
        """
        super().__init__(partition, limits, cursors, horizon)
        self.presence = Presence()
        self._late = LateAnswers()
        self._owner = owner
        self._segments = 0
        self._rounds = 0
        self._asleep: dict[str, tuple[Parked, int, int]] = {}  # parked, nothing under way; wait and time of probes
        self._tainted: set[str] = set()  # with parked commands that were pushed, and not stored as such
        self._unwritten: dict[str, Device] = {}  # with parked ids to be stored
        self._unstored_again: deque[str] = deque()  # of whom Pulsar has lost all, not written again so far
        self._flush_at_us = 0
        self._pulling = Turns()
        self._at_once = max(1, min(_AT_ONCE, limits.replay_rate // 8, limits.replay_window // 4))
        self._tokens = 0.0
        self._tokens_at_us = 0
        self._coming = 0
        self._failing: set[CommandPosition] = set()  # pulled ones that devices which live do not answer
        self._timers: list[tuple[int, str]] = []  # of probes and expiries
        self._timers_most = _TIMERS
        self._round: list[str] = []  # devices that are due to be tried; the last one is the next
        self._next_round: list[str] = []
        self._tells_absence = False
        self._parked_count = 0
        self.unread: list[tuple[str, str]] = []
        """Key and reason of the segments that could not be read: Pulsar has their commands, and nobody waits for them."""
        segments = {} if parked is None else parked
        forgotten = now_us - limits.unsure_us
        for name, cursor in self._cursors.items():
            cursor.seen(forgotten)
            if cursor.again and name not in segments:
                self._load(name, {}, now_us, left_us)
        for name in list(segments):
            self._load(name, segments.pop(name), now_us, left_us)

    def _load(self, name: str, segments: Mapping[str, bytes], now_us: int, left_us: int) -> None:
        cursor = self._cursors.get(name)
        done = BEFORE_ALL if cursor is None else cursor.done
        read = {}
        for key, payload in segments.items():
            try:
                read[key] = read_segment(payload)
            except ContractError as e:
                self.unread.append((key, str(e)))
        ids = {key: segment.ids for key, segment in read.items()}
        since_us = min((segment.since_us for segment in read.values() if segment.since_us), default=now_us)
        if cursor is not None and cursor.again:
            self._segments += 1
            ids[segment_key(name, self._owner, self._segments)] = cursor.again
        parked = Parked.loaded(ids, done, since_us)
        parked.since_us = min(left_us, now_us)  # a clock that was ahead, ours or another's, may not deafen it
        for key in parked.finish(done):
            self._remove(key)
        if not len(parked):
            return
        self._parked_count += len(parked)
        if self._horizon is not None:
            self._tainted.add(name)
        # Spread over half a minute, for all of them are probed once.
        wait = self._limits.probe_min_us
        at = now_us + _spread_us(name, wait)
        self._asleep[name] = parked, wait, at
        self._look_again(at, name)
        self._watch_expiry(name, parked)

    @property
    def parked(self) -> int:
        """Commands whose ids are all that is kept here."""
        return self._parked_count

    @property
    def parked_devices(self) -> int:
        """Devices with parked commands."""
        return len(self._asleep) + sum(1 for device in self._devices.values() if len(device.parked))

    def mode_of(self, name: str) -> Mode:
        """Return whether a device gets what arrives, is away, or gets first what is parked."""
        if name in self._asleep:
            return Mode.PARKED
        device = self._devices.get(name)
        return Mode.LIVE if device is None else device.mode

    def _all_parked(self) -> Iterator[tuple[str, Parked]]:
        for name, (parked, _, _) in self._asleep.items():
            yield name, parked
        for name, device in self._devices.items():
            if len(device.parked):
                yield name, device.parked

    @property
    def clean(self) -> bool:
        """Whether no device may have had a command beyond its stored cursor without that being stored."""
        return not self._tainted and not self._writes_ids and super().clean

    @property
    def settled(self) -> bool:
        """Whether nothing is under way."""
        return super().settled and not self._writes_ids and not self._coming

    @property
    def _writes_ids(self) -> bool:
        """Whether ids wait to be stored."""
        return bool(self._unwritten or self._unstored_again)

    def next_time_us(self) -> int | None:
        """Return when ``tick`` is due, in µs since the epoch, None when nothing waits for the clock."""
        times = [super().next_time_us(), self._timers[0][0] if self._timers else None]
        times.append(self._flush_at_us if self._writes_ids else None)
        if (self._pulling or self._round or self._next_round) and self._pulls_now:
            missing = max(0.0, self._at_once - self._tokens)
            times.append(self._tokens_at_us + int(missing * _SECOND / self._limits.replay_rate) + 1)
        return min((at for at in times if at is not None), default=None)

    @property
    def _pulls_now(self) -> bool:
        return self._link and not self._draining and self._pull_room >= self._at_once

    @property
    def _pull_room(self) -> int:
        # They wait there for long, one of each such device, and would leave nothing for others.
        waiting = min(len(self._failing), _FAILING * self._limits.replay_window)
        return self._limits.replay_window - self._coming - (len(self._pulled) - waiting)

    def link_up(self, *, tells_absence: bool = False) -> None:
        """The MQTT connection stands, and Pulsar has confirmed that we are the owner. ``tells_absence``: this broker
        answers 0x10 to what nobody is subscribed to.
        """
        super().link_up()
        self._tells_absence = tells_absence

    def _acknowledge(self, parked: Sequence[CommandPosition]) -> None:
        name = ""
        for position in parked:
            name = self._let_go(position).command.device
        if name in self._devices:
            self._sleep(self._devices[name])

    def _append(self, device: Device, one: ParkedId, now_us: int) -> None:
        self._segments += 1
        self._parked_count += 1
        key = device.parked.append(one, segment_key(device.name, self._owner, self._segments), now_us)
        self._unwritten_of(device, key, now_us)
        if len(device.parked) == 1:
            self._watch_expiry(device.name, device.parked)

    def _parked_full(self, device: Device, more: int = 0) -> bool:
        """Whether no further command may be parked; those that are sent once more do not count."""
        most = self._limits.parked_max
        count = len(device.parked) + more
        return count >= most and count - device.parked.up_to(device.cursor.position) >= most

    def _unwritten_of(self, device: Device, key: str, now_us: int) -> None:
        if not self._writes_ids:
            self._flush_at_us = now_us + self._limits.coalesce_us
        device.segments[key] = None
        self._unwritten[device.name] = device

    def _remove(self, key: str) -> None:
        self._busy += 1
        self._actions.append(StoreSegment(key, b""))

    def _watch_expiry(self, name: str, parked: Parked) -> None:
        if len(parked) and parked[0].expires_at_ms:
            self._look_again(parked[0].expires_at_ms * 1000, name)

    def _look_again(self, at_us: int, name: str) -> None:
        """Have ``tick`` look at a parked device. Times that were replaced stay until they come, but not too many."""
        heapq.heappush(self._timers, (at_us, name))
        if len(self._timers) >= self._timers_most:
            self._timers = sorted({one for one in self._timers if self._is_timed(*one)})
            self._timers_most = 2 * len(self._timers) + _TIMERS

    def _is_timed(self, at_us: int, name: str) -> bool:
        asleep, device = self._asleep.get(name), self._devices.get(name)
        if asleep is not None:
            parked, _, probe_at_us = asleep
        elif device is not None and device.mode is Mode.PARKED:
            parked, probe_at_us = device.parked, device.probe_at_us
        else:
            return False  # parked again, it is looked at again
        return at_us == probe_at_us or (len(parked) > 0 and at_us == parked[0].expires_at_ms * 1000)

    def _sleep(self, device: Device) -> None:
        """Keep only the ids of a device for which nothing is under way."""
        busy = device.queue or device.unstored or device.storing or device.writing or device.storing_ids
        listed = device.ready or device.wanting or device.segments or device.name in self._dirty
        if device.mode is not Mode.PARKED or busy or listed or device.marks or not len(device.parked):
            return
        del self._devices[device.name]
        if device.cursor.says_anything:
            self._cursors[device.name] = device.cursor
        self._asleep[device.name] = device.parked, device.probe_wait_us, device.probe_at_us

    def _known(self, name: str) -> Device | None:
        return self._device(name) if name in self._devices or name in self._asleep else None

    def _device(self, name: str) -> Device:
        device = super()._device(name)
        asleep = self._asleep.pop(name, None)
        if asleep is not None:
            device.mode = Mode.PARKED
            device.parked, device.probe_wait_us, device.probe_at_us = asleep
        return device

    def _can_probe(self, name: str) -> bool:
        """Whether a push would tell: a broker that queues for absent devices, or drops for them, says nothing."""
        return self._limits.answers or (self._tells_absence and not self.presence.absent(name))

    def _line_up(self, name: str) -> None:
        """A parked device waits for its turn to be tried, without more of it in memory than its ids if it sleeps."""
        if name in self._asleep:
            self._asleep[name] = *self._asleep[name][:2], DUE
        else:
            self._devices[name].probe_at_us = DUE
        self._next_round.append(name)

    def _look_later(self, name: str, now_us: int) -> None:
        """See later whether a parked device can be tried."""
        if name not in self._asleep:
            self._plan_probe(self._devices[name], now_us)
            return
        parked, wait, _ = self._asleep[name]
        wait = wait or self._limits.probe_min_us
        self._asleep[name] = parked, min(2 * wait, self._limits.probe_max_us), now_us + wait
        self._look_again(now_us + wait, name)

    def _try_due(self, now_us: int) -> None:
        """Have some of the devices that are due wait for their turn: in rounds, in the order of the log, so that what is
        read for one stands close behind what was read for the one before.
        """
        while self._pulling.unheard < _UNHEARD and (self._round or self._next_round):
            if not self._round:
                self._round, self._next_round = self._next_round, []
                self._round.sort(key=lambda name: self._due(name) or BEFORE_ALL, reverse=True)
                continue
            name = self._round.pop()
            if self._due(name) is None:
                continue  # it was back since
            if self._can_probe(name):
                self._wake(self._device(name), probing=True)
            else:
                self._look_later(name, now_us)

    def _due(self, name: str) -> CommandPosition | None:
        """Return the first of what waits for a device that is due to be tried, None when it is not."""
        asleep, device = self._asleep.get(name), self._devices.get(name)
        if asleep is not None:
            return asleep[0].position(0) if asleep[2] == DUE else None
        if device is None or device.mode is not Mode.PARKED or device.probe_at_us != DUE:
            return None
        return device.parked.position(0) if len(device.parked) else BEFORE_ALL

    def _plan_probe(self, device: Device, now_us: int) -> None:
        device.probe_wait_us = device.probe_wait_us or self._limits.probe_min_us
        device.probe_at_us = now_us + device.probe_wait_us
        self._look_again(device.probe_at_us, device.name)
        device.probe_wait_us = min(2 * device.probe_wait_us, self._limits.probe_max_us)

    def _try_later(self, device: Device, now_us: int) -> None:
        """Have a device of which nothing is pulled yet give up its turn to be tried."""
        device.mode = Mode.PARKED
        device.probing = device.wanting = False
        self._pulling.discard(device)
        self._plan_probe(device, now_us)
        self._sleep(device)

    def _wake(self, device: Device, *, probing: bool = False, sweeping: bool = False) -> None:
        device.mode = Mode.REPLAYING
        self._rounds += 1
        device.round = self._rounds
        device.probing, device.sweeping = probing, sweeping
        if len(device.parked):
            if not probing and not sweeping:
                self._is_back(device, True)
            self._want(device)
        else:
            self._live(device)

    def _is_back(self, device: Device, back: bool) -> None:
        """Have it in Pulsar whether the next owner may go on without a sign of life."""
        if device.cursor.back is not back:
            device.cursor.back = back
            self._dirty[device.name] = device

    def _live(self, device: Device) -> None:
        device.mode = Mode.LIVE
        device.probing = device.sweeping = False
        self._tainted.discard(device.name)

    def _want(self, device: Device) -> None:
        """Have more of its parked commands pulled: not one by one as they are settled, but a few together."""
        if device.mode is not Mode.REPLAYING or device.wanting:
            return
        taken = self._taken(device)
        room = taken + self._at_once <= _AHEAD if not device.failures else not taken
        if taken < len(device.parked) and room:
            device.wanting = True
            self._pulling.add(device, device.parked.position(taken))

    @staticmethod
    def _taken(device: Device) -> int:
        """Return how many from the head of the list are pulled, or being pulled, and not done with."""
        items = chain(device.queue, device.unstored, device.storing)
        return device.coming + sum(1 for item in items if item.pulled or item.listed)

    def _refill(self, now_us: int) -> None:
        """Let through what the shaped rate allows by now, so that live devices do not feel it."""
        rate = self._limits.replay_rate
        passed = max(0, now_us - self._tokens_at_us)
        most = max(self._at_once, rate / 20)
        self._tokens = min(most, self._tokens + passed * rate / _SECOND)
        self._tokens_at_us = now_us

    def _pull(self) -> None:
        """Pull for those that are back, and for a few others."""
        while self._pulling and self._tokens >= self._at_once and self._pulls_now:
            device = self._pulling.next()
            device.wanting = False
            unheard = device.probing or device.sweeping
            ahead = 1 if unheard or device.failures else _AHEAD
            taken = self._taken(device)
            count = min(ahead - taken, len(device.parked) - taken, self._pull_room, int(self._tokens))
            if device.mode is not Mode.REPLAYING or count < 1:
                continue
            wanted = tuple(device.parked.position(taken + n) for n in range(count))
            places = tuple(device.parked.place(taken + n) for n in range(count))
            device.coming += count
            self._coming += count
            # Nobody waits for a probe as a device waits that is back: it costs as much as a turn of such a one.
            self._tokens -= UNHEARD_EVERY * count if device.probing else count
            self._actions.append(Pull(device.name, device.round, wanted, places, unheard))

    def _gave_sign(self, device: Device, now_us: int) -> None:
        self.presence.alive(device.name, now_us)

    def _confirmed_of(self, device: Device, item: Item) -> None:
        device.probing = False
        if item.pulled:
            device.cursor.back = True  # it is written with what this settles
        device.probe_wait_us = 0
        if item.pulled:
            if item.answered_at_us and not item.again and device.queue[0] is not item:
                # The cursor does not pass it yet: put back with what is before it, it is not to be done twice.
                self._keep_answer(item)
            why = _AGAIN if item.again else ""
            self._note(item, State.CONFIRMED, "answered" if item.answered_at_us else "delivered", why)
        elif not self._limits.answers:
            device.cursor.seen(item.confirmed_at_us - self._limits.unsure_us)
            one = ParkedId(item.position, item.command.expires_at_ms, True, True)
            device.cursor.trust(Sure(one, item.confirmed_at_us))

    def _keep_answer(self, item: Item) -> None:
        self._late.give(item.position, Given(item.answer, item.answer_length, item.answered_at_us))

    def _passed(self, device: Device, stored: list[Item]) -> None:
        done = [item for item in stored if item.pulled or item.listed]
        for item in done:
            self._late.forget(item.position)
            if item.pulled:
                del self._pulled[item.position]
                self._failing.discard(item.position)
                self._actions.append(Forget(item.position))
        if done:
            before = len(device.parked)
            removed = device.parked.finish(done[-1].position)
            self._parked_count -= before - len(device.parked)
            for key in removed:
                device.segments.pop(key, None)
                self._remove(key)
        if device.mode is Mode.REPLAYING and not len(device.parked):
            self._live(device)
        self._want(device)
        self._sleep(device)

    @property
    def stored_devices(self) -> list[str]:
        """The devices of which anything stands in the cursors partition."""
        parked = (d.name for d in self._devices.values() if len(d.parked))
        return list(dict.fromkeys((*self.with_cursors, *self._asleep, *parked)))

    def store_once_more(self, name: str) -> None:
        """Store the ids of a device's parked commands as they stand, under the keys that they have."""
        device = self._devices.get(name)
        if device is None and name not in self._asleep:
            return
        parked, unwritten = (self._asleep[name][0], {}) if device is None else (device.parked, device.segments)
        for key, payload in parked.stored():
            if key not in unwritten:
                self._busy += 1
                self._actions.append(StoreSegment(key, payload))

    def store_again(self, now_us: int) -> None:
        """Pulsar has lost the cursors partition: store the ids of all parked commands once more, as they stand, so that
        no device is woken for it, and nothing is stored together that is to be moved apart.
        """
        if not self._writes_ids:
            self._flush_at_us = now_us + self._limits.coalesce_us
        self._unstored_again = deque(name for name, _ in self._all_parked())


def _spread_us(name: str, wait_us: int) -> int:
    """Return a time about as long as ``wait_us``, each device its own, so that not all are tried at one moment."""
    return wait_us // 2 + crc32(name.encode()) % max(1, wait_us)

"""Presence: signs of life and of absence by device, and probes, which find a parked device online when no sign of life comes.

An absence counts only if it is newer than the last sign of life (H31); a sign of life ends every absence that is not newer.
A device without a sign does not count as absent. The memory is bounded in bytes, since devices name themselves (H35); the
device with the least recent sign is forgotten first, and then counts as online.

A probe is one command of the device, sent alone. It is sent if its result can show something: the device answers
(``confirm: device``), or the broker reports that no client is subscribed. Timers also find parked commands that expire.

With several brokers a device is where its newest sign of life came from. What an earlier broker still reports of it does not
count: a late will, or a retained message, which has no date. Probes go to one broker after the other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from bridge.bounded_map import BoundedMap
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.links import Links
from bridge.push.replay import Replay
from bridge.push.segments import Parked
from bridge.push.states import DeviceEvent, Mode

__all__ = ["DUE", "Presence", "Probes"]

_KNOWN_BYTES: Final = 96 * 1024 * 1024  # some 200,000 devices with usual names


class _Known(NamedTuple):
    seen: int = 0  # the last dated sign of life
    absent: int = 0  # the last sign of absence, 0 if a sign of life followed
    link: str = ""  # the broker where the device is; empty if unknown, or with one broker
    placed: int = 0  # its last dated sign of life there; 0 without one


_UNKNOWN: Final = _Known()


class Presence:
    """What is known of the devices of a partition. Times are µs since the epoch."""

    def __init__(self, most_bytes: int = _KNOWN_BYTES) -> None:
        self._known: BoundedMap[_Known] = BoundedMap(most_bytes, each=192)

    def alive(self, device: str, at_us: int, link: str = "", *, dated: bool = True) -> bool:
        """Note a sign of life, at the broker ``link`` if it says so. Returns whether it is the newest that is known of the
        device. A sign that is not ``dated`` may be old.
        """
        if not self.counts(device, at_us, link, dated=dated):
            return False
        seen, absent, place, placed = self._known.get(device, _UNKNOWN)
        if link and link != place:
            place, placed = link, at_us if dated else absent
        elif link and dated:
            placed = max(placed, at_us)
        self._known.put(device, _Known(max(seen, at_us) if dated else seen, 0, place, placed))
        return True

    def counts(self, device: str, at_us: int, link: str, *, dated: bool) -> bool:
        """Return whether a sign of life is the newest that is known of the device."""
        _, absent, place, placed = self._known.get(device, _UNKNOWN)
        if not link or not place or link == place:
            return at_us >= absent
        return at_us >= placed if dated else absent > 0

    def gone(self, device: str, at_us: int, link: str = "") -> bool:
        """Note a sign of absence. Returns whether it counts."""
        seen, absent, place, placed = self._known.get(device, _UNKNOWN)
        if at_us <= seen or (link and place and link != place):
            return False
        self._known.put(device, _Known(seen, max(absent, at_us), place, placed))
        return True

    def absent(self, device: str) -> bool:
        """Return whether the last that is known of the device is its absence."""
        return self._known.get(device, _UNKNOWN).absent > 0

    def seen_us(self, device: str) -> int:
        """Return when the device last gave a sign of life, 0 when that is not known."""
        return self._known.get(device, _UNKNOWN).seen

    def place(self, device: str) -> tuple[str, int]:
        """Return the broker where the device is, and its last dated sign of life there; "" and 0 if that is not known."""
        known = self._known.get(device, _UNKNOWN)
        return known.link, known.placed

    def put(self, device: str, link: str, placed_us: int) -> None:
        """Note the broker of a device without a sign of life."""
        self._known.put(device, self._known.get(device, _UNKNOWN)._replace(link=link, placed=placed_us))


DUE: Final = 0
"""In place of the time of a probe: the device waits for its turn."""
_WAITING: Final = 16
"""Devices that wait in the replay scheduler to be probed; of the others that are due only the ids stay in memory."""
_TIMERS: Final = 100
_RETAINED_US: Final = 2_000_000  # after this time on a new connection the wills that the broker retained have arrived


@dataclass(eq=False)
class Probes:
    """When each parked device is probed, and when its oldest parked command expires."""

    _limits: Limits
    _links: Links
    _devices: Devices
    _replay: Replay
    _presence: Presence
    _timers: list[tuple[int, str]] = field(default_factory=list)
    _timers_most: int = _TIMERS
    _round: list[str] = field(default_factory=list)  # devices that are due; the last one is the next
    _next_round: list[str] = field(default_factory=list)
    _reporting: set[str] = field(default_factory=set)  # brokers that report that no client is subscribed (PUBACK 0x10)
    _proven: set[str] = field(default_factory=set)  # those that have reported it for a command
    # By broker the devices whose replay continues once it accepts commands, and when that is looked at.
    _interrupted: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _continue_at_us: dict[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether a device waits for its turn."""
        return bool(self._round or self._next_round)

    @property
    def next_timer_us(self) -> int | None:
        """When the next timer is due, None without one."""
        return self._timers[0][0] if self._timers else None

    @property
    def continue_at_us(self) -> int | None:
        """When interrupted replays may continue, None without any."""
        return min(self._continue_at_us.values(), default=None)

    def prove_absence(self, link: str) -> None:
        """The broker reported for a command that no client is subscribed, whatever it reported when asked."""
        self._reporting.add(link)
        self._proven.add(link)

    def absence_proven(self, link: str) -> bool:
        """Return whether the broker has ever reported for a command that no client is subscribed."""
        return link in self._proven

    def is_away(self, device: Device, now_us: int) -> bool:
        """Return whether a device counts as absent."""
        if self._presence.absent(device.name):
            return True
        seen, silence = self._presence.seen_us(device.name), self._limits.presence.silence_us
        return bool(seen and silence and now_us - seen >= silence)

    def link_up(self, link: str, now_us: int, *, reports_absence: bool) -> None:
        """A connection is up; soon the replays continue that were interrupted."""
        (self._reporting.add if reports_absence else self._reporting.discard)(link)
        if self._interrupted[link]:
            self._continue_at_us[link] = now_us + _RETAINED_US

    def restored(self, begun: Iterable[str], link_of: Callable[[str], str]) -> None:
        """Everything is loaded: note the replays that a former owner had begun. Nothing else may wake these devices."""
        for name in begun:
            self._interrupted[link_of(name)].append(name)

    def interrupt(self, device: Device, now_us: int) -> None:
        """Continue the replay of a device when its broker accepts commands again, without a sign of life."""
        self._interrupted[device.link].append(device.name)
        if self._links[device.link].connected:
            self._continue_at_us.setdefault(device.link, now_us + _RETAINED_US)

    def continue_replays(self, now_us: int) -> None:
        """Continue interrupted replays when it is time, except of absent devices."""
        if not self._continue_at_us:
            return
        for link in [link for link, at_us in self._continue_at_us.items() if at_us <= now_us]:
            if self._links.several and self._links[link].is_stuck(now_us):
                self._continue_at_us[link] = now_us + _RETAINED_US
                continue
            del self._continue_at_us[link]
            for name in self._interrupted.pop(link, ()):
                device = self._devices.known(name)
                if device is not None and device.mode is Mode.PARKED and not self.is_away(device, now_us):
                    self._replay.wake(device, probing=True)

    # --- timers ---

    def restore(self, name: str, parked: Parked, now_us: int) -> None:
        """Plan the first probe of a device whose commands a former owner parked: all of them within half a minute."""
        wait_us = self._limits.presence.probe_min_us
        parked.probe_wait_us, parked.probe_at_us = wait_us, now_us + _spread_us(name, wait_us)
        self._devices.dormant[name] = parked
        self._set_timer(parked.probe_at_us, name)
        self.watch_expiry(name, parked)

    def plan(self, name: str, parked: Parked, now_us: int) -> None:
        """Plan the next probe of a parked device; the wait doubles each time."""
        presence = self._limits.presence
        wait_us = parked.probe_wait_us or presence.probe_min_us
        parked.probes = parked.probes + 1 if parked.probe_wait_us else 0
        parked.probe_wait_us, parked.probe_at_us = min(2 * wait_us, presence.probe_max_us), now_us + wait_us
        self._set_timer(parked.probe_at_us, name)

    def plan_again(self, name: str, parked: Parked) -> None:
        """Keep the probe as it was planned: at a time, or at its turn."""
        if parked.probe_at_us == DUE:
            self._line_up(name, parked)
        else:
            self._set_timer(parked.probe_at_us, name)

    def watch_expiry(self, name: str, parked: Parked) -> None:
        """Set a timer for the expiry of the oldest parked command."""
        if len(parked) and parked[0].expires_at_ms:
            self._set_timer(parked[0].expires_at_ms * 1000, name)

    def _set_timer(self, at_us: int, name: str) -> None:
        """Have ``tick`` look at a parked device. Replaced timers stay until they are due, within a bound."""
        heapq.heappush(self._timers, (at_us, name))
        if len(self._timers) >= self._timers_most:
            self._timers = sorted({one for one in self._timers if self._is_timed(*one)})
            self._timers_most = 2 * len(self._timers) + _TIMERS

    def _parked(self, name: str) -> Parked | None:
        return self._devices.parked_of(name) if self._devices.mode_of(name) is Mode.PARKED else None

    def _is_timed(self, at_us: int, name: str) -> bool:
        parked = self._parked(name)
        if parked is None:
            return False  # when it is parked again, it gets a new timer
        return at_us == parked.probe_at_us or (len(parked) > 0 and at_us == parked[0].expires_at_ms * 1000)

    def tick(self, now_us: int) -> None:
        """Handle the timers that are due."""
        while self._timers and self._timers[0][0] <= now_us:
            at_us, name = heapq.heappop(self._timers)
            parked = self._parked(name)
            if parked is not None:
                self._timer(name, parked, parked.probe_at_us == at_us, now_us)

    def _timer(self, name: str, parked: Parked, probe: bool, now_us: int) -> None:
        expired = len(parked) > 0 and 0 < parked[0].expires_at_ms * 1000 <= now_us
        if not expired and not probe:
            return
        if probe and self._probed_at(name, parked) is not None:
            self._line_up(name, parked)
        elif expired:
            self._replay.wake(self._devices.get(name), sweeping=True)
        else:
            self.plan(name, parked, now_us)

    # --- turns ---

    def _probed_at(self, name: str, parked: Parked) -> str | None:
        """Return the broker of the next probe; None if it would show nothing, because brokers queue or drop for absent devices."""
        links, (place, _) = self._links.names, self._presence.place(name)
        if self._limits.answers.confirm:
            first = links.index(place) if place else 0
            turn = first + parked.probes
            candidates = [links[(turn + n) % len(links)] for n in range(len(links))]
            return next((link for link in candidates if self._links[link].connected), links[first])
        if self._presence.absent(name):
            return None
        # A broker where the device was before may have its session, and would accept a probe for it.
        reporting = [link for link in ([place] if place else links) if link in self._reporting]
        return reporting[parked.probes % len(reporting)] if reporting else None

    def _line_up(self, name: str, parked: Parked) -> None:
        """Have a parked device wait for its turn; of a dormant one only the ids stay in memory."""
        parked.probe_at_us = DUE
        self._next_round.append(name)

    def begin_due(self, now_us: int) -> None:
        """Wake some of the devices that are due, in rounds in the order of the log: so their reads lie close together."""
        while self._replay.scheduler.tried < _WAITING and self.waiting:
            if not self._round:
                self._round, self._next_round = self._next_round, []
                self._round.sort(key=self._first_due, reverse=True)
                continue
            name = self._round.pop()
            parked = self._parked(name)
            if parked is None or parked.probe_at_us != DUE:
                continue  # it gave a sign of life since
            link = self._probed_at(name, parked)
            if link is not None:
                device = self._devices.get(name)
                self._devices.move(device, link, certain=self._links.several)
                self._replay.wake(device, probing=True)
            else:
                self.plan(name, parked, now_us)

    def _first_due(self, name: str) -> CommandPosition:
        """Return the first parked position of a device that is due, BEFORE_ALL when it is not."""
        parked = self._parked(name)
        return parked.position(0) if parked and parked.probe_at_us == DUE else BEFORE_ALL

    def defer(self, device: Device, now_us: int) -> None:
        """Have a device of which nothing is read yet give up its turn."""
        device.on(DeviceEvent.DEFER)
        device.replay.probing = device.replay.waiting = False
        self._replay.scheduler.discard(device)
        self.plan(device.name, device.parked, now_us)
        self._devices.sleep(device)


def _spread_us(name: str, wait_us: int) -> int:
    """Return a time of about ``wait_us``, different for each device, so that the probes are spread."""
    return wait_us // 2 + crc32(name.encode()) % max(1, wait_us)

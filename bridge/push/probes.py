"""Presence: signs of life and of absence by device, and probes, which find a parked device online when no sign of life comes.

An absence counts only if it is newer than the last sign of life (H31); a sign of life ends every absence that is not newer.
A device without a sign does not count as absent. The memory is bounded in bytes, since devices name themselves (H35); the
device with the least recent sign is forgotten first, and then counts as online.

A probe is one command of the device, sent alone. It is sent if its result can show something: the device answers
(``confirm: device``), or the broker reports that no client is subscribed. Timers also find parked commands that expire.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from bridge.bounded_map import BoundedMap
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.push.device import Device, Devices
from bridge.push.limits import Limits
from bridge.push.replay import Replay
from bridge.push.segments import Parked
from bridge.push.states import DeviceEvent, Mode

__all__ = ["DUE", "Presence", "Probes"]

_KNOWN_BYTES: Final = 96 * 1024 * 1024
"""Some 200,000 devices with usual names."""


class Presence:
    """What is known of the devices of a partition. Times are µs since the epoch."""

    def __init__(self, most_bytes: int = _KNOWN_BYTES) -> None:
        # Last sign of life, last sign of absence.
        self._known: BoundedMap[tuple[int, int]] = BoundedMap(most_bytes, each=192)

    def alive(self, device: str, at_us: int) -> bool:
        """Note a sign of life. Returns whether it is the newest that is known of the device."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us < absent:
            return False
        self._known.put(device, (max(seen, at_us), 0))
        return True

    def gone(self, device: str, at_us: int) -> bool:
        """Note a sign of absence. Returns whether it counts."""
        seen, absent = self._known.get(device, (0, 0))
        if at_us <= seen:
            return False
        self._known.put(device, (seen, max(absent, at_us)))
        return True

    def absent(self, device: str) -> bool:
        """Return whether the last that is known of the device is its absence."""
        return self._known.get(device, (0, 0))[1] > 0

    def seen_us(self, device: str) -> int:
        """Return when the device last gave a sign of life, 0 when that is not known."""
        return self._known.get(device, (0, 0))[0]


DUE: Final = 0
"""In place of the time of a probe: the device waits for its turn."""
_WAITING: Final = 16
"""Devices that wait in the replay scheduler to be probed; of the others that are due only the ids stay in memory."""
_TIMERS: Final = 100
_RETAINED_US: Final = 2_000_000
"""After this time on a new connection the wills that the broker retained have arrived."""


@dataclass(eq=False)
class Probes:
    """When each parked device is probed, and when its oldest parked command expires."""

    _limits: Limits
    _devices: Devices
    _replay: Replay
    _presence: Presence
    _timers: list[tuple[int, str]] = field(default_factory=list)
    _timers_most: int = _TIMERS
    _round: list[str] = field(default_factory=list)  # devices that are due; the last one is the next
    _next_round: list[str] = field(default_factory=list)
    reports_absence: bool = False
    """Whether the broker of this connection reports that no client is subscribed (PUBACK 0x10)."""
    absence_proven: bool = False
    """Whether the broker has reported that for a command."""
    _former: list[str] = field(default_factory=list)  # devices to which the former owner was sending parked commands
    continue_at_us: int | None = None
    """When their replay continues, None for not."""

    @property
    def waiting(self) -> bool:
        """Whether a device waits for its turn."""
        return bool(self._round or self._next_round)

    @property
    def next_timer_us(self) -> int | None:
        """When the next timer is due, None without one."""
        return self._timers[0][0] if self._timers else None

    def prove_absence(self) -> None:
        """The broker reported for a command that no client is subscribed, whatever it reported when asked."""
        self.reports_absence = self.absence_proven = True

    def is_away(self, device: Device, now_us: int) -> bool:
        """Return whether a device counts as absent."""
        if self._presence.absent(device.name):
            return True
        seen, silence = self._presence.seen_us(device.name), self._limits.presence.silence_us
        return bool(seen and silence and now_us - seen >= silence)

    def link_up(self, now_us: int, *, reports_absence: bool) -> None:
        """The connection is up; soon the replays continue that a former owner had begun."""
        self.reports_absence = reports_absence
        if self._former:
            self.continue_at_us = now_us + _RETAINED_US

    def restored(self) -> None:
        """Everything is loaded: find the replays that a former owner had begun. Nothing else may wake these devices."""
        for name in self._devices.dormant:
            cursor = self._devices.cursors.get(name)
            if cursor is not None and (cursor.online or (cursor.resend_from and not cursor.resend)):
                self._former.append(name)

    def continue_replays(self, now_us: int) -> None:
        """Continue these replays when it is time, except of absent devices."""
        if self.continue_at_us is None or self.continue_at_us > now_us:
            return
        names, self._former, self.continue_at_us = self._former, [], None
        for name in names:
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
        if probe and self._can_probe(name):
            self._line_up(name, parked)
        elif expired:
            self._replay.wake(self._devices.get(name), sweeping=True)
        else:
            self.plan(name, parked, now_us)

    # --- turns ---

    def _can_probe(self, name: str) -> bool:
        """Return whether a probe would show anything: of a broker that queues or drops for absent devices it does not."""
        return self._limits.answers.confirm or (self.reports_absence and not self._presence.absent(name))

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
            if self._can_probe(name):
                self._replay.wake(self._devices.get(name), probing=True)
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

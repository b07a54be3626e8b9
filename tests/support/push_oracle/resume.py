"""What a device gets that holds its own offset: everything after a position that it names, in order (H27). Pure.

Such a command was settled long ago, or waits, or is in flight. So the device stops being LIVE first, what comes for it
meanwhile is parked behind, and what it has had since that position is put before all that is parked. Then the replay
sends it as it sends all that was parked, each marked ``repeat=1``.

Commit order; the process may die between any two steps
-------------------------------------------------------
1. The device is parked; what was in flight is parked with it, and its cursor comes to rest.
2. ``FindCommands`` → ``found``: the positions of its commands, from Pulsar, up to its cursor.
3. ``StoreSegment``: their ids. Died before 4: they are at or below the cursor, so the next owner drops them.
4. ``StoreCursor``, gone back to before the first of them → ``cursor_stored``: the next owner replays them as well. This
   write goes through the exclusive producer, so that only the partition's owner comes beyond it (H23).
5. ``AnswerRequest`` → ``told``, and the device is woken. The request is acknowledged then. Died before: it comes
   again, and the device gets the same sequence once more. Woken before the broker has the answer, a device gets its
   first command before it in one of ten cases at Artemis: they are two subscriptions, and MQTT orders one (4.6.0-6).

A further request of the device waits until the one before is answered, and a while; of those that wait the latest counts.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bridge.contract.commands import CommandPosition
from tests.support.push_oracle.actions import Action, AnswerRequest, DropRequest, FindCommands
from tests.support.push_oracle.core import NO_SUBSCRIBERS, PartitionCore
from tests.support.push_oracle.cursor import BEFORE_ALL, Cursor
from tests.support.push_oracle.parked import GONE, SEGMENT_IDS, Parked, ParkedId
from tests.support.push_oracle.queues import Device, Limits, Mode
from tests.support.push_oracle.resume_requests import ResumeAnswer, ResumeRequest

__all__ = ["FOUND_WIDTH", "ResumingCore"]

FOUND_WIDTH: Final = 4
"""Numbers of a command that was found: ledger, entry, index, and when it expires in ms since the epoch."""
_AT_ONCE: Final = 16
"""Requests that are under way, so that what was found for them stays small."""
_REMEMBERED: Final = 10_000
_HEARD_US: Final = 2_000_000
"""After this time on a new connection wills are known that the broker retained."""
_BEYOND: Final = "there is no such command yet: this position is after the last one"


class _Step(Enum):
    SETTLING = 1  # parked, something of the device is under way
    FINDING = 2
    STORING = 3
    TELLING = 4  # all is stored, the MQTT broker has not confirmed the answer


@dataclass(slots=True, eq=False)
class _Resume:
    request: ResumeRequest
    step: _Step = _Step.SETTLING
    round: int = 0
    trimmed: bool = False
    first: CommandPosition | None = None


class ResumingCore(PartitionCore):
    """State of one partition, with devices that name the place to go on from."""

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
        """As for ``PartitionCore``."""
        self.told_absence = False
        """Whether the MQTT broker has said of a command that nobody is subscribed."""
        self._resumes: dict[str, _Resume] = {}  # under way
        self._settling: dict[str, _Resume] = {}  # those of them whose device comes to rest
        self._later: dict[str, ResumeRequest] = {}
        self._turns: list[tuple[int, str]] = []  # when those may begin
        self._began: dict[str, int] = {}  # when a device's last one did
        self._remember = _REMEMBERED
        self._now_us = now_us
        self._again_from: CommandPosition | None = None  # of the request that was served last
        super().__init__(partition, limits, cursors, horizon, parked, owner=owner, now_us=now_us, left_us=left_us)

        # A former owner was sending them what they had asked for, or what was parked: nothing else may wake them.
        self._owed = [
            name
            for name in self._asleep
            if (cursor := self._cursors.get(name)) is not None
            and (cursor.back or (cursor.again_from and not cursor.again))
        ]
        self._owed_at_us: int | None = None

    # --- events ---

    def link_up(self, *, tells_absence: bool = False) -> None:
        """The MQTT connection stands; what a former owner was sending goes on soon."""
        super().link_up(tells_absence=tells_absence)
        if self._owed:
            self._owed_at_us = self._now_us + _HEARD_US

    def _go_on_sending(self) -> None:
        owed, self._owed, self._owed_at_us = self._owed, [], None
        for name in owed:
            device = self._known(name)
            if device is not None and device.mode is Mode.PARKED and not self._away(device, self._now_us):
                self._wake(device, probing=True)

    def knows(self, name: str) -> bool:
        """Return whether there was ever a command to a device; any client may invent others."""
        return name in self._devices or name in self._cursors or name in self._asleep

    def asked(self, request: ResumeRequest, now_us: int) -> ResumeAnswer | None:
        """A device asks for everything after a position. Returns the answer where there is nothing to send."""
        name = request.device
        device = self._devices.get(name)
        cursor = self._cursors.get(name) if device is None else device.cursor
        settled = BEFORE_ALL if cursor is None else cursor.position
        # What is parked was pushed perhaps, and after a clean takeover nothing else tells of it.
        ends = (self._highest, self._horizon or BEFORE_ALL, settled, self._last_parked(name))
        if request.after > max(ends):
            return ResumeAnswer(0, error=_BEYOND)
        if cursor is None and name not in self._asleep:
            return ResumeAnswer(0)
        if name in self._later:
            self._actions.append(DropRequest(self._later[name]))
            self._later[name] = request
        else:
            self._later[name] = request
            self._wait_for_turn(name, now_us)
        return None

    def found(
        self,
        name: str,
        turn: int,
        ids: array[int],
        *,
        trimmed: bool,
        first: CommandPosition | None,
        now_us: int,
    ) -> None:
        """What stands in Pulsar for the device between the places of a ``FindCommands``, in the order of the log.

        ``ids`` are of ``FOUND_WIDTH`` numbers each. ``trimmed``: what follows the first place is not there any more;
        ``first`` is the first command of the partition that is, None without any.
        """
        resume = self._resumes.get(name)
        if resume is None or resume.step is not _Step.FINDING or resume.round != turn:
            return
        resume.trimmed, resume.first = trimmed, first
        self._put_in_front(resume, self._devices[name], ids, now_us)

    def confirmed(self, number: int, reason: int, now_us: int) -> None:
        """The broker answered push ``number``. One 0x10 proves that it tells absence, whatever it said when asked."""
        if reason == NO_SUBSCRIBERS:
            self._tells_absence = self.told_absence = True
        super().confirmed(number, reason, now_us)

    def cursor_stored(self, device_name: str) -> None:
        """Pulsar has the device's cursor."""
        super().cursor_stored(device_name)
        resume = self._resumes.get(device_name)
        if resume is not None and resume.step is _Step.STORING:
            self._resumed(resume, self._devices[device_name])

    def told(self, request: ResumeRequest) -> None:
        """The MQTT broker has the answer to a request, or cannot have it: what was asked for follows."""
        resume = self._resumes.get(request.device)
        if resume is not None and resume.request is request:
            self._go_on(resume, self._devices[request.device])

    def take(self, now_us: int) -> list[Action]:
        """Return the actions of the events so far."""
        self._now_us = now_us
        if self._owed_at_us is not None and self._owed_at_us <= now_us:
            self._go_on_sending()
        while self._turns and self._turns[0][0] <= now_us and self._has_turn:
            self._begin(heapq.heappop(self._turns)[1], now_us)
        for resume in list(self._settling.values()):
            self._find(resume, now_us)
        return super().take(now_us)

    def next_time_us(self) -> int | None:
        """Return when ``tick`` is due, in µs since the epoch, None when nothing waits for the clock."""
        turn = self._turns[0][0] if self._turns and self._has_turn else None
        times = (super().next_time_us(), turn, self._owed_at_us)
        return min((at for at in times if at is not None), default=None)

    def holds_from_now(self) -> CommandPosition | None:
        """Return up to where Pulsar must hold what devices are sent once more; None where nothing is."""
        return self._again_from

    @property
    def resuming(self) -> int:
        """Requests that are not answered."""
        return len(self._resumes) + len(self._later)

    # --- its steps ---

    def _last_parked(self, name: str) -> CommandPosition:
        parked = self._parked_of(name)
        return parked.position(-1) if parked is not None and len(parked) else BEFORE_ALL

    @property
    def _has_turn(self) -> bool:
        return len(self._resumes) < _AT_ONCE and not self._draining

    def _wait_for_turn(self, name: str, now_us: int) -> None:
        if name not in self._resumes:
            every = self._limits.resume_every_us
            heapq.heappush(self._turns, (max(now_us, self._began.get(name, -every) + every), name))

    def _begin(self, name: str, now_us: int) -> None:
        if len(self._began) >= self._remember:
            since = now_us - self._limits.resume_every_us
            self._began = {one: at for one, at in self._began.items() if at > since}
            self._remember = max(_REMEMBERED, 2 * len(self._began))
        self._began[name] = now_us
        resume = self._resumes[name] = self._settling[name] = _Resume(self._later.pop(name))
        device = self._device(resume.request.device)
        device.cursor.sure.clear()  # the device itself tells what it has had
        if device.mode is not Mode.PARKED:
            self._park(device, now_us)

    def _find(self, resume: _Resume, now_us: int) -> None:
        name = resume.request.device
        device = self._devices[name]
        if device.queue or device.unstored or device.storing or device.writing or name in self._dirty:
            return
        del self._settling[name]
        resume.step = _Step.FINDING
        self._rounds += 1
        resume.round = self._rounds
        until = device.cursor.position
        if resume.request.after < until:
            self._actions.append(FindCommands(name, resume.round, resume.request.after, until))
        else:
            self._put_in_front(resume, device, array("q"), now_us)

    def _put_in_front(self, resume: _Resume, device: Device, ids: array[int], now_us: int) -> None:
        cursor, parked = device.cursor, device.parked
        found: list[ParkedId] = []
        for at in range(0, len(ids), FOUND_WIDTH):
            ledger, entry, index, expires = ids[at : at + FOUND_WIDTH]
            position = CommandPosition(ledger, entry, index)
            if resume.request.after < position <= cursor.position and not 0 < expires * 1000 <= now_us:
                found.append(ParkedId(position, expires, True, True))
        if len(found) > self._limits.resume_max:
            del found[: -self._limits.resume_max]
            resume.trimmed, resume.first = True, found[0].position
        before = len(parked)
        self._keep_copies(parked, found, resume.request.after, cursor.position)
        # What is parked up to the cursor is sent once more for a former request, or for no sure reason: this device
        # tells. All of it is settled.
        device.removed += parked.finish(cursor.position)
        self._renew(device)
        if not parked.stays:
            parked.stays_since_us = now_us
        for one in found:
            self._wanted_anew(one.position, one.place)
        for at in reversed(range(0, len(found), SEGMENT_IDS)):
            parked.prepend(found[at : at + SEGMENT_IDS], self._new_key(device.name))
        self._parked_count += len(parked) - before
        self._late.forget_device(device.name)
        self._again_from = found[0].position if found else None
        cursor.replay_from(found[0].position if found else None)
        for key in parked.keys_before(cursor.position):
            self._store_fixed(parked, key)
        for key in device.removed:
            device.segments.pop(key, None)
        self._dirty[device.name] = device  # written behind the segments
        resume.step = _Step.STORING

    def _renew(self, device: Device) -> None:
        if not len(device.parked):
            return
        made, replaced = device.parked.renew(lambda: self._new_key(device.name))
        device.removed += replaced
        if any(key in device.segments for key in replaced):  # commands are acknowledged once it is stored
            device.segments[made[-1]] = None
        for key in made:
            self._store_fixed(device.parked, key)

    @staticmethod
    def _keep_copies(parked: Parked, found: list[ParkedId], after: CommandPosition, until: CommandPosition) -> None:
        """Add to ``found`` what is parked between these and stands in Pulsar as a copy alone."""
        known = {one.position for one in found}
        kept = [one for one in (parked[at] for at in range(parked.up_to(until))) if one.place not in (None, GONE)]
        more = [one for one in kept if one.position > after and one.position not in known]
        if more:
            found[:] = sorted([*found, *more])

    def _resumed(self, resume: _Resume, device: Device) -> None:
        for key in device.removed:
            self._remove(key)
        device.removed.clear()
        resume.step = _Step.TELLING
        answer = ResumeAnswer(len(device.parked), resume.trimmed, resume.first)
        self._actions.append(AnswerRequest(resume.request, answer))

    def _go_on(self, resume: _Resume, device: Device) -> None:
        name = resume.request.device
        del self._resumes[name]
        self.presence.alive(name, resume.request.at_us)
        if self._away(device, self._now_us):
            self._plan_probe(device, self._now_us)
            self._watch_expiry(name, device.parked)
            self._sleep(device)
        else:
            device.probe_wait_us = 0
            self._wake(device)
            self._look_at(device)
        if name in self._later:
            self._wait_for_turn(name, self._now_us)

    # --- while it lasts, the device stays parked ---

    def _wake(self, device: Device, *, probing: bool = False, sweeping: bool = False) -> None:
        if device.name not in self._resumes:
            super()._wake(device, probing=probing, sweeping=sweeping)

    def _sleep(self, device: Device) -> None:
        if device.name not in self._resumes:
            super()._sleep(device)

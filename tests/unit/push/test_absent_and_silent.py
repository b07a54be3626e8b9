"""Devices that disconnect while others are served, that are online and do not answer, or that are silent for hours."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.push.actions import DeadLetter, Pull, Push, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.partition import Partition
from bridge.push.states import Mode
from tests.support.push_limits import Limits

SECOND = 1_000_000
LIMITS = Limits(answers=True, answer_timeout_us=10 * SECOND, replay_rate=50)


class Played:
    """A core, a Pulsar that answers at once but for ``late`` receipts, and a clock. ``device`` sees each push."""

    def __init__(self, limits: Limits, device: Callable[[Played, Push], None], *, reports_absence: bool) -> None:
        self.core = Partition(0, limits.nested(), {}, None)
        self.core.link_up(reports_absence=reports_absence)
        self.now = self.began = 1_000_000 * SECOND
        self.late: list[StoreReceipt] = []
        self.receipts: list[Receipt] = []
        self.receipts_are_late = False
        self.dying: list[DeadLetter] | None = None  # those that Pulsar has not answered, where it does not
        self.pushed: list[tuple[float, Push]] = []
        self._device = device
        self._log: list[Command] = []
        self._then: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()

    def arrive(self, device: str, *, expires_in_s: float = 0) -> None:
        at = len(self._log)
        expires = int(self.now / 1000 + expires_in_s * 1000) if expires_in_s else 0
        self._log.append(Command(f"{device}-{at}", device, "t", b"x", expires_at_ms=expires))
        self.core.arrived(CommandPosition(7, at, -1), self._log[-1], self.now)
        self.settle()

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._then, (self.now + int(seconds * SECOND), next(self._order), what))

    def pass_time(self, seconds: float) -> None:
        end = self.now + int(seconds * SECOND)
        while True:
            due = [at for at in (self.core.next_time_us(), self._then[0][0] if self._then else None) if at]
            if not due or min(due) > end:
                break
            self.now = max(self.now, min(due))
            while self._then and self._then[0][0] <= self.now:
                heapq.heappop(self._then)[2]()
            self.core.tick(self.now)
            self.settle()
        self.now = end

    def settle(self) -> None:
        while actions := self.core.take(self.now):
            for one in actions:
                if isinstance(one, Push):
                    self.pushed.append(((self.now - self.began) / SECOND, one))
                    self.core.links[""].sent(one.number, self.now)
                    self._device(self, one)
                elif isinstance(one, StoreCursor):
                    self.core.cursor_stored(one.device)
                elif isinstance(one, StoreReceipt):
                    self.receipts.append(one.receipt)
                    if self.receipts_are_late:
                        self.late.append(one)
                    else:
                        self.core.settlement.receipt_stored(one.position)
                elif isinstance(one, DeadLetter) and self.dying is not None:
                    self.dying.append(one)
                elif isinstance(one, DeadLetter):
                    self.core.settlement.dead_letter_stored(one.position)
                elif isinstance(one, StoreSegment):
                    self.core.segment_stored(one.parked)
                elif isinstance(one, Pull):
                    for position in one.positions:
                        command = self._log[position.entry]
                        self.core.pulled(one.device, one.epoch, position, command, self.now)

    def pushes_to(self, device: str) -> list[float]:
        return [at for at, one in self.pushed if one.command.device == device]


def confirmed(played: Played, push: Push) -> None:
    """By the MQTT broker alone."""
    played.core.confirmed(push.number, 0, played.now)


def test_a_receipt_that_comes_when_its_device_sleeps_ends_nothing() -> None:
    played = Played(LIMITS, lambda *_: None, reports_absence=True)
    played.receipts_are_late = True
    played.arrive("d")
    played.core.delivery.reject(played.pushed[-1][1].number, "too large for this broker")
    played.settle()
    played.core.gone("d", played.now, played.now)
    played.arrive("d")
    played.pass_time(1)
    assert played.core.devices.mode_of("d") is Mode.PARKED
    for one in played.late:
        played.core.settlement.receipt_stored(one.position)
    played.core.alive("d", played.now)
    played.pass_time(1)
    assert len(played.pushes_to("d")) == 2


def test_h27_a_device_that_disconnects_while_it_waits_for_its_turn_is_not_served() -> None:
    played = Played(replace(LIMITS, answers=False), confirmed, reports_absence=False)
    names = [*(f"o{n}" for n in range(60)), "last"]
    for name in names:
        played.core.gone(name, played.now, played.now)
        for _ in range(5):
            played.arrive(name)
    played.pass_time(1)
    for name in names:
        played.core.alive(name, played.now)
    played.pass_time(1)
    assert played.core.devices.mode_of("last") is Mode.REPLAYING
    assert not played.pushes_to("last")
    played.core.gone("last", played.now, played.now)
    played.pass_time(60)
    assert (played.pushes_to("last"), played.core.devices.mode_of("last")) == ([], Mode.PARKED)
    assert len(played.pushed) == 300, "the others are"
    played.core.alive("last", played.now)
    played.pass_time(5)
    assert len(played.pushes_to("last")) == 5


def test_h31_commands_that_expire_keep_no_device_from_being_tried() -> None:
    limits = replace(LIMITS, park_after=1, probe_min_us=20 * SECOND, probe_max_us=1800 * SECOND)
    played = Played(limits, confirmed, reports_absence=True)
    quiet = Played(limits, confirmed, reports_absence=True)
    quiet.arrive("d")
    for _ in range(480):
        played.arrive("d", expires_in_s=300)
        played.pass_time(30)
        quiet.pass_time(30)
    assert len(quiet.pushes_to("d")) > 10
    assert list(map(round, played.pushes_to("d"))) == list(map(round, quiet.pushes_to("d"))), "as without expiry"


def test_h31_a_sign_of_life_counts_since_the_device_went_not_since_something_expired() -> None:
    played = Played(LIMITS, confirmed, reports_absence=True)
    played.core.gone("d", played.now, played.now)
    played.arrive("d", expires_in_s=5)
    played.arrive("d")
    played.pass_time(4)
    alive_us = played.now
    played.pass_time(2)
    played.core.alive("d", alive_us)
    played.pass_time(1)
    assert len(played.pushes_to("d")) == 1


@pytest.mark.parametrize(("silent", "beat_s"), [(60, 5), (600, 30)])
def test_devices_that_live_and_do_not_answer_leave_the_others_their_turns(silent: int, beat_s: int) -> None:
    def answers(played: Played, push: Push) -> None:
        confirmed(played, push)
        if push.command.device == "good" and there:
            played.after(
                0.02, lambda: played.core.answered(push.position, b"", played.now, failed=False)
            )  # fmt: skip

    there: list[str] = []
    played = Played(LIMITS, answers, reports_absence=True)
    names = [f"silent{n}" for n in range(silent)]
    for name in (*names, "good"):
        played.core.gone(name, played.now, played.now)
        for _ in range(20):
            played.arrive(name)

    def beats() -> None:
        for name in names:
            played.core.alive(name, played.now)

    for second in range(0, 900, beat_s):
        played.after(second, beats)
    played.pass_time(300)
    there.append("good")
    played.core.alive("good", played.now)
    before = len(played.pushes_to("good"))
    played.pass_time(300)
    assert len(played.pushes_to("good")) - before == 20
    assert played.core.devices.mode_of("good") is Mode.LIVE


def test_a_dead_letter_that_is_stored_late_delays_no_later_segment() -> None:
    def answers(played: Played, push: Push) -> None:
        confirmed(played, push)
        played.core.answered(push.position, b"", played.now, failed=False)

    played = Played(replace(LIMITS, parked_max=2), answers, reports_absence=True)
    played.dying = []
    played.core.gone("d", played.now, played.now)
    for _ in range(3):
        played.arrive("d")
    played.core.alive("d", played.now)
    played.pass_time(2)
    assert played.core.devices.mode_of("d") is Mode.LIVE
    (overflowed,), played.dying = played.dying, None
    played.core.settlement.dead_letter_stored(overflowed.position)
    played.settle()
    played.core.gone("d", played.now, played.now)
    played.arrive("d")
    played.pass_time(1)
    assert played.core.commands.pending == 0, "its id is stored, and it is acknowledged"


def test_a_command_in_flight_to_the_dead_letters_when_its_device_left_delays_no_segment() -> None:
    def answers(played: Played, push: Push) -> None:
        if push.position.entry == 0:
            played.core.delivery.reject(push.number, "too large")
        else:
            confirmed(played, push)

    played = Played(LIMITS, answers, reports_absence=True)
    played.core.gone("d", played.now, played.now)
    played.arrive("d")
    played.arrive("d")
    played.pass_time(1)
    played.dying = []
    played.core.alive("d", played.now)
    played.pass_time(1)
    (dying,), played.dying = played.dying, None
    played.core.gone("d", played.now, played.now)
    played.settle()
    played.core.settlement.dead_letter_stored(dying.position)
    played.arrive("d")
    played.pass_time(1)
    assert played.core.commands.pending == 0, "its id is stored, and it is acknowledged"

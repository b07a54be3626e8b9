"""Copies and what was not moved in one stored segment: the next owner finds all of it, whatever is moved then."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.segments import ParkedId, read_segment
from bridge.push.actions import (
    AnswerRequest,
    Copy,
    FindCommands,
    Pull,
    Push,
    ResumeRequest,
    StoreCursor,
    StoreReceipt,
    StoreSegment,
)
from bridge.push.partition import Partition
from bridge.push.segments import Parked
from tests.simulation.push_world import SECOND, cursors_of
from tests.support.push_limits import Limits

HOUR = 3600 * SECOND
LIMITS = Limits(
    answers=True,
    probe_min_us=10_000 * HOUR,
    probe_max_us=10_000 * HOUR,
    move_after_us=24 * HOUR,
    coalesce_us=0,
)


def position(number: int) -> CommandPosition:
    return CommandPosition(1, number, -1)


@dataclass
class Stand:
    """One device, and a Pulsar that performs each action at once."""

    now: int = 1_000_000 * SECOND
    there: bool = True
    written: int = 0
    trimmed: int = 0  # commands before it are not found any more
    cursors: dict[str, bytes] = field(default_factory=dict)
    segments: dict[str, bytes] = field(default_factory=dict)
    copies: list[CommandPosition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = self.owner("1")
        self.core.link_up()

    def owner(self, name: str) -> Partition:
        """Return the owner that takes over from what is stored."""
        horizon = position(self.written) if self.written else None
        parked = {"d": dict(self.segments)} if self.segments else {}
        return Partition(0, LIMITS.nested(), cursors_of(self.cursors), horizon, parked, owner=name, now_us=self.now)

    def commands(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            self.core.arrived(position(number), Command(f"c{number}", "d", "t", b"x"), self.now)
            self.written += 1
        self.run()

    def leave(self) -> None:
        self.there = False
        self.core.gone("d", self.now, self.now)
        self.run()

    def ask(self, after: int) -> None:
        """The device asks, and is gone before it gets anything."""
        self.core.resume.asked(ResumeRequest("d", "", position(after), self.now, after), self.now)
        self.now += 1
        self.leave()

    def move(self) -> None:
        self.now += 25 * HOUR
        self.core.retention.trims_to(self.now)
        self.run()

    def run(self) -> None:
        for _ in range(100):
            self.now += SECOND // 10
            self.core.tick(self.now)
            for action in self.core.take(self.now):
                self._do(action)

    def _do(self, action: object) -> None:
        core = self.core
        if isinstance(action, StoreSegment):
            self._store(action)
        elif isinstance(action, StoreCursor):
            self.cursors |= dict(action.records)
            core.cursor_stored(action.device)
        elif isinstance(action, StoreReceipt):
            core.settlement.receipt_stored(action.position)
        elif isinstance(action, Copy):
            places = [CommandPosition(9000, len(self.copies) + n, -1) for n in range(len(action.positions))]
            self.copies += action.positions
            core.relocation.copied(action.relocation, places, self.now)
        elif isinstance(action, Push):
            core.confirmed(action.number, 0, self.now)
            if self.there:
                core.answered(action.position, b"", self.now, failed=False)
        elif isinstance(action, Pull):
            for one in action.positions:
                core.pulled("d", action.epoch, one, Command(f"c{one.entry}", "d", "t", b"x"), self.now)
        elif isinstance(action, FindCommands):
            ids = array("q")
            for number in range(self.trimmed, self.written):
                if action.after < position(number) <= action.until:
                    ids.extend((*position(number), 0))
            core.resume.found("d", action.epoch, ids, trimmed=False, first=None, now_us=self.now)
        elif isinstance(action, AnswerRequest):
            core.request_answered(action.request)

    def _store(self, action: StoreSegment) -> None:
        if action.payload:
            assert len(read_segment(action.payload).ids) <= 256
            self.segments[action.key] = action.payload
        else:
            self.segments.pop(action.key, None)
        self.core.segment_stored(action.parked)
        if action.relocation:
            self.core.relocation.stored(action.relocation)

    def stored(self) -> dict[int, bool]:
        """Return what the next owner reads, and whether it knows of a copy."""
        owner = self.owner("next")
        return {one.position.entry: one.copy is not None for _, all_of in owner.devices.all_parked() for one in all_of}


def test_h30_relocated_commands_survive_when_they_are_stored_again_with_the_next_relocation() -> None:
    """The cursors topic was deleted and re-created, and the parked commands of the device go into new segments."""
    stand = Stand()
    stand.leave()
    stand.commands(10)
    stand.move()
    stand.commands(5)
    stand.segments.clear()
    stand.core.segments.rewrite_all(stand.now)
    stand.run()
    assert stand.stored() == {number: number < 10 for number in range(15)}
    stand.commands(1)
    stand.move()
    assert stand.copies == [position(number) for number in range(16)]
    assert stand.stored() == dict.fromkeys(range(16), True)


def test_h30_relocated_commands_go_into_segments_of_256_at_most() -> None:
    stand = Stand()
    stand.leave()
    stand.commands(200)
    stand.move()
    stand.commands(400)
    stand.segments.clear()
    stand.core.segments.rewrite_all(stand.now)
    stand.run()
    stand.core = stand.owner("2")  # of what it did not store itself it knows where it begins and ends
    stand.core.link_up()
    stand.commands(0)
    for _ in range(3):
        stand.move()
    assert stand.stored() == dict.fromkeys(range(600), True)
    assert len(stand.segments) <= 5


def test_h27_h30_a_requested_command_that_exists_only_as_a_copy_survives_the_relocation_of_the_rest() -> None:
    stand = Stand()
    stand.commands(10)
    assert not stand.segments
    stand.ask(2)
    stand.move()
    assert stand.stored() == dict.fromkeys(range(3, 10), True)
    stand.trimmed = 7  # the hold has moved on, and Pulsar has the others as copies alone
    stand.ask(2)
    assert stand.stored() == {number: number < 7 for number in range(3, 10)}
    stand.move()
    assert stand.stored() == dict.fromkeys(range(3, 10), True)
    cursor = stand.owner("3").devices.cursor_of("d")
    assert cursor is not None
    assert position(2) < cursor.resend_from < position(3)


def test_h30_what_former_owners_stored_in_segments_that_overlap_stays_when_some_of_it_is_moved() -> None:
    stored = {
        "whole": [ParkedId(position(n), copy=position(1000 + n) if n < 4 or n > 7 else None) for n in range(10)],
        "apart": [ParkedId(position(n)) for n in (5, 6)],
    }
    parked = Parked.loaded(stored, CommandPosition(0, 0, -1))
    segments = {key: [*ids] for key, ids in stored.items()}
    wanted = parked.to_relocate()
    assert wanted == [position(n) for n in range(4, 8)]
    moved = parked.relocate(wanted, [position(1000 + n) for n in range(4, 8)], lambda: "new", 1)
    assert moved == (["new"], ["apart"])
    for key, payload in parked.stored():  # written again as it stands, after a day
        segments[key] = read_segment(payload).ids
    del segments["apart"]
    assert list(Parked.loaded(segments, CommandPosition(0, 0, -1))) == [
        ParkedId(position(n), copy=position(1000 + n)) for n in range(10)
    ]


def test_h27_h30_no_segment_names_a_copy_of_a_settled_command_that_is_sent_again() -> None:
    """An owner died during a relocation; each of the segments that remain side by side is stored again."""
    stored = {
        "old": [ParkedId(position(1))],
        "new": [ParkedId(position(n), resend=n == 0, copy=position(1000 + n)) for n in range(300)][:256],
        "later": [ParkedId(position(n)) for n in range(256, 300)],
    }
    parked = Parked.loaded(stored, CommandPosition(0, 0, -1))
    assert parked.finish(position(0)) == []
    numbers = iter(range(9))
    made, replaced = parked.renew(lambda: f"renewed-{next(numbers)}")
    assert (made, replaced) == (["renewed-0"], ["old", "new"])
    left = {key: read_segment(payload).ids for key, payload in parked.stored()}
    assert sorted(left) == ["later", "renewed-0"]
    assert [one.position.entry for one in left["renewed-0"]] == list(range(1, 256))
    assert parked.renew(lambda: f"renewed-{next(numbers)}") == ([], [])

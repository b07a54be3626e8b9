"""The waiting commands of each device, from the records that push stores: no unsettled command is missing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.contract.presence import PresenceRecord
from bridge.contract.segments import ParkedId, segment_key
from bridge.inspect.devices.view import PartitionView
from bridge.push.cursor import Cursor
from bridge.push.segments import Parked
from tests.simulation.push_world import SECOND, PushWorld, cursors_of
from tests.support.push_limits import Limits

LIMITS = Limits(retry_min_us=SECOND, retry_max_us=4 * SECOND, probe_min_us=2 * SECOND, probe_max_us=8 * SECOND)
EVENTS = (
    "write_command", "write_command", "receive", "receive", "receive", "arrive", "puback", "store", "store",
    "answer", "leave", "come_back", "pull", "read_again", "lose_link", "connect", "pass_time", "crash",
)  # fmt: skip


def at(entry: int) -> CommandPosition:
    return CommandPosition(1, entry, -1)


def view_of(world: PushWorld) -> PartitionView:
    view = PartitionView(0)
    for device, payload in world.cursors.items():
        view.take_record(device, payload)
    for key, payload in world.segments.items():
        view.take_record(key, payload)
    for position, command in world.log:
        if command is not None and position not in world.acked:
            view.take_unacknowledged(position, command.device)
    return view


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=120),
    st.booleans(),
    st.booleans(),
)
def test_an_unsettled_command_waits_and_a_waiting_command_is_unsettled(
    played: list[tuple[str, int]], answers: bool, ends: bool
) -> None:
    world = PushWorld(replace(LIMITS, answers=answers))
    world.connect(0)
    for event, choice in played:
        getattr(world, event)(choice)
    if ends:
        world.finish()
    view = view_of(world)
    waiting = {d: [one.position for one in view.waiting(d)] for d in ("d0", "d1", "d2")}
    for device, positions in waiting.items():
        passed = view.cursor(device)
        assert positions == sorted(set(positions))
        for one in view.waiting(device):
            assert one.parked is not None or (one.position > passed and one.position not in world.acked)
        assert view.device(device).pending == len(positions)
        oldest = view.device(device).oldest
        assert (None if oldest is None else oldest.position) == min(positions, default=None)
        assert not (ends and positions)
    cursors = cursors_of(world.cursors)
    for position, command in world.log:
        if command is None or command.command_id in {**world.receipts, **dict.fromkeys(world.dead_ids)}:
            continue
        cursor = cursors.get(command.device)
        known = cursor is not None and cursor.knows(command.command_id)  # its receipt is on the way
        assert known or position in waiting[command.device] or position <= view.cursor(command.device)


def test_a_device_is_shown_with_everything_known_about_it() -> None:
    view = PartitionView(3)
    view.take_record(OWNER_KEY, OwnerRecord("host/17/x", 1).encode())
    cursor = Cursor(8)
    cursor.settle(at(4), "c-4", delivered=True, at_us=9 * SECOND)
    cursor.settle(at(5), "c-5", delivered=False, at_us=11 * SECOND)
    view.take_record("d", cursor.encode())
    parked = Parked()
    key = parked.append(ParkedId(at(5)), segment_key("d", "o", 1), 0)
    parked.append(ParkedId(at(7), 0, True), key, 0)
    view.take_record(key, parked.payload(key) or b"")
    view.take_presence("d", PresenceRecord(8 * SECOND).encode())
    assert not view.take_unacknowledged(at(5), "d")
    assert not view.take_unacknowledged(at(7), "d")
    assert view.take_unacknowledged(at(9), "d")
    assert view.take_unacknowledged(at(10), "e")
    found = view.device("d")
    assert (found.partition, found.cursor, found.delivered_at_ms, found.seen_us) == (
        3,
        at(5),
        9000,
        8 * SECOND,
    )
    assert found.oldest is not None
    assert (found.parked, found.pending, found.oldest.position) == (1, 2, at(7))
    assert [(one.position, one.parked is not None) for one in view.waiting("d")] == [
        (at(7), True), (at(9), False),
    ]  # fmt: skip
    assert [(one.device, one.pending) for one in view.devices()] == [("d", 2), ("e", 1)]
    assert view.owner is not None
    assert view.device("unknown").pending == 0
    assert found.silent(SECOND, 9 * SECOND)
    assert not found.silent(0, 9 * SECOND)


def test_h26_what_a_cursor_says_goes_again_waits_whether_or_not_its_segment_is_stored() -> None:
    view, cursor = PartitionView(0), Cursor(8, at(9))
    again = [ParkedId(at(n), 0, True, True) for n in (6, 8)]
    cursor.resend_parked(again)
    view.take_record("d", cursor.encode())
    assert [one.parked for one in view.waiting("d")] == again
    oldest = view.device("d").oldest
    assert oldest is not None
    assert (view.device("d").parked, oldest.position) == (2, at(6))
    parked = Parked()
    key = ""
    for one in again:
        key = parked.append(one, segment_key("d", "o", 1), 0)
    view = PartitionView(0)
    view.take_record("d", cursor.encode())
    view.take_record(key, parked.payload(key) or b"")
    assert [one.parked for one in view.waiting("d")] == again


def test_records_that_cannot_be_read_are_counted_and_the_others_go_on() -> None:
    view = PartitionView(0)
    view.take_record("d", b"{}")
    view.take_presence("d", b"no record")
    view.take_record(segment_key("e", "o", 1), b"[]")
    view.take_record("e", Cursor(8, at(3)).encode())
    # What d has had is not known: push sends it all that is not acknowledged, marked as repetitions.
    assert {one.device: one.cursor for one in view.devices()} == {"d": BEFORE_ALL, "e": at(3)}
    assert view.bad == 3

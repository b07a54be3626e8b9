from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.commands import Command, CommandPosition
from bridge.push.actions import Ack, Action, DeadLetter, Push, StoreCursor, StoreReceipt
from bridge.push.cursor import Cursor
from bridge.push.delivery import NO_SUBSCRIBERS
from bridge.push.partition import Partition
from tests.simulation.push_world import SECOND, PushWorld, cursors_of
from tests.support.push_limits import Limits

NOW = 1_000 * SECOND
LIMITS = Limits(retry_min_us=SECOND, retry_max_us=4 * SECOND, remembered_ids=16)

EVENTS = (
    "write_command", "write_command", "receive", "receive", "receive", "arrive", "arrive", "puback", "puback",
    "store", "store", "store", "read_again", "lose_link", "connect", "connect", "pass_time", "crash",
)  # fmt: skip


def steps(*events: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(events), st.integers(0, 1000)), max_size=150)


def play(world: PushWorld, played: list[tuple[str, int]]) -> None:
    world.connect(0)
    for event, choice in played:
        getattr(world, event)(choice)
    world.finish()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps(*EVENTS, "write_bad"))
def test_no_interleaving_loses_reorders_or_repeats_unmarked(played: list[tuple[str, int]]) -> None:
    play(PushWorld(LIMITS), played)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps(*EVENTS), st.integers(1, 3), st.integers(2, 6))
def test_no_interleaving_breaks_small_windows_and_caps(
    played: list[tuple[str, int]], window: int, pending: int
) -> None:
    limits = replace(LIMITS, window=window, pending=pending, device_pending=2)
    play(PushWorld(limits), played)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([LIMITS, replace(LIMITS, window=2, pending=4, device_pending=2)]))
def test_no_long_walk_loses_reorders_or_repeats_unmarked(seed: int, limits: Limits) -> None:
    walk = random.Random(seed)
    events = [event for event in (*EVENTS, "write_bad") for _ in range(1 if event == "crash" else 4)]
    play(PushWorld(limits), [(walk.choice(events), walk.randrange(1000)) for _ in range(300)])


def test_h30_a_command_that_expires_after_its_device_was_spilled_leaves_the_parked_ones() -> None:
    """Else the one behind it is read twice, and its device gets nothing more."""
    walk = random.Random(39779)
    events = [event for event in (*EVENTS, "write_bad") for _ in range(1 if event == "crash" else 4)]
    limits = replace(LIMITS, window=2, pending=4, device_pending=2)
    play(PushWorld(limits), [(walk.choice(events), walk.randrange(1000)) for _ in range(300)])


# --- single steps ---


def command(number: int, device: str = "d", **more: object) -> Command:
    return replace(Command(f"{device}-{number}", device, f"devices/{device}/commands", b"x"), **more)  # type: ignore[arg-type]


def position(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def a_core(limits: Limits = LIMITS, **cursors: Cursor) -> Partition:
    core = Partition(3, limits.nested(), cursors, None)
    core.link_up()
    return core


def only(actions: list[Action]) -> Action:
    assert len(actions) == 1, actions
    return actions[0]


def test_h25_each_step_waits_for_the_receipt_of_the_one_before() -> None:
    core = a_core()
    core.arrived(position(1), command(1), NOW)
    push = only(core.take(NOW))
    assert isinstance(push, Push)
    assert core.take(NOW) == []

    core.confirmed(push.number, 0, NOW + 5)
    cursor = only(core.take(NOW))
    assert isinstance(cursor, StoreCursor)
    assert cursors_of(dict(cursor.records))["d"].position == position(1)
    assert core.take(NOW) == []

    core.cursor_stored("d")
    row = only(core.take(NOW))
    assert isinstance(row, StoreReceipt)
    assert (row.receipt.state, row.receipt.position, row.receipt.attempts) == ("delivered", "0.3.7.1.-1", 1)
    assert (row.receipt.pushed_at_us, row.receipt.confirmed_at_us) == (NOW, NOW + 5)
    assert core.take(NOW) == []

    core.settlement.receipt_stored(position(1))
    assert only(core.take(NOW)) == Ack(position(1))
    assert core.settled
    assert core.clean


def test_the_next_command_of_a_device_waits_for_its_stored_cursor_and_others_do_not() -> None:
    core = a_core()
    core.arrived(position(1), command(1, "a"), NOW)
    core.arrived(position(2), command(2, "a"), NOW)
    core.arrived(position(3), command(3, "b"), NOW)
    first, second = core.take(NOW)
    assert isinstance(first, Push)
    assert isinstance(second, Push)
    assert (first.command.command_id, second.command.command_id) == ("a-1", "b-3")
    core.confirmed(first.number, 0, NOW)
    assert isinstance(only(core.take(NOW)), StoreCursor)
    core.cursor_stored("a")
    actions = core.take(NOW)
    assert [type(a) for a in actions] == [StoreReceipt, Push]


@pytest.mark.parametrize("reason", [0x80, 0x87, 0x97])
def test_a_refused_command_is_retried_later_and_delays_no_other_device(reason: int) -> None:
    core = a_core()
    core.arrived(position(1), command(1, "a"), NOW)
    push = only(core.take(NOW))
    assert isinstance(push, Push)
    core.confirmed(push.number, reason, NOW)
    core.arrived(position(2), command(2, "a"), NOW)
    core.arrived(position(3), command(3, "b"), NOW)
    other = only(core.take(NOW))
    assert isinstance(other, Push)
    assert other.command.device == "b"
    due = core.next_time_us()
    assert due == NOW + SECOND
    core.tick(due)
    again = only(core.take(due))
    assert isinstance(again, Push)
    assert (again.command.command_id, again.repeat) == ("a-1", True)
    core.confirmed(again.number, reason, due)
    assert core.next_time_us() == due + 2 * SECOND


def test_a_retained_command_without_subscribers_is_delivered() -> None:
    core = a_core()
    core.arrived(position(1), command(1, retain=True), NOW)
    push = only(core.take(NOW))
    assert isinstance(push, Push)
    core.confirmed(push.number, NO_SUBSCRIBERS, NOW)
    assert isinstance(only(core.take(NOW)), StoreCursor)


def test_h21_a_repeated_command_id_gives_no_second_push() -> None:
    cursor = Cursor(256)
    cursor.settle(position(1), "d-1", delivered=True)
    core = a_core(d=cursor)
    core.arrived(position(5), command(1), NOW)  # the replayed batch stands later in the log
    row = only(core.take(NOW))
    assert isinstance(row, StoreReceipt)
    assert row.receipt.state == "duplicate"
    core.arrived(position(6), command(2), NOW)
    core.arrived(position(7), command(2), NOW)  # repeats one that is still on its way
    kinds = [type(a) for a in core.take(NOW)]
    assert sorted(k.__name__ for k in kinds) == ["Push", "StoreReceipt"]


def test_an_expired_command_gets_a_receipt_and_no_push() -> None:
    core = a_core()
    core.arrived(position(1), command(1, expires_at_ms=NOW // 1000), NOW)
    row = only(core.take(NOW))
    assert isinstance(row, StoreReceipt)
    assert row.receipt.state == "expired"


def test_a_message_that_is_no_command_is_acknowledged_after_its_dead_letter() -> None:
    core = a_core()
    core.arrived_invalid(position(1), "no topic", Command("x", "d", "", b""), 0)
    core.arrived_invalid(position(2), "no version", Command("", "", "", b""), 0)
    assert [type(a) for a in core.take(NOW)] == [DeadLetter, DeadLetter]
    core.settlement.dead_letter_stored(position(1))
    row = only(core.take(NOW))
    assert isinstance(row, StoreReceipt)
    assert row.receipt.state == "rejected"
    core.settlement.dead_letter_stored(position(2))
    assert only(core.take(NOW)) == Ack(position(2))


def test_what_a_former_owner_gave_up_does_not_become_an_overflow_when_its_ack_was_lost() -> None:
    known = Cursor(16)
    known.settle(position(1), "d-1", delivered=False, at_us=0)
    core = Partition(0, LIMITS.nested(), {"d": known}, position(1))
    core.arrived(position(1), command(1), NOW)
    row = only(core.take(NOW))
    assert isinstance(row, StoreReceipt)
    assert row.receipt.state == "duplicate", "the receipt that says rejected or overflowed came before the cursor"
    assert row.receipt.reason.startswith("recovered: given up before")
    core.settlement.receipt_stored(position(1))
    assert only(core.take(NOW)) == Ack(position(1))


@pytest.mark.parametrize("cleanly", [False, True])
def test_h25_a_command_before_the_cursor_gets_its_receipt_unless_the_former_owner_left_cleanly(cleanly: bool) -> None:
    """Pulsar acknowledges batches as a whole: what is handed over in the middle of one comes again."""
    known = Cursor(16)
    known.settle(position(1), "d-1", delivered=True, at_us=0)
    core = Partition(0, LIMITS.nested(), {"d": known}, None if cleanly else position(2))
    core.arrived(position(1), command(1), NOW)
    row = only(core.take(NOW))
    if not cleanly:
        assert isinstance(row, StoreReceipt)
        assert row.receipt.state == "delivered"
        core.settlement.receipt_stored(position(1))
        row = only(core.take(NOW))
    assert row == Ack(position(1))


def test_a_lost_link_sends_again_in_order_and_marks_it() -> None:
    core = a_core(LIMITS)
    for number in (1, 2, 3):
        core.arrived(position(number), command(number, f"d{number}"), NOW)
    assert len(core.take(NOW)) == 3
    core.link_down()
    assert core.take(NOW) == []
    assert not core.clean
    core.link_up()
    again = core.take(NOW)
    assert [(a.command.command_id, a.repeat) for a in again if isinstance(a, Push)] == [
        ("d1-1", True),
        ("d2-2", True),
        ("d3-3", True),
    ]


def test_after_a_crash_only_what_may_have_been_pushed_is_marked() -> None:
    core = Partition(0, LIMITS.nested(), {}, position(2))
    core.link_up()
    for number in (1, 2):
        core.arrived(position(number), command(number), NOW)
    core.arrived(position(3), command(3, "new"), NOW)
    pushes = [a for a in core.take(NOW) if isinstance(a, Push)]
    assert [(p.command.command_id, p.repeat) for p in pushes] == [("d-1", True), ("new-3", False)]
    core.confirmed(pushes[0].number, 0, NOW)
    core.take(NOW)
    core.cursor_stored("d")
    second = [a for a in core.take(NOW) if isinstance(a, Push)]
    assert [(p.command.command_id, p.repeat) for p in second] == [("d-2", False)]


def test_draining_pushes_nothing_new_and_ends_what_is_under_way() -> None:
    core = a_core()
    core.arrived(position(1), command(1), NOW)
    push = only(core.take(NOW))
    assert isinstance(push, Push)
    core.drain()
    core.arrived(position(2), command(2, "other"), NOW)
    assert core.take(NOW) == []
    core.confirmed(push.number, 0, NOW)
    assert isinstance(only(core.take(NOW)), StoreCursor)
    core.cursor_stored("d")
    assert isinstance(only(core.take(NOW)), StoreReceipt)
    core.settlement.receipt_stored(position(1))
    core.take(NOW)
    assert core.settled
    assert core.clean  # the other was never pushed

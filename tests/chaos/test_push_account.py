"""The account of the push chaos finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.chaos.evidence import Kill
from tests.chaos.push_account import AFTER_S, TimedReceipt, Verdict, verdict_of
from tests.support.device_fleet import DeviceEvent

Arrival = tuple[float, int, bool, int]  # seconds, command, repeat, connection
_STEADY = [(1.0, 0, False, 1), (2.0, 1, False, 1)]


def account(
    *arrivals: Arrival,
    kills: tuple[Kill, ...] = (),
    receipts: dict[str, list[TimedReceipt]] | None = None,
    persistent: bool = False,
    came: tuple[tuple[float, int], ...] = (),
) -> Verdict:
    events = [
        DeviceEvent(int(at * 1e6), "R", 7, connection, str(n), "0.0.1.1.1", repeat, persistent=persistent)
        for at, n, repeat, connection in arrivals
    ]
    events += [DeviceEvent(int(at * 1e6), "C", 7, connection, persistent=persistent) for at, connection in came]
    receipts = {f"d7-{n}": [TimedReceipt("answered", f"d7 did {n}".encode(), n + 1.5)] for n in (0, 1)} | (
        receipts or {}
    )
    return verdict_of({7: [0.5, 0.6]}, events, receipts, kills, name="d%d")


def test_what_came_in_order_and_was_answered_is_whole() -> None:
    found = account(*_STEADY)
    assert not found.broken
    assert (found.commands, found.received) == (2, 2)


def test_a_command_that_did_not_arrive_is_reported_missing_with_the_kills_near() -> None:
    found = account(_STEADY[0], kills=(Kill("pulsar", 0.7, 0.9),))
    assert found.missing == [(7, 1)]
    assert "pulsar killed +0.1 s" in found.text()


def test_first_arrivals_out_of_order_are_reported() -> None:
    assert len(account((1.0, 1, False, 1), (2.0, 0, False, 1)).disordered) == 1


def test_a_repetition_needs_a_mark_and_a_cause() -> None:
    again = (3.0, 1, True, 1)
    assert len(account(*_STEADY, again).unexplained) == 1
    assert not account(*_STEADY, again, kills=(Kill("worker", 2.5, 4.0),)).broken
    assert len(account(*_STEADY, (9.0 + AFTER_S, 1, True, 1), kills=(Kill("mqtt", 0.1, 0.2),)).unexplained) == 0
    assert len(account(*_STEADY, again, kills=(Kill("mqtt", -99.0, -90.0),)).unexplained) == 1
    assert not account(*_STEADY, (3.0, 1, True, 2)).broken  # the device was away in between
    assert len(account(*_STEADY, (3.0, 1, False, 2)).unmarked) == 1
    assert not account(*_STEADY, (3.0, 1, False, 2), persistent=True).broken  # by the broker
    both = (*_STEADY, (3.0, 1, True, 2), (3.1, 1, False, 2))  # and again what it had answered before
    assert not account(*both, persistent=True).broken
    assert len(account(*both).unmarked) == 1


def test_marked_copies_that_come_together_with_a_persistent_session_were_kept_by_the_broker() -> None:
    both = (_STEADY[0], (5.0, 1, False, 2), (5.1, 1, True, 2))
    assert not account(*both, persistent=True, came=((0.1, 1), (4.9, 2))).broken
    assert len(account(*both, came=((0.1, 1), (4.9, 2))).unexplained) == 1
    swapped = (_STEADY[0], (5.0, 1, True, 2), (5.1, 1, False, 2))
    assert not account(*swapped, persistent=True, came=((0.1, 1), (4.9, 2))).broken
    assert len(account(*swapped, came=((0.1, 1), (4.9, 2))).unmarked) == 1
    thrice = (*swapped, (5.2, 1, False, 2))
    assert len(account(*thrice, persistent=True, came=((0.1, 1), (4.9, 2))).unmarked) == 1
    late = (_STEADY[0], (50.0, 1, False, 2), (50.1, 1, True, 2))
    assert len(account(*late, persistent=True, came=((0.1, 1), (4.9, 2))).unexplained) == 1


@pytest.mark.parametrize(
    "receipts",
    [
        [],
        [TimedReceipt("duplicate", b"", 2.0)],
        [TimedReceipt("overflowed", b"", 2.0)],
        [TimedReceipt("answered", b"d7 did 1", 2.0), TimedReceipt("expired", b"", 3.0)],
        [TimedReceipt("answered", b"d8 did 1", 2.0)],
        [TimedReceipt("answered", b"d7 did 1", 2.0), TimedReceipt("answered", b"d7 did 1", 3.0)],
    ],
)
def test_each_command_needs_one_final_receipt_with_its_own_devices_answer(receipts: list[TimedReceipt]) -> None:
    assert len(account(*_STEADY, receipts={"d7-1": receipts}).unsettled) == 1


def test_a_kill_explains_a_second_receipt_and_the_writer_a_duplicate() -> None:
    twice = [
        TimedReceipt("answered", b"d7 did 1", 2.0),
        TimedReceipt("answered", b"", 3.0),
        TimedReceipt("duplicate", b"", 4.0),
    ]
    assert not account(*_STEADY, receipts={"d7-1": twice}, kills=(Kill("worker", 2.5, 2.8),)).broken

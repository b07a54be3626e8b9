"""Each device that waits for its parked commands gets a turn; reconnected devices get theirs in the order of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.push.cursor import Cursor
from bridge.push.device import Device
from bridge.push.replay import ReplayScheduler


def a_device(name: str, *, probing: bool = False) -> Device:
    device = Device(name, Cursor(1), CommandPosition(-1, -1, -1))
    device.replay.probing = probing
    return device


def at(entry: int) -> CommandPosition:
    return CommandPosition(1, entry, -1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_a_round_goes_through_the_log_once(heads: list[int]) -> None:
    turns = ReplayScheduler()
    for number, head in enumerate(heads):
        turns.add(a_device(f"{number}"), at(head))
    came = [heads[int(turns.next().name)] for _ in heads]
    assert came == sorted(heads)
    assert not turns


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), min_size=60, max_size=60))
def test_no_device_waits_for_ever_although_others_return_at_once(steps: list[tuple[int, int]]) -> None:
    turns, waits = ReplayScheduler(), dict.fromkeys(("far", "silent"), 0)
    for name in ("far", "silent"):
        turns.add(a_device(name, probing=name == "silent"), at(30))
    for number in range(5):
        turns.add(a_device(f"{number}"), at(number))
    for turn, (back, ahead) in enumerate(steps):
        device = turns.next()
        if device.name in waits:
            waits[device.name] = turn + 1
        else:
            turns.add(device, at(back if turn % 2 else ahead))
    assert 0 < waits["silent"] <= 8
    assert 0 < waits["far"] <= 8, "one round, and a turn of the other"


def test_a_device_with_a_sign_of_life_waits_once_with_the_reconnected_devices() -> None:
    turns = ReplayScheduler()
    for number in range(20):
        turns.add(a_device(f"{number}", probing=True), at(number))
    found = a_device("15", probing=True)
    turns.add(found, at(15))
    found.replay.probing = False
    turns.add(found, at(15))
    turns.add(found, at(15))
    assert turns.tried == 19
    assert turns.next() is found
    assert [turns.next().name for _ in range(19)] == [f"{n}" for n in range(20) if n != 15]
    assert not turns
    with pytest.raises(IndexError):
        turns.next()


def test_who_comes_behind_what_was_read_waits_for_the_next_round() -> None:
    turns = ReplayScheduler()
    for name, head in (("a", 10), ("b", 20)):
        turns.add(a_device(name), at(head))
    assert turns.next().name == "a"
    turns.add(a_device("c"), at(5))
    turns.add(a_device("d"), at(15))
    assert [turns.next().name for _ in range(3)] == ["b", "c", "d"]
    with pytest.raises(IndexError):
        turns.next()

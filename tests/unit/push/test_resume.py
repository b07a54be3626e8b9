"""Devices that hold their own offset: any walk of the model, and the steps one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.simulation.push_world import SECOND, PushWorld
from tests.support.push_limits import Limits

BROKER = Limits(
    window=4,
    pending=40,
    device_pending=30,
    remembered_ids=16,
    park_after=2,
    probe_min_us=SECOND,
    probe_max_us=4 * SECOND,
    retry_min_us=SECOND // 10,
    retry_max_us=SECOND,
    replay_rate=100,
    resume_every_us=SECOND // 2,
    move_after_us=4 * SECOND,
)
DEVICE = replace(BROKER, answers=True, answer_timeout_us=SECOND)
EVENTS = (
    *("write_command", "receive", "arrive", "puback", "answer", "store", "pull", "find", "ask", "work"),
    *(
        "connect",
        "leave",
        "come_back",
        "pass_time",
        "read_again",
        "lose_link",
        "crash",
        "trim",
        "forget",
        "copy",
        "lose_cursors",
    ),
)
RARE = ("crash", "lose_cursors", "lose_link", "read_again", "trim", "forget", "leave")


def play(world: PushWorld, played: list[tuple[str, int]]) -> None:
    world.connect(0)
    for name, choice in played:
        getattr(world, name)(choice)
    world.finish()


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 999)), max_size=120),
    st.sampled_from([BROKER, DEVICE]),
    st.sampled_from([{}, {"resume_max": 3}]),
)
def test_h27_whatever_happens_a_device_gets_all_after_its_position_in_order(
    played: list[tuple[str, int]], limits: Limits, changes: dict[str, int]
) -> None:
    play(PushWorld(replace(limits, **changes)), played)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([BROKER, DEVICE]), st.sampled_from([{}, {"resume_max": 5}]))
@example(19600, BROKER, {})  # died between ids that stand apart and the cursor that leaves them out
@example(685158, DEVICE, {})  # what came again stood behind the last that came, and before all that is parked
@pytest.mark.long
def test_h27_no_long_walk_with_resumes_loses_or_reorders(seed: int, limits: Limits, changes: dict[str, int]) -> None:
    walk = random.Random(seed)
    events = [event for event in EVENTS for _ in range(1 if event in RARE else 4)]
    played = [(walk.choice(events), walk.randrange(1000)) for _ in range(500)]
    play(PushWorld(replace(limits, **changes)), played)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([BROKER, DEVICE]), st.sampled_from([{}, {"resume_max": 5}]))
@pytest.mark.long
def test_h24_a_rewrite_replaces_every_record_with_an_equal_one(
    seed: int, limits: Limits, changes: dict[str, int]
) -> None:
    walk = random.Random(seed)
    events = [event for event in EVENTS for _ in range(1 if event in RARE else 4)] + 3 * ["write_again"]
    played = [(walk.choice(events), walk.randrange(1000)) for _ in range(400)]
    play(PushWorld(replace(limits, **changes)), played)  # type: ignore[arg-type]

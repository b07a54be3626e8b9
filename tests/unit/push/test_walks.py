"""Random events in any order, under limits of all kinds: no command is lost, reordered or repeated without a mark.

``TEST_PUSH_EVENTS`` sets how many events the long walk sends, ``TEST_SEED`` its seed.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.cursors import ids_key
from tests.support.push_limits import Limits
from tests.support.push_world import SECOND, PushWorld

WALK_EVENTS: Final = int(os.environ.get("TEST_PUSH_EVENTS", "3000"))
STEPS: Final = 300
"""Events of one world."""

BROKER: Final = Limits(
    remembered_ids=16,
    retry_min_us=SECOND // 10,
    retry_max_us=2 * SECOND,
    park_after=2,
    replay_rate=100,
    probe_min_us=2 * SECOND,
    probe_max_us=10 * SECOND,
    resume_every_us=SECOND // 2,
    awake=1,
)
DEVICE: Final = replace(BROKER, answers=True, answer_timeout_us=SECOND)
CHANGES: Final[list[dict[str, int]]] = [
    {},
    {"awake": 100},
    {"window": 2, "pending": 4, "device_pending": 2, "parked_max": 3, "replay_window": 2},
    {"attempts": 2},
    {"attempts": 1, "parked_max": 2},
    {"move_after_us": 2 * SECOND},
    {"pending_bytes": 6},
    {"resume_max": 3, "move_after_us": SECOND},
    {"silence_us": 3 * SECOND, "replay_rate": 10},
    {"puback_timeout_us": SECOND},
    {"window": 1, "pending": 10},
]
EVENTS: Final = (
    "write_command", "write_command", "receive", "receive", "arrive", "arrive", "puback", "puback", "answer", "publish",
    "hear", "copy", "trim", "store", "store", "store", "pull", "pull", "find", "ask", "leave", "come_back", "work",
    "connect", "pass_time", "pass_time", "write_bad", "read_again", "lose_link", "close_link", "kill_broker", "forget",
    "write_again", "lose_cursors", "crash", "hand_over",
)  # fmt: skip
MOVES: Final = (*EVENTS, "move", "move", "will")
"""With several brokers, between which devices move."""
LINKS: Final = [("",), ("a", "b"), ("a", "b", "c")]
RARE: Final = frozenset(
    [
        "write_bad",
        "read_again",
        "lose_link",
        "close_link",
        "kill_broker",
        "forget",
        "write_again",
        "lose_cursors",
        "crash",
        "hand_over",
        "ask",
    ]
)


def play(
    limits: Limits,
    poison_every: int,
    played: list[tuple[str, int]],
    *,
    finish: bool = True,
    links: tuple[str, ...] = ("",),
) -> None:
    world = PushWorld(limits, poison_every=poison_every, links=links)
    world.connect_all()
    for event, choice in played:
        getattr(world, event)(choice)
    if finish:
        world.finish()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 1000)), max_size=150),
    st.sampled_from([BROKER, DEVICE]),
    st.sampled_from(CHANGES),
    st.sampled_from([0, 0, 5]),
    st.sampled_from(LINKS),
)
def test_no_walk_under_any_limits_loses_reorders_or_repeats_unmarked(
    played: list[tuple[str, int]],
    limits: Limits,
    changes: dict[str, int],
    poison_every: int,
    links: tuple[str, ...],
) -> None:
    play(replace(limits, **changes), poison_every, played, links=links)  # type: ignore[arg-type]


def test_ids_stored_before_a_first_cursor_that_a_crash_lost_are_removed() -> None:
    """A command expires, and nothing waits for its device's cursor. The rewrite of that cursor stores the ids alone."""
    world = PushWorld(BROKER)
    world.connect_all()
    for event, choice in (("write_command", 0), ("pass_time", 15), ("receive", 0), ("write_again", 0), ("crash", 1)):
        getattr(world, event)(choice)
    assert list(world.cursors) == [ids_key("d0")]
    world.write_again(0)
    world.store(0)
    assert world.cursors == {}
    world.finish()


OVERFLOW: Final = (
    ("leave", 504), ("write_command", 931), ("write_command", 0), ("write_command", 949), ("leave", 421),
    ("come_back", 520), ("work", 596), ("publish", 610), ("write_command", 701), ("receive", 252),
    ("leave", 881), ("pass_time", 123), ("write_command", 571), ("write_command", 438), ("pass_time", 772),
    ("work", 370), ("write_command", 247), ("pass_time", 334), ("write_command", 48), ("pass_time", 615),
    ("write_command", 111), ("come_back", 998), ("pass_time", 803), ("hear", 634), ("work", 100),
    ("work", 176), ("leave", 663), ("write_command", 202), ("pass_time", 902), ("work", 807),
    ("crash", 468), ("work", 213),
)  # fmt: skip
"""A command overflows. The next one is sent before that is stored, and the owner dies. The next owner gets both."""


def test_h23_h30_a_command_behind_one_that_overflowed_is_sent_once_the_cursor_is_between_them() -> None:
    play(replace(BROKER, attempts=1, parked_max=2), 0, [*OVERFLOW])


def test_h26_a_birth_message_that_a_former_broker_retains_does_not_prove_that_a_command_arrived() -> None:
    """The device has left broker c, which keeps its birth message and its session, and confirms a command. Then push restarts."""
    played = [("move", 875), ("write_command", 944), ("work", 1), ("hand_over", 0), ("work", 0)]
    play(BROKER, 0, played, links=("a", "b", "c"))


@pytest.mark.timeout(60 + WALK_EVENTS // 100)
def test_no_long_walk_under_any_limits_loses_reorders_or_repeats_unmarked() -> None:
    seed = int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))
    print(f"TEST_SEED={seed} TEST_PUSH_EVENTS={WALK_EVENTS}")
    walk = random.Random(seed)
    for begun in range(0, WALK_EVENTS, STEPS):
        rare = walk.choice((1, 4, 16))
        links = walk.choice(LINKS)
        weighted = [
            event for event in (EVENTS if links == ("",) else MOVES) for _ in range(1 if event in RARE else rare)
        ]
        played = [(walk.choice(weighted), walk.randrange(1000)) for _ in range(STEPS)]
        limits = replace(walk.choice((BROKER, DEVICE)), **walk.choice(CHANGES))  # type: ignore[arg-type]
        poison_every, finish = walk.choice((0, 0, 5)), walk.randrange(10) == 0
        try:
            play(limits, poison_every, played, finish=finish, links=links)
        except AssertionError:
            print(f"world {begun // STEPS}, {limits}, {links}")
            raise

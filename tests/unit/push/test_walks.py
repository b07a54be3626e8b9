"""Random events in any order, under limits of all kinds: no command is lost, reordered or repeated without a mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.cursors import ids_key
from tests.simulation.push_world import PushWorld
from tests.simulation.scenarios import BROKER, CHANGES, DEVICE, LINKS, MOVES
from tests.support.push_limits import Limits


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


@pytest.mark.parametrize("then", [[], [("hand_over", 0)]], ids=["", "restarted"])
def test_h26_a_device_that_is_replayed_when_it_moves_gets_what_its_former_broker_alone_confirmed(
    then: list[tuple[str, int]],
) -> None:
    """Broker a confirms a command, but the device is at b. No broker is connected, so the partition gets full."""
    confirmed = [("write_command", 22), ("receive", 0), ("arrive", 1), ("puback", 0), *[("store", 0)] * 3]
    full = [("lose_link", 0), ("lose_link", 1), *[("write_command", 22), ("receive", 0)] * 4]
    play(replace(BROKER, pending_bytes=6), 0, [*confirmed, *full, *then], links=("a", "b"))

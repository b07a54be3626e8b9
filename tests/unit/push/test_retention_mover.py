"""Where the hold of parked commands is put, whatever a former owner does to it meanwhile."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.contract.commands import CommandPosition
from bridge.push.owner import RetentionPosition


def position(number: int) -> CommandPosition:
    return CommandPosition(7, number, -1)


def test_h25_the_retention_subscription_moves_forward_once_and_back_when_commands_are_needed_again() -> None:
    hold = RetentionPosition(None)
    assert hold.forward(None) is None
    assert hold.forward(position(5)) == position(5)
    assert hold.forward(position(5)) is None
    assert hold.forward(position(4)) is None
    assert hold.back(None) is None
    assert hold.back(position(6)) is None
    assert hold.back(position(2)) == position(2)
    assert hold.forward(position(2)) is None
    assert hold.repeated() is None, "there was no owner before"
    assert hold.forward(position(6)) == position(6)


@settings(max_examples=500)
@example(1, [("back", 1), ("stale", 1), ("look", 0)])  # what others wait for is further back
@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.sampled_from(["look", "unclear", "back", "stale"]), st.integers(0, 40)), max_size=40),
)
def test_h25_after_a_check_the_retention_subscription_is_reset_although_a_former_owner_moved_it(
    horizon: int, events: list[tuple[str, int]]
) -> None:
    """``stale``: the former owner goes on and moves the hold, to nothing that it cannot know."""
    hold = RetentionPosition(position(horizon))
    stands, wanted, went_back = position(0), position(0), False
    for event, number in events:
        if event == "stale" and went_back:
            stands = max(stands, position(min(number, horizon)))
        elif event == "look":
            wanted = max(wanted, position(number))
            stands = hold.forward(wanted) or stands
            stands = min(stands, hold.repeated() or stands)
            assert stands <= wanted, "what is wanted is not held"
        elif event == "unclear":
            assert hold.forward(None) is None
        elif event == "back":
            # What is wanted from a later place on lets no former owner be ahead of us.
            went_back = went_back or position(number) < wanted
            wanted = min(wanted, position(number))
            stands = min(stands, hold.back(position(number)) or stands)

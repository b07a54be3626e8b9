"""A partition is blocked only if it stalls while Pulsar answers, whatever the length of an outage of Pulsar."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.flow import Stall

AFTER_S = 10.0


def played(events: list[tuple[str, bool]]) -> list[bool]:
    """Play one event a second: Pulsar was asked (good or bad answer), or something was stored. Blocked when?"""
    stall = Stall()
    results: list[bool] = []
    for now, (kind, good) in enumerate(events, 1):
        if kind == "stored":
            stall.progressed()
        stall.looked(now, waiting=True)
        if kind == "asked":
            stall.ask_due(now, 0.0)
            stall.answered(now, good=good, why="w")
        results.append(stall.blocked(now, AFTER_S))
    return results


def test_good_answers_for_the_whole_time_make_it_blocked() -> None:
    assert played([("asked", True)] * 15).index(True) == 10


def test_an_outage_does_not_count() -> None:
    events = [("asked", True)] * 9 + [("asked", False)] * 60 + [("asked", True)] * 9
    assert not any(played(events))
    assert played([*events, ("asked", True), ("asked", True)])[-1]


@given(st.lists(st.tuples(st.sampled_from(["asked", "stored"]), st.booleans()), max_size=60))
def test_never_blocked_unless_the_last_answers_were_good_and_nothing_was_stored(
    events: list[tuple[str, bool]],
) -> None:
    for at, blocked in enumerate(played(events)):
        if blocked:
            last = events[max(0, at - int(AFTER_S)) : at + 1]
            assert len(last) > AFTER_S
            assert all(kind == "asked" and good for kind, good in last)


def test_it_is_asked_once_at_a_time_and_not_without_need() -> None:
    stall = Stall()
    stall.looked(1.0, waiting=False)
    assert not stall.ask_due(100.0, 2.0)
    stall.looked(100.0, waiting=True)
    assert not stall.ask_due(101.0, 2.0)
    assert stall.ask_due(102.0, 2.0)
    assert not stall.ask_due(110.0, 2.0)  # the answer is not there yet
    stall.answered(110.0, good=True, why="over its quota")
    assert stall.why == "over its quota"
    assert not stall.ask_due(111.0, 2.0)
    stall.looked(112.0, waiting=False)
    assert (stall.since, stall.why) == (0.0, "")

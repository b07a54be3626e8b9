"""The phases of protocol handlers: whatever fails and whenever a stop comes, each is done once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocols.lifecycle import Lifecycle, Phase, Step

NAMES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)


def steps(life: Lifecycle, up_to: Phase = Phase.STOP) -> list[Step]:
    found = []
    while (step := life.next(up_to)) is not None:
        found.append(step)
        life.done()
    return found


def test_each_phase_is_over_for_all_before_the_next_begins() -> None:
    life = Lifecycle(("a", "b"))
    assert steps(life, Phase.INITIALIZE) == [(Phase.INITIALIZE, "a"), (Phase.INITIALIZE, "b")]
    assert not life.running
    assert steps(life) == [
        (Phase.ADVERTISE, "a"),
        (Phase.ADVERTISE, "b"),
        (Phase.START, "a"),
        (Phase.START, "b"),
    ]
    assert life.running
    life.stop()
    assert steps(life) == [(Phase.STOP, "b"), (Phase.STOP, "a")]
    assert life.over
    assert steps(life) == []


def test_a_step_must_be_answered_before_the_next() -> None:
    life = Lifecycle(("a",))
    life.next()
    with pytest.raises(RuntimeError, match="INITIALIZE of a is under way"):
        life.next()


@given(names=NAMES, failing=st.sets(st.integers(0, 25)), stop_at=st.none() | st.integers(0, 25))
def test_whatever_fails_each_phase_comes_once_in_order_and_all_that_was_begun_is_stopped(
    names: list[str], failing: set[int], stop_at: int | None
) -> None:
    life = Lifecycle(names)
    done: list[Step] = []
    ended = False  # a failure or a stop: from then on only STOP
    while True:
        if len(done) == stop_at:
            life.stop()
            ended = True
        step = life.next()
        if step is None:
            if ended:
                break
            assert life.running
            life.stop()
            ended = True
            continue
        assert not (ended and step.phase is not Phase.STOP)
        if len(done) in failing:
            life.failed()
            ended = True
        else:
            life.done()
        done.append(step)
    assert life.over
    assert len(done) == len(set(done))
    begun = [s.name for s in done if s.phase is Phase.INITIALIZE]
    assert [s.name for s in done if s.phase is Phase.STOP] == begun[::-1]
    for name in names:
        phases = [s.phase for s in done if s.name == name]
        assert phases == sorted(phases)
        ups = [p for p in phases if p is not Phase.STOP]
        assert ups == list(Phase)[: len(ups)]

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import holding
from streaming.holding import LONGEST_S, HoldFile, Pause, write_between

NOTES = st.tuples(st.sampled_from(["", "{", "[]", '{"id":1}', "a", "b", "c"]), st.floats(0.0, 2 * LONGEST_S))


def text_of(name: str, seconds: float) -> str:
    return json.dumps({"id": name, "seconds": seconds}) if name in "abc" and name else name


@given(st.lists(st.tuples(NOTES, st.floats(0.0, 100.0)), max_size=60))
def test_no_pause_outlasts_what_it_was_asked_for_and_what_cannot_be_read_asks_for_none(
    turns: list[tuple[tuple[str, float], float]],
) -> None:
    pause, now = Pause(), 0.0
    last, since, seconds = "", 0.0, 0.0
    for (name, wanted), elapsed in turns:
        now += elapsed
        answer = pause.wanted(text_of(name, wanted), now)
        if name not in ("a", "b", "c"):
            assert answer is None
            continue
        if name != last:
            last, since, seconds = name, now, min(wanted, LONGEST_S)
        assert answer is (now < since + seconds)


def test_one_that_was_left_behind_counts_from_when_it_is_first_seen_and_once() -> None:
    pause, left = Pause(), text_of("a", 60.0)
    assert pause.wanted(left, 1000.0) is True
    assert pause.wanted(left, 1059.0) is True
    assert pause.wanted(left, 1060.0) is False
    assert pause.wanted(left, 5000.0) is False
    assert pause.wanted(text_of("b", 60.0), 5000.0) is True


class _Hold:
    """Counts what is asked; the file itself is tested with the jobs."""

    def __init__(self) -> None:
        self.asked = 0
        self.lifted = False

    def ask(self, seconds: float) -> None:
        self.asked += 1

    def lift(self) -> None:
        self.lifted = True


@pytest.mark.parametrize(
    ("cost_s", "expected"), [(1.0, [0, 0, 0, 1]), (6.0, [0, 0, 1, 2]), (30.0, [0, 1, 2, 3])]
)
def test_a_change_that_takes_long_asks_for_a_pause_sooner(
    cost_s: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, hold, before = [0.0], _Hold(), list[int]()
    monkeypatch.setattr(holding.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(holding.time, "sleep", lambda s: None)

    def write() -> str:
        before.append(hold.asked)
        now[0] += cost_s
        if len(before) < 4:
            raise RuntimeError("[DELTA_CONCURRENT_APPEND] somebody was first")
        return "done"

    assert write_between(write, "silver", cast("HoldFile", hold)) == "done"
    assert before == expected
    assert hold.lifted

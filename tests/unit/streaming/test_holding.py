from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from streaming.holding import LONGEST_S, Pause

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

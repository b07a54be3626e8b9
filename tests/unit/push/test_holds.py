"""How far a hold may move: behind the compaction, whatever was compacted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.push.holds import Ages, Followed, Held, Kept, Place, compacted_up_to, last_before

keys = st.lists(st.integers(0, 5), max_size=40)


def place(number: int) -> Place:
    return 1 + number // 7, number % 7, -1


def held_from(log: list[int], start: int) -> Iterator[Held]:
    identity: Any = None
    return (Held(place(n), identity) for n in range(start, len(log)))


@given(keys, st.data())
def test_h24_a_hold_moves_to_what_compaction_took_away_last_and_never_beyond_the_horizon(
    log: list[int], data: st.DataObject
) -> None:
    horizon = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, len(log)))
    last = {key: n for n, key in enumerate(log[:horizon])}
    kept = [n for n in range(start, len(log)) if n >= horizon or last[log[n]] == n]
    found = compacted_up_to([place(n) for n in kept], held_from(log, start))
    gone = [n for n in range(start, len(log)) if n not in kept and kept and n < kept[-1]]
    assert (found.place if found else None) == (place(gone[-1]) if gone else None)
    assert found is None or found.place < place(horizon)


def test_no_more_is_taken_from_the_hold_than_the_view_reaches() -> None:
    """Beyond the present end the next message would have to be waited for."""
    taken: list[Place] = []

    def held() -> Iterator[Held]:
        for one in held_from([0] * 10, 0):
            taken.append(one.place)
            yield one

    assert compacted_up_to([place(3), place(4)], held()) is not None
    assert taken == [place(n) for n in range(5)]


@given(keys, st.data())
def test_h24_a_hold_never_passes_a_message_that_is_the_last_of_its_key(
    log: list[int], data: st.DataObject
) -> None:
    horizon = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, len(log)))
    last = {key: n for n, key in enumerate(log[:horizon])}
    kept = [n for n in range(len(log)) if n >= horizon or last[log[n]] == n]
    if not kept:
        return
    found = last_before(place(kept[0]), held_from(log, start))
    assert (found.place if found else None) == (place(kept[0] - 1) if kept[0] > start else None)


def test_an_owner_is_asked_for_what_has_stood_for_a_day_or_is_passed_and_not_again_for_six_hours() -> None:
    ages, hour = Ages(), 3600.0
    now = 1_000 * hour

    def due(partition: str, age: float, at: float, *, passed: bool = False) -> bool:
        oldest = Kept(place(1), int((at - age) * 1000))
        found = ages.due(partition, Followed(False, oldest, passed), at)
        if found:
            ages.asked(partition, at)
        return found

    assert not due("p0", 23 * hour, now)
    assert due("p0", 25 * hour, now)
    assert due("p1", 1.0, now, passed=True)
    assert not due("p0", 30 * hour, now + 5 * hour)
    assert not due("p1", 1.0, now + 5 * hour, passed=True)
    assert due("p0", 31 * hour, now + 6 * hour)
    assert due("p0", 31 * hour, now - 48 * hour), "the clock was set back"
    assert not ages.due("p2", Followed(), now)

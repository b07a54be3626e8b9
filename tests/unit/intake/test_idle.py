"""Which producers are closed for want of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.producer_opener import AT_ONCE, REST_S, to_close

NOW = 10_000.0
TIMES = st.lists(st.floats(0, NOW, allow_nan=False), max_size=250)


@given(TIMES, st.integers(0, 300), st.floats(0.1, 2 * NOW), st.integers(1, 300))
def test_h10_what_is_closed_was_idle_long_enough_and_no_more_than_needed(
    times: list[float], busy: int, idle_s: float, most: int
) -> None:
    idle = list(zip(times, range(len(times)), strict=True))
    closed = to_close(idle, len(times) + busy, NOW, idle_s, most)
    assert len(set(closed)) == len(closed) <= AT_ONCE
    ages = [NOW - times[n] for n in closed]
    assert all(age >= min(idle_s, REST_S) for age in ages)
    kept = [NOW - used for used, n in idle if n not in closed]
    assert not ages or not kept or max(kept) <= min(ages)  # the least recently used ones are evicted first
    early = sum(age < idle_s for age in ages)
    assert len(times) + busy - len(closed) + early >= min(most, len(times) + busy) or not early
    if len(closed) < AT_ONCE:
        assert all(age < idle_s for age in kept)
        over = len(times) + busy - len(closed) > most
        assert not over or all(age < min(idle_s, REST_S) for age in kept)


def test_h10_a_partition_in_use_keeps_its_producer_beyond_the_bound() -> None:
    used = [NOW - 1.0, NOW - 6.0, NOW - 7.0, NOW - 8.0]
    assert to_close([(t, t) for t in used], 4, NOW, 600.0, 2) == [NOW - 8.0, NOW - 7.0]
    assert to_close([(NOW - 1.0, "a")], 100, NOW, 600.0, 2) == []

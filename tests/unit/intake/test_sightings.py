from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.targets import Sighting, Sightings

EVERY = 30.0


def reported(times: Iterable[float], seen: Sighting | None = None) -> list[float]:
    """The times at which a device that publishes at these times is reported, as the intake asks."""
    sightings = Sightings(EVERY)
    seen = seen or sightings.of("d")
    found = []
    for now in times:
        if (now - seen.last_message > seen.quiet or now >= seen.due) and sightings.record_due(seen, now):
            found.append(now)
        seen.last_message = now
    return found


def test_a_device_that_keeps_publishing_is_reported_once_in_the_interval() -> None:
    assert reported(n / 10 for n in range(1000)) == [0, 30, 60, 90]


def test_h31_the_first_message_after_a_silence_is_reported_at_once() -> None:
    before, after = [n / 10 for n in range(50)], [12 + n / 10 for n in range(50)]
    assert reported([*before, *after]) == [0, 12]


def test_a_device_that_rarely_publishes_is_not_reported_at_each_message() -> None:
    times = [10.0 * n for n in range(60)]
    assert len(reported(times)) <= 30
    assert reported([*times, 650.0])[-1] == 650.0  # and its absence is


@given(st.lists(st.floats(0.01, 40.0), max_size=200))
def test_h10_whatever_its_habits_a_device_costs_at_most_five_records_in_the_interval(
    gaps: list[float],
) -> None:
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
    found = reported(times)
    for at, begin in enumerate(found):
        window = [t for t in found[at:] if t < begin + EVERY]
        assert len(window) <= 10  # of two intervals that meet
    for before, after in pairwise(times):
        if after - before >= EVERY:
            assert after in found


@given(st.lists(st.floats(0.01, 3.0), max_size=100))
def test_it_is_never_longer_than_an_interval_and_a_gap_untold(gaps: list[float]) -> None:
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
    found = reported(times)
    for at in times:
        assert any(at - EVERY <= one <= at for one in found)


def test_h10_devices_are_bounded_and_an_evicted_one_is_reported_again() -> None:
    sightings = Sightings(EVERY, most_bytes=900)
    first = sightings.of("a")
    assert sightings.record_due(first, 0.0)
    assert sightings.of("a") is first
    sightings.of("b"), sightings.of("c")
    assert len(sightings) == 2
    assert sightings.record_due(sightings.of("a"), 1.0)


def test_a_device_that_comes_back_from_another_link_is_reported_at_once_and_not_more_than_once_a_second() -> None:
    sightings = Sightings(EVERY)
    seen = sightings.of("d")
    assert reported([0.0, 5.0, 5.5], seen) == [0.0, 5.0]
    for at, due in ((5.8, False), (6.2, True), (6.4, False), (7.3, True)):
        sightings.seen_elsewhere("d")
        found = (at - seen.last_message > seen.quiet or at >= seen.due) and sightings.record_due(seen, at)
        seen.last_message = at
        assert found is due, at
    sightings.seen_elsewhere("unknown")

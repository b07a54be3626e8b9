from __future__ import annotations

from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from streaming.decoders.times import AUTO_BOUNDS

FIRST, LAST = (int(datetime(*day, tzinfo=timezone.utc).timestamp()) for day in ((1973, 3, 4), (5138, 11, 16)))
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@given(st.integers(FIRST, LAST - 1), st.sampled_from(sorted(PER_SECOND)))
def test_a_time_of_any_unit_is_taken_for_its_own_by_its_size(seconds: int, unit: str) -> None:
    number = seconds * PER_SECOND[unit]
    assert next((name for name, bound in AUTO_BOUNDS if number < bound), "ns") == unit

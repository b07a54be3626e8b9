"""A clock that is set back is noticed, however it was set before; one that goes forward is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.push.owner import WallClock


@given(st.lists(st.floats(-7200, 7200).map(lambda s: round(s, 1)), max_size=8))
def test_it_is_set_back_when_it_is_behind_what_it_was_at_most(steps: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ahead = [0.0]
        patch.setattr(time, "monotonic", lambda: 1000.0)
        patch.setattr(time, "time_ns", lambda: int((1e9 + 1000.0 + ahead[0]) * 1e9))
        clock, most = WallClock(), 0.0
        for step in steps:
            ahead[0] += step
            most = max(most, ahead[0])
            back = most - ahead[0]
            if abs(back - 1.0) > 0.01:
                assert clock.set_back_s() == pytest.approx(back if back > 1.0 else 0.0, abs=0.001)

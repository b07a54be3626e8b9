from __future__ import annotations

import random

from tests.soak.account import Arrivals
from tests.soak.sampling import growing


def test_numbers_that_lack_or_overtake_are_faults_and_repeats_are_counted() -> None:
    one = Arrivals()
    for number in (0, 1, 1, 0, 2):
        one.arrived("d", number, 0.0)
    assert (one.total, one.repeats, one.faults) == (3, 2, [])
    one.arrived("d", 4, 0.0)
    assert one.faults == ["d: 4 after 2"]
    assert one.lacking({"d": 6, "e": 2}) == 3


def test_what_grows_is_named_and_a_killed_process_does_not_hide_it() -> None:
    noise = random.Random(1)
    samples = [
        {"at": float(n), "memory push": 2e8 + n * 1e6, "memory ingest": 2e8 + noise.random() * 1e7, "lag tables": None}
        for n in range(100)
    ]
    samples = [{name: value for name, value in one.items() if value is not None} for one in samples]
    samples[60].pop("memory push")
    assert growing(samples) == ["memory push"]

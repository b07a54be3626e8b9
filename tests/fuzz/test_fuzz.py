"""Each fuzz target: its kept cases, then a few generated ones. ``make fuzz`` runs them for longer."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.engine import Run, Target, fuzz, replay
from tests.fuzz.targets import TARGETS

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),  # of a payload of more than 16 KiB
]


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_no_case_breaks_the_invariant(target: Target) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}: repeat with make fuzz ONLY={target.name} SEED={seed}")
    with target.opened() as check:
        found = [
            *replay(target, check),
            *fuzz(target, check, number=seed, examples=target.examples, run=Run()),
        ]
    assert not found, f"{target.invariant}\n" + "\n".join(one.text() for one in found)

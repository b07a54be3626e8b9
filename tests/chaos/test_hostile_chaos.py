"""Hostile devices beside honest ones, on Artemis and on Mosquitto: the honest ones notice nothing.

``make chaos ARGS=--hostile`` has 1,000 honest devices and ten minutes; here is what fits into a test run.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.hostile_world import hostile_world
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.mark.thorough
def test_hostile_devices_interrupt_nothing_and_honest_ones_lose_nothing(broker: LocalStack, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with hostile_world(broker, tmp_path, devices=50, rate=100, command_rate=30, seed=seed) as one:
        poll_for(lambda: one.hostile.rounds >= 3 or bool(one.interruptions()), 120, "three rounds of each attack")
        found = one.account(print)
        print(found.text())
        assert not found.broken, found.text()

"""Push workers, the MQTT broker and Pulsar killed with -9 while devices come and go, with an account of every command.

``make chaos ARGS=--push`` runs all points for all three, a thousand devices, and ten minutes at random; here is what fits
into a test run.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.push_world import push_world

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.mark.long
def test_push_killed_at_named_points_and_all_at_random_loses_mixes_and_repeats_nothing_unmarked(
    private_stack: LocalStack, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with push_world(private_stack, tmp_path, devices=100, rate=50, seed=seed, present_s=4, away_s=4) as (
        one,
        fleet,
    ):
        for point in ("after_answer", "after_pull", "after_takeover"):
            one.kill_at(point, "worker", (2,))
        one.kill_at("after_puback", "mqtt", (3,))
        one.kill_at("after_cursor", "pulsar", (3,))
        for victim in chance.sample(("worker", "frozen"), 2):
            one.kill(victim, chance, still_s=8)  # type: ignore[arg-type]
        found = one.account(fleet)
        print(f"seed {seed}: {dict(one.points)}, {dict(one.kills)}: {found.text()}")
        assert not found.broken

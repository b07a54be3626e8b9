"""Devices that change MQTT brokers at random while push and a broker die and freeze, with an account of every command."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.push_world import push_world
from tests.support.stack import new_stack

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]


def test_devices_that_change_brokers_while_push_and_brokers_die_miss_mix_and_repeat_nothing_unmarked(
    private_stack: LocalStack, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with (
        new_stack(pulsar_url=private_stack.pulsar_url, admin_url=private_stack.admin_url) as other,
        push_world(private_stack, tmp_path, devices=100, rate=50, seed=seed, present_s=10, away_s=1, other=other) as (
            one,
            fleet,
        ),
    ):
        one.roam(60, random.Random(seed), print)
        found = one.account(fleet)
        print(f"{dict(one.kills)}: {found.text()}")
        assert not found.broken

"""Devices that change MQTT brokers at random, with an account of every command.

``TEST_BROKERS_S`` sets for how many seconds each test runs, ``TEST_BROKERS_DEVICES`` the number of devices.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.evidence import Kill
from tests.chaos.push_world import PushWorld, push_world
from tests.support.device_processes import DeviceProcesses
from tests.support.stack import new_stack

_SECONDS: Final = float(os.environ.get("TEST_BROKERS_S", "600"))
_DEVICES: Final = int(os.environ.get("TEST_BROKERS_DEVICES", "1000"))

pytestmark = [pytest.mark.stack, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600 + 3 * int(_SECONDS))]


@pytest.fixture
def other(private_stack: LocalStack) -> Iterator[LocalStack]:
    """A second MQTT broker beside the stack's own."""
    with new_stack(pulsar_url=private_stack.pulsar_url, admin_url=private_stack.admin_url) as made:
        yield made


def rest(seconds: float) -> None:
    """Let the devices live: nothing is waited for."""
    threading.Event().wait(seconds)


def check(one: PushWorld, fleet: DeviceProcesses, seed: int) -> None:
    found = one.account(fleet)
    print(f"seed {seed}: {dict(one.kills)}: {found.text()}")
    assert not found.broken


def test_devices_that_change_brokers_at_random_miss_mix_and_repeat_nothing_unmarked(
    private_stack: LocalStack, other: LocalStack, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    lives = {"present_s": 10, "away_s": 1}
    with push_world(
        private_stack, tmp_path, devices=_DEVICES, rate=100, seed=seed, other=other, processes=2, **lives
    ) as (one, fleet):
        rest(_SECONDS)
        one.check()
        check(one, fleet, seed)


def test_they_miss_mix_and_repeat_nothing_unmarked_while_push_and_brokers_die_and_freeze(
    private_stack: LocalStack, other: LocalStack, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    lives = {"present_s": 10, "away_s": 1}
    left = _SECONDS
    with push_world(
        private_stack, tmp_path, devices=_DEVICES, rate=100, seed=seed, other=other, processes=2, **lives
    ) as (one, fleet):
        while left > 0:
            still = chance.uniform(2, 20)
            left -= still
            rest(still / 2)
            victim = chance.choice(("worker", "frozen", "broker", "frozen broker"))
            if victim in ("worker", "frozen"):
                one.kill(victim, chance, still_s=8)  # type: ignore[arg-type]
                continue
            one.kills[victim] += 1
            began = time.time()
            if victim == "broker":
                other.kill("mqtt")
                rest(still / 2)
                other.restart("mqtt")
            else:
                os.kill(other.pids["mqtt"], signal.SIGSTOP)
                rest(still / 2)
                os.kill(other.pids["mqtt"], signal.SIGCONT)
            one.times.append(Kill("mqtt", began, time.time()))
            one.check()
        check(one, fleet, seed)

"""Ingest, its MQTT broker and Pulsar killed with -9 at named points and at random, while a fleet publishes.

Artemis alone: Mosquitto loses its own queues when it is killed. ``make crashes`` has a cell for
each point and each of the three, ``make chaos`` ten minutes at random; here is what fits into a test run.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsebridge.local.stack import LocalStack
from tests.chaos.world import World, world
from tests.support.fleet import Fleet
from tests.support.kill_points import INGEST_KILL_POINTS
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]


def assert_whole(one: World, fleet: Fleet, say: str) -> None:
    found = one.account(fleet)
    print(f"{say}: {fleet.total} acknowledged, {one.kills} killed, {found.text()}")
    assert found.disordered == []
    assert found.unexplained == []


def test_a_worker_killed_three_times_at_each_point_loses_and_mixes_nothing(stack: LocalStack, tmp_path: Path) -> None:
    with world(stack, tmp_path) as one:
        one.start()  # before the fleet: a message without a subscriber is acknowledged and dropped
        one.end_worker()
        # Artemis gives each redelivery a new packet identifier and keeps those of former connections: on a slow machine
        # a higher rate uses up all 65,535 before the last kill, and then it hangs.
        with one.fleet(devices=20, rate=100) as fleet:
            for point in INGEST_KILL_POINTS:
                for passage in (1, 2, 1) if point == "ingest_in_reconnect" else (1, 3, 20):
                    one.kill_at(point, passage, "worker")
            one.start()
            done = fleet.total
            poll_for(lambda: fleet.total > done + 100, 60, "a flow")
            assert_whole(one, fleet, "named points")


@pytest.mark.timeout(400)
@pytest.mark.long
def test_servers_killed_at_named_points_and_all_at_random(private_stack: LocalStack, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    points = ("ingest_before_receipt", "ingest_after_receipt", "ingest_in_reconnect")
    with world(private_stack, tmp_path) as one:
        one.start()
        with one.fleet(devices=20, rate=400) as fleet:
            for victim, point in (("mqtt", points[1]), ("mqtt", points[2]), ("pulsar", points[0])):
                one.end_or_kill()
                one.kill_at(point, 2, victim)  # type: ignore[arg-type]
            one.at_random(15, random.Random(seed), print)
            assert_whole(one, fleet, f"seed {seed}")

"""Killed at any named point of a batch, and at random, a query reads each message once, in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import batch_engine
from tests.support.batch_engine import ENGINE_KILL_POINTS, rows_of
from tests.support.kill_points import SOURCE_KILL_POINTS
from tests.support.pulsar_topics import TestTopic
from tests.support.waiting import patient

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

MANY = "TEST_SOURCE_KILLS" in os.environ
RANDOM_KILLS = int(os.environ.get("TEST_SOURCE_KILLS", "6"))
BIG = bytes(6 * 1024 * 1024)  # two chunks


class World:
    """A topic, what was published to it, and a query's folder."""

    def __init__(self, topic: TestTopic, folder: Path) -> None:
        self.topic = topic
        self.folder = folder
        self.wanted: dict[str, list[tuple[str, int]]] = {topic.partition(n): [] for n in range(2)}
        self.options = topic.options(
            predefinedSubscription="q", startingOffsets="latest", maxEntriesPerTrigger="8", columns="value"
        )
        self.rounds = 0

    def publish(self) -> None:
        """Write messages of several kinds to both partitions; now and then a ledger ends."""
        self.rounds += 1
        for partition in range(2):
            for kind in ("unbatched", "batched", "chunked"):
                if kind == "chunked" and self.rounds % 4:
                    continue
                count = {"unbatched": 14, "batched": 5, "chunked": 1}[kind]
                payloads = [f"{self.rounds}-{kind}-{n}".encode().ljust(20, b".") for n in range(count)]
                payloads = [payload + BIG if kind == "chunked" else payload for payload in payloads]
                self.topic.publish(payloads, kind, partition)
                self.wanted[self.topic.partition(partition)] += [(p[:20].decode(), len(p)) for p in payloads]
        if self.rounds % 5 == 0:
            self.topic.roll_over()

    def start(self, **environment: str) -> subprocess.Popen[str]:
        given = json.dumps({"options": self.options, "folder": str(self.folder)})
        return subprocess.Popen(
            [sys.executable, "-m", batch_engine.__name__, given],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip

    def run(self, **environment: str) -> tuple[int, str]:
        with self.start(**environment) as process:
            _, output = process.communicate(timeout=patient(120))
        return process.returncode, output

    def check(self) -> None:
        """Run to the end; each message came once, in the order of its partition."""
        code, output = self.run()
        assert code == 0, output[-2000:]
        found: dict[str, list[tuple[str, int]]] = {name: [] for name in self.wanted}
        for partition, value, size in rows_of(self.folder):
            found[partition].append((value, size))
        assert found == self.wanted


@pytest.fixture
def world(topic: TestTopic, tmp_path: Path) -> World:
    topic.publish([b"before the query"] * 3)
    return World(topic, tmp_path)


def test_killed_at_each_named_point_nothing_is_lost_or_repeated(world: World) -> None:
    """Each point at its first, second or third passage in turn; ``TEST_SOURCE_KILLS=50`` kills at all three."""
    first = ("source_in_first_offset:1", "source_in_first_offset:2", "source_after_first_offset:1")
    for point in first:
        assert world.run(PULSEBRIDGE_KILL_AT=point)[0] == -signal.SIGKILL, point
    later = [*ENGINE_KILL_POINTS, *(name for name in SOURCE_KILL_POINTS if "first" not in name)]
    for turn in range(3 if MANY else 1):
        for number, point in enumerate(later):
            passage = 1 + (number + turn) % 3
            world.publish()
            code, output = world.run(PULSEBRIDGE_KILL_AT=f"{point}:{passage}")
            assert code == -signal.SIGKILL, (point, passage, output[-2000:])
    world.check()


@pytest.mark.long
def test_killed_at_random_nothing_is_lost_or_repeated(world: World) -> None:
    """``TEST_SOURCE_KILLS=50`` kills more often."""
    seed = int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))
    print(f"TEST_SEED={seed}")
    moments = random.Random(seed)
    assert world.run()[0] == 0, "the query begins"
    for _ in range(RANDOM_KILLS):
        world.publish()
        process = world.start()
        try:
            process.communicate(timeout=moments.uniform(0.3, 2.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
    world.check()

"""Spark's Python processes, and drivers, killed under a query into bronze, at named points and at random: each message once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import sources
from bridge.settings import Settings, StreamingSettings
from bridge.settings.pulsar import PulsarSettings
from sources.spark_features import spark_features
from streaming.tables import table_of
from tests.support import bronze_driver
from tests.support.kill_points import SOURCE_TASK_KILL_POINTS
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.chaos]

RANDOM_KILLS = int(os.environ.get("TEST_SOURCE_KILLS", "0"))
NAMED_KILLS = 3 if RANDOM_KILLS else 1
"""At each point: a restart of the query takes seconds."""
at_length = pytest.mark.skipif(not RANDOM_KILLS, reason="half a minute; TEST_SOURCE_KILLS=50 asks for it")


class World:
    """A topic, what was published to it, and a query into a bronze table."""

    def __init__(self, spark: SparkSession, topic: TestTopic, folder: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.settings = Settings(
            pulsar=topic.settings,
            streaming=StreamingSettings(
                root=str(folder),
                topics=(topic.name.rpartition("/")[2],),
                built_in=("bronze",),
                subscription="q",
                trigger={"max_rows": 20},
            ),
        )
        self.wanted: Counter[bytes] = Counter()
        self.rounds = 0

    def publish(self) -> None:
        self.rounds += 1
        for partition in range(2):
            for kind in ("unbatched", "batched"):
                payloads = [f"{self.rounds}-{partition}-{kind}-{n}".encode() for n in range(10)]
                self.topic.publish(payloads, kind, partition)
                self.wanted.update(payloads)

    def start(self) -> StreamingQuery:
        """Start the query; it ends by itself when all is read."""
        return bronze_driver.started(self.spark, self.settings)

    def run(self, meanwhile: Callable[[StreamingQuery], Any] | None = None) -> str | None:
        """Run the query to its end. Returns what it failed with, None where it did not."""
        query = self.start()
        try:
            if meanwhile is not None:
                meanwhile(query)
            poll_for(lambda: not query.isActive, 120, "the query to end")
        finally:
            query.stop()
        return None if query.exception() is None else str(query.exception())

    def check(self) -> None:
        failure = self.run()
        while failure is not None and _starved(failure):
            failure = self.run()
        assert failure is None
        if not spark_features().limits:  # Trigger.AvailableNow repeats an unfinished batch there, and ends
            assert self.run() is None
        rows = table_of("bronze", self.settings.streaming).read(self.spark).select("payload").collect()
        assert Counter(bytes(row.payload) for row in rows) == self.wanted

    def pythons(self, kind: str) -> list[psutil.Process]:
        """Return Spark's Python processes of a kind: ``pyspark.worker`` for tasks, or that of the planners."""
        gateway: Any = self.spark.sparkContext._gateway
        found = psutil.Process(gateway.proc.pid).children(recursive=True)
        return [process for process in found if kind in " ".join(_command(process))]


def _starved(failure: str) -> bool:
    """Whether Spark did not wait for a Python process of its own: ten seconds are little on a loaded machine."""
    return "to connect back" in failure or "CANNOT_OPEN_SOCKET" in failure


def _wait(ended: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    poll_for(lambda: time.monotonic() >= until or ended(), 30, "the moment", every=0.02)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def world(spark: SparkSession, namespaces: PulsarSettings, tmp_path: Path) -> Iterator[World]:
    with topic_of(namespaces, partitions=2) as topic:
        yield World(spark, topic, tmp_path)


@pytest.fixture
def worker_environment(spark: SparkSession) -> Iterator[dict[str, str]]:
    """What Spark gives to the Python processes of a source; it counts from the next registration on."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    yield environment
    environment.clear()
    environment.update(before)
    sources.register(spark)


@pytest.mark.parametrize(
    "point",
    [SOURCE_TASK_KILL_POINTS[0], *(pytest.param(p, marks=at_length) for p in SOURCE_TASK_KILL_POINTS[1:])],
)
def test_a_worker_killed_in_a_task_loses_and_repeats_nothing(
    world: World, worker_environment: dict[str, str], point: str
) -> None:
    worker_environment["PULSEBRIDGE_KILL_AT"] = f"{point}:2"
    sources.register(world.spark)
    killed = passed = 0
    while killed < NAMED_KILLS:
        world.publish()
        failure = world.run()
        if failure is None:  # each of two workers had one partition, or an older Spark repeated a batch and no more
            passed += 1
            assert passed < 10, "no worker came to the point"
        else:
            killed += not _starved(failure)
    del worker_environment["PULSEBRIDGE_KILL_AT"]
    sources.register(world.spark)
    world.check()


@at_length
def test_processes_killed_at_random_lose_and_repeat_nothing(world: World, tmp_path: Path) -> None:
    """``TEST_SOURCE_KILLS=50`` kills more often, and three times at each named point."""
    seed = int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))
    print(f"TEST_SEED={seed}")
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    failed = 0
    for number in range(RANDOM_KILLS):
        world.publish()
        kind = chance.choice(["pyspark.worker", "pyspark.worker", "python_streaming_source_runner", "driver"])
        moment = chance.uniform(0.0, 3.0 if kind == "driver" else 1.0)
        killed[kind] += 1

        def kill(query: StreamingQuery, kind: str = kind, moment: float = moment) -> None:
            poll_for(lambda: query.status["isDataAvailable"] or not query.isActive, 60, "a batch", every=0.01)
            _wait(lambda: not query.isActive, moment)
            for process in world.pythons(kind):
                process.send_signal(signal.SIGKILL)

        if kind == "driver":
            place = tmp_path / f"driver-{number}"
            with bronze_driver.running(world.settings, place) as driver:
                _wait(lambda driver=driver: driver.poll() is not None, moment)  # type: ignore[misc]
                failed += driver.poll() is None
        else:
            failed += world.run(kill) is not None
    print(f"{failed} queries failed of {dict(killed)}")
    world.check()

"""Any range of a topic, read twice, gives the same rows: those of the whole that lie in it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import Position
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from sources.options import parse
from sources.planning import PartitionView
from sources.reading import read_range
from sources.snapshot import Catalog
from sources.tasks import read_tasks
from tests.support.pulsar_topics import KINDS, TestTopic, topic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.stack

RANGES = 100
BY_SPARK = 2
COLUMNS = "value,__key,__messageId,__publishTime,__messageProperties,partition,ledger_id,entry_id,batch_index"
EACH = 15
BIG = bytes(5_300_000)  # two chunks
Rows = list[dict[str, Any]]


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    """Two partitions with every kind of entry in three ledgers; one message in chunks, in the second partition."""
    with topic_of(namespaces, partitions=2) as found:
        for partition in range(2):
            for round_ in range(3):
                for kind in sorted(KINDS.keys() - {"chunked"}):
                    payloads = [f"{round_}-{kind}-{n}".encode() for n in range(EACH)]
                    found.publish(payloads, kind, partition, partition_key=kind, properties={"r": str(round_)})
                if round_ == partition == 1:
                    found.publish([BIG], "chunked", partition)
                if round_ < 2:
                    found.roll_over(partition)
        yield found


def read(topic: TestTopic, views: dict[str, PartitionView], begin: Any, end: Any, parts: int = 1) -> Rows:
    options = parse(topic.options(columns=COLUMNS, minPartitions=str(parts)), streaming=False)
    tasks = read_tasks(options, views, begin, end)
    return [row for task in tasks for batch in read_range(task) for row in batch.to_pylist()]


def place(row: dict[str, Any]) -> Position:
    return Position(row["ledger_id"], row["entry_id"])


def seeded() -> random.Random:
    seed = int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))
    print(f"TEST_SEED={seed}")
    return random.Random(seed)


def random_range(chance: random.Random, view: PartitionView) -> tuple[Position, Position]:
    """Any two positions, between entries, at ends of ledgers and after the last one."""
    places = [Position(of.id, entry) for of in view.ledgers for entry in range(of.entries + 1)]
    first, second = sorted(chance.choices(range(len(places)), k=2))
    return places[first], places[second]


@pytest.mark.long
def test_any_hundred_ranges_read_twice_give_equal_rows(topic: TestTopic) -> None:
    chance = seeded()
    with PulsarAdmin(topic.settings) as admin:
        catalog = Catalog(admin, [topic.name])
        views = catalog.snapshot([topic.partition(n) for n in range(2)])
        catalog.close()
    whole = {name: read(topic, {name: view}, {name: view.start}, {name: view.end}) for name, view in views.items()}
    assert [len(rows) for rows in whole.values()] == [3 * 6 * EACH, 3 * 6 * EACH + 1]
    for number in range(RANGES):
        name = topic.partition(int(number % 10 == 0))  # megabytes take their time
        begin, end = random_range(chance, views[name])
        view, once, again = {name: views[name]}, {name: begin}, {name: end}
        wanted = [row for row in whole[name] if begin <= place(row) < end]
        assert read(topic, view, once, again) == wanted, (name, begin, end)
        assert read(topic, view, once, again, parts=chance.randint(1, 6)) == wanted, (name, begin, end)


@pytest.mark.spark
def test_ranges_read_twice_by_spark_give_equal_rows(spark: SparkSession, topic: TestTopic) -> None:
    chance = seeded()
    with PulsarAdmin(topic.settings) as admin:
        catalog = Catalog(admin, [topic.name])
        views = catalog.snapshot([topic.partition(n) for n in range(2)])
        catalog.close()
    for _ in range(BY_SPARK):
        ranges = {name: random_range(chance, view) for name, view in views.items()}
        frame = spark.read.format("pulsebridge").options(
            **topic.options(columns=COLUMNS, minPartitions="4"),
            startingOffsets=json.dumps({name: list(begin) for name, (begin, _) in ranges.items()}),
            endingOffsets=json.dumps({name: list(end) for name, (_, end) in ranges.items()}),
        )
        first = [row.asDict() for row in frame.load().collect()]
        assert first == [row.asDict() for row in frame.load().collect()]
        ours = [
            (row["partition"], row["ledger_id"], row["entry_id"], row["batch_index"], bytes(row["value"]))
            for row in first
        ]
        begins = {name: begin for name, (begin, _) in ranges.items()}
        ends = {name: end for name, (_, end) in ranges.items()}
        assert ours == [
            (row["partition"], row["ledger_id"], row["entry_id"], row["batch_index"], row["value"])
            for row in read(topic, views, begins, ends)
        ]

"""Streaming queries where Spark neither names the last offset nor gives a limit, as 4.0 and 4.1 do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bridge.settings.pulsar import PulsarSettings
from sources.spark_features import spark_features
from tests.support import source_driver
from tests.support.older_source import FORMAT, OlderSource
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.spark]

SCHEMA = "value binary"


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces, partitions=2) as found:
        yield found


class Query:
    """A query of the older kind into a folder of rows."""

    def __init__(self, spark: SparkSession, topic: TestTopic, folder: Path) -> None:
        spark.dataSource.register(OlderSource)
        self.spark, self.topic, self.folder = spark, topic, folder

    def start(self, *, now: bool, starting: str = "earliest") -> Any:
        options = self.topic.options(predefinedSubscription="q", startingOffsets=starting)
        frame = self.spark.readStream.format(FORMAT).options(**options).schema(SCHEMA).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / "rows"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(**({"availableNow": True} if now else {"processingTime": "0 seconds"})).start()

    def run(self) -> list[int]:
        query = self.start(now=True)
        try:
            assert query.awaitTermination(150), "the query did not end"
            return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def values(self) -> Counter[str]:
        if not (self.folder / "rows" / "_spark_metadata").exists():
            return Counter()
        rows = self.spark.read.schema(SCHEMA).parquet(str(self.folder / "rows")).collect()
        return Counter(bytes(row.value).decode() for row in rows)


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


def once(**counts: int) -> Counter[str]:
    return Counter(f"{prefix}{n}" for prefix, count in counts.items() for n in range(count))


@pytest.mark.long
def test_runs_and_restarts_give_each_message_once_and_new_partitions_are_found(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    query = Query(spark, topic, tmp_path)
    topic.publish(names("a", 20), "unbatched", 0)
    topic.publish(names("b", 20), "batched", 1)
    assert query.run() == [40]
    topic.roll_over()
    assert query.run() == []
    topic.publish(names("c", 5))
    running = query.start(now=False)
    try:
        poll_for(lambda: query.values() == once(a=20, b=20, c=5), 120, "the rows since the last run")
        topic.admin.request("POST", f"/persistent/{topic.name[13:]}/partitions", body=3)
        topic.publish(names("d", 5), partition=2)
        poll_for(lambda: query.values() == once(a=20, b=20, c=5, d=5), 120, "rows of the new partition")
    finally:
        running.stop()
    topic.publish(names("e", 5), partition=2)
    query.run()
    assert query.values() == once(a=20, b=20, c=5, d=5, e=5)


def test_latest_leaves_out_what_was_there_and_nothing_that_came_later(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    query = Query(spark, topic, tmp_path)
    topic.publish(names("before", 5))
    running = query.start(now=False, starting="latest")
    try:
        poll_for(lambda: topic.holds("q", 0) and topic.holds("q", 1), 120, "the first offset")
        topic.publish(names("a", 5))
        poll_for(lambda: query.values() == once(a=5), 120, "the rows")
    finally:
        running.stop()


def test_a_topic_re_created_between_two_runs_is_refused(spark: SparkSession, topic: TestTopic, tmp_path: Path) -> None:
    query = Query(spark, topic, tmp_path)
    topic.publish(names("a", 5))
    assert query.run() == [5]
    topic.delete()
    topic.create()
    topic.publish(names("other", 50), "unbatched")
    with pytest.raises(Exception, match="is not the one that the checkpoint was made on"):
        query.run()
    assert query.values() == once(a=5)


@pytest.mark.skipif(spark_features().limits, reason="this Spark lacks nothing")
def test_missing_features_of_this_spark_are_logged_once_at_the_start(topic: TestTopic, tmp_path: Path) -> None:
    topic.publish(names("a", 5))
    options = topic.options(predefinedSubscription="q", startingOffsets="earliest", maxBytesPerTrigger="1000")
    done = subprocess.run(
        [sys.executable, "-m", source_driver.__name__, json.dumps({"options": options, "folder": str(tmp_path)})],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patient(300), check=True,
    )  # fmt: skip
    warnings = [line for line in done.stdout.splitlines() if "lacks for Python sources" in line]
    assert len(warnings) == 1
    assert "maxBytesPerTrigger: no effect" in warnings[0]
    assert "Trigger.AvailableNow reads all in one batch" in warnings[0]

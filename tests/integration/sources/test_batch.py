"""Batch reads on real Pulsar: exact borders by offset and by time, topics by pattern, filters that spare entries."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import ConfigError, RefusedError
from bridge.settings.pulsar import PulsarSettings
from sources.batch import batch_tasks
from sources.options import parse
from sources.reading import read_range
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.spark_features import needs_filters
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.stack


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    columns = ("value", "__publishTime", "partition", "ledger_id", "entry_id", "__messageId")
    found: list[dict[str, Any]] = []
    for task in batch_tasks(parse(options, streaming=False)):
        for batch in read_range(replace(task, columns=columns)):
            found += batch.to_pylist()
    return found


def values(options: dict[str, str]) -> list[bytes]:
    return sorted(row["value"] for row in rows(options))


def ms(row: dict[str, Any]) -> int:
    return round(row["__publishTime"].timestamp() * 1000)


def publish_at_distinct_times(topic: TestTopic, count: int) -> None:
    """Publish one entry after the other, each at a later ms than the one before, dealt to both partitions."""
    for n in range(count):
        before = datetime.now(timezone.utc)
        poll_for(lambda at=before: (datetime.now(timezone.utc) - at).total_seconds() > 0.002, 5, "the next ms")
        topic.publish([b"%02d" % n], "unbatched", n % 2)


def test_ranges_by_offset_are_half_open_and_meet_without_gap_or_overlap(topic: TestTopic) -> None:
    for partition in range(2):
        topic.publish([b"%d-%d" % (partition, n) for n in range(6)], "unbatched", partition)
        topic.roll_over(partition)
        topic.publish([b"%d-%d" % (partition, n) for n in range(6, 9)], "unbatched", partition)
    found = rows(topic.options())
    everything = sorted(row["value"] for row in found)
    assert len(everything) == 18
    for row in found:
        if row["partition"] == 1:
            continue
        place = json.dumps({topic.partition(0): [row["ledger_id"], row["entry_id"]], topic.partition(1): "latest"})
        before, after = (
            values(topic.options(endingOffsets=place)),
            values(topic.options(startingOffsets=place)),
        )
        assert row["value"] in after, "a start is read"
        assert row["value"] not in before, "an end is not"
        assert sorted(before + after) == everything, place
        ident = json.dumps({topic.name: {"0": list(row["__messageId"]), "1": -1}})
        assert row["value"] in values(topic.options(endingOffsets=ident)), (
            "an end by message id is read, as by StreamNative"
        )
        assert values(topic.options(startingOffsets=ident)) == after


def test_ranges_by_time_begin_at_their_start_and_end_before_their_end(topic: TestTopic) -> None:
    publish_at_distinct_times(topic, 8)
    found = sorted(rows(topic.options()), key=ms)
    times = [ms(row) for row in found]
    assert len(set(times)) == 8
    for at in (*times, times[0] - 1, times[3] + 1, times[-1] + 1):
        before, after = values(topic.options(endingTime=str(at))), values(topic.options(startingTime=str(at)))
        assert before == sorted(row["value"] for row in found if ms(row) < at)
        assert after == sorted(row["value"] for row in found if ms(row) >= at)
    window = topic.options(startingTime=str(times[2]), endingTime=str(times[5]))
    assert values(window) == sorted(row["value"] for row in found[2:5])
    assert values(topic.options(startingTime=str(times[2]), endingTime=str(times[2]))) == []
    by_partition = json.dumps({topic.name: {"0": times[4]}, topic.partition(1): times[5]})
    assert values(topic.options(startingTime=by_partition)) == sorted(
        row["value"] for row in found if ms(row) >= times[4 + row["partition"]]
    )


def test_a_range_that_cannot_be_is_refused(topic: TestTopic) -> None:
    topic.publish([b"a", b"b", b"c"], "unbatched")
    ledger = topic.ledgers()[0]

    def place(entry: int, name: str) -> str:
        return json.dumps({name: [ledger, entry]})

    with pytest.raises(ConfigError, match=r"endingOffsets .* is before startingOffsets"):
        values(topic.options(
            startingOffsets=place(2, topic.partition()), endingOffsets=place(1, topic.partition())
        ))  # fmt: skip
    with pytest.raises(ConfigError, match=r"does not exist: .* has only 3 entries"):
        values(topic.options(endingOffsets=place(4, topic.partition())))
    with pytest.raises(ConfigError, match=r"partitions that do not exist: .*-partition-7"):
        values(topic.options(startingOffsets=place(0, topic.partition(7))))
    assert values(topic.options(
        startingOffsets=place(1, topic.partition()), endingOffsets=place(1, topic.partition())
    )) == []  # fmt: skip


def test_topics_by_pattern_are_those_of_the_namespace_that_match_as_a_whole(
    namespaces: PulsarSettings,
) -> None:
    with (
        topic_of(namespaces, name="plant-1") as one, topic_of(namespaces, partitions=2, name="plant-2") as two,
        topic_of(namespaces, name="plant-33") as other,
    ):  # fmt: skip
        for topic in (one, two, other):
            topic.publish([topic.name.rpartition("/")[2].encode()], "unbatched", topic.count - 1)
        folder = one.name.rpartition("/")[0]
        options = {k: v for k, v in one.options().items() if k != "topic"}
        assert values(options | {"topicsPattern": folder + r"/plant-\d"}) == [b"plant-1", b"plant-2"]
        assert values(options | {"topicsPattern": folder.removeprefix("persistent://") + "/.*3"}) == [b"plant-33"]
        with pytest.raises(RefusedError, match=r"no topic in .* matches 'plant'"):
            values(options | {"topicsPattern": folder + "/plant"})


def scanned(frame: DataFrame) -> tuple[list[bytes], int]:
    """The values, sorted, and how many rows left the source for them: one for each entry read."""
    found = sorted(bytes(row.value) for row in frame.collect())
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return found, sum(leaves.apply(i).metrics().apply("numOutputRows").value() for i in range(leaves.size()))


@pytest.mark.spark
@needs_filters
def test_filters_on_publish_time_topic_and_partition_read_fewer_entries(spark: SparkSession, topic: TestTopic) -> None:
    publish_at_distinct_times(topic, 12)
    found = sorted(rows(topic.options()), key=ms)
    third, eighth = (found[n]["__publishTime"].isoformat() for n in (2, 7))

    def frame(**more: str) -> DataFrame:
        return spark.read.format("pulsebridge").options(**topic.options(pushFilters="true", **more)).load()

    where = f"__publishTime >= timestamp'{third}' AND __publishTime < timestamp'{eighth}'"
    wanted = [row["value"] for row in found[2:7]]
    assert scanned(frame(publishTimeSlackMs="0").where(where)) == (wanted, 5)
    assert scanned(frame().where(where)) == (wanted, 12), "by default all within a day is looked at"
    assert scanned(frame().where("partition = 1 AND value <> X'00'"))[1] == 6
    assert scanned(frame().where(f"__topic = '{topic.name}'"))[1] == 12
    assert scanned(frame().where("__topic LIKE 'persistent://other/%'")) == ([], 0)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert scanned(frame(publishTimeSlackMs="0").where(where)) == (wanted, 12), "no pushdown, the same rows"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.spark
@needs_filters
def test_a_frame_that_is_used_again_with_other_filters_has_all_their_rows(
    spark: SparkSession, topic: TestTopic
) -> None:
    """Spark 4.1 and 4.2 keep one set of pushed filters for all uses of a DataFrame."""
    for partition in range(2):
        topic.publish([b"%d" % partition], "unbatched", partition)
    frame = spark.read.format("pulsebridge").options(**topic.options()).load()
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert sorted(bytes(row.value) for row in both.collect()) == [b"0", b"1"]
    assert [bytes(row.value) for row in frame.where("partition = 0").collect()] == [b"0"]
    assert frame.count() == 2

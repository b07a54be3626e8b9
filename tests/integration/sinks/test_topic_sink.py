"""The generic sink on a real Pulsar: what it writes reads back as it was, and what it cannot write is named."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import (
    DEAD_LETTERS_TOPIC,
    P_DEAD_REASON,
    P_DEAD_TOPIC,
    P_DEVICE,
    partition_name,
)
from bridge.contract.partitioning import partition_of
from bridge.errors import TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from sinks import writer
from sinks.messages import PulsarMessage
from sinks.options import read_topic_options
from sinks.writer import TaskWriter
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.push import read_topic
from tests.support.raw_pulsar import store_raw
from tests.support.reading_back import read_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

COMPARED = ("value", "__key", "__eventTime", "__messageProperties", "mqtt_topic", "device", "retain")
EVENT_MS = 1_700_000_000_123


@pytest.fixture
def source(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as found:
        yield found


@pytest.fixture
def target(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces, partitions=3) as found:
        yield found


def options(of: TestTopic, **more: str) -> dict[str, str]:
    given = of.options(**{"system.namespace": of.settings.system_namespace}) | more
    return {name: value for name, value in given.items() if value}


def write(frame: DataFrame, given: dict[str, str]) -> None:
    frame.write.format("pulsebridge").options(**given).mode("append").save()


def rows(spark: SparkSession, topic: TestTopic) -> list[Any]:
    return list(spark.read.format("pulsebridge").options(**topic.options()).load().collect())


def compared(found: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in COMPARED) for row in found), key=repr)


def test_what_the_source_reads_the_sink_writes_and_the_source_reads_again(
    spark: SparkSession, source: TestTopic, target: TestTopic
) -> None:
    raw = bytes(range(256))
    properties = {"mqtt.topic": "plant/ключ", "pb.ingest": '{"v":"1","device":"d7"}', "": "empty", "b": ""}
    for kind in ("batched", "unbatched", "compressed"):
        source.publish([raw, b"", None], kind, partition_key="ключ", properties=properties)
        source.publish([raw], kind, event_timestamp=EVENT_MS)
        source.publish([b"%d" % n for n in range(20)], kind, partition_key=f"k-{kind}")
    store_raw(source.settings, source.partition(), b"flagged", key=base64.b64encode(raw), as_base64=True)
    read = spark.read.format("pulsebridge").options(**source.options()).load()
    write(read, options(target))  # all columns, as they are
    before, after = rows(spark, source), rows(spark, target)
    assert len(before) == 3 * 24 + 1
    assert compared(after) == compared(before)
    assert {row["__eventTime"] for row in after} > {None}
    assert any(row.value is None for row in after)
    for row in after:  # each key in its partition, and in order there
        assert row["__key"] is None or row.partition == partition_of(row["__key"], 3)
    ordered = [row for row in after if row["__key"] == "k-batched"]
    ordered.sort(key=lambda row: (row.ledger_id, row.entry_id, row.batch_index))
    assert [row.value for row in ordered] == [b"%d" % n for n in range(20)]


def test_rows_choose_their_topics_and_bad_ones_are_named_in_the_dead_letters(
    spark: SparkSession, source: TestTopic, target: TestTopic
) -> None:
    gone = source.settings.readings_topic("gone")
    forbidden = source.settings.system_topic("commands")
    frame = spark.createDataFrame(
        [
            ("1", b"k", b"o", source.name, 1_000),
            ("2", b"k", None, partition_name(target.name, 0), None),
            ("3", b"\xff", None, target.name, None),
            ("4", b"d", None, gone, None),
            ("5", None, None, None, None),
            ("6", b"k", None, forbidden, None),
            ("7", b"k", None, target.name, -1),
            (None, b"k", None, target.name, None),
            ("9", b"k", None, "public/de fault/x", None),
            ("10", b"k", None, target.name, None),
        ],
        "value string, __key binary, o binary, __topic string, __eventTime bigint",
    ).selectExpr("value", "__key", "cast(o as string) __orderingKey", "__topic", "__eventTime")
    given = options(source, topic="")
    write(frame.coalesce(1), given)
    (message,) = received(source)
    assert (message.data(), message.ordering_key(), message.event_timestamp()) == (b"1", "o", 1000)
    assert sorted((row.value, row["__key"]) for row in rows(spark, target) if row.value) == [
        (b"10", "k"), (b"2", "k"),
    ]  # fmt: skip
    letters = {
        m.data(): (m.properties()[P_DEAD_REASON], m.properties()[P_DEAD_TOPIC], m.properties()[P_DEVICE])
        for m in read_topic(Settings(pulsar=source.settings), DEAD_LETTERS_TOPIC)
    }
    assert set(letters) == {b"3", b"4", b"5", b"6", b"7", b"9"}
    assert letters[b"3"][0].startswith("row 2 of the task, __key: ")
    assert letters[b"4"][0].startswith(f"row 3 of the task, __topic: topic {gone} does not exist")
    assert letters[b"4"][1:] == (gone, "d"), "a replay brings it there once the topic is made"
    assert "__topic: is null" in letters[b"5"][0]
    assert "system namespace" in letters[b"6"][0]
    assert "__eventTime: is -1 ms" in letters[b"7"][0]
    assert letters[b"9"][0].startswith("row 8 of the task, __topic: is 'persistent://public/de fault/x'")
    with pytest.raises(Exception, match=r"row \d of the task, __key: .* badRows=deadletter"):
        write(frame.where("value = '3'"), given | {"badRows": "fail"})


def received(topic: TestTopic) -> list[Any]:
    return [message for _, message in read_back(topic.settings, topic.name)]


def test_large_rows_are_chunked_with_the_option_and_binary_keys_are_base64(
    spark: SparkSession, source: TestTopic
) -> None:
    raw = b"\xff\x00k"
    frame = spark.createDataFrame([(b"x" * 6_000_000, raw), (b"y", raw)], "value binary, __key binary").coalesce(1)
    given = options(source, **{"pulsar.producer.chunkingEnabled": "true", "keyEncoding": "base64"})
    write(frame, given)
    found = spark.read.format("pulsebridge").options(**source.options(keyEncoding="base64")).load()
    assert [(len(row.value), row["__key"]) for row in found.collect()] == [(6_000_000, raw), (1, raw)]


def test_a_stream_is_written_and_goes_on_where_it_was(
    spark: SparkSession, source: TestTopic, target: TestTopic, tmp_path: Path
) -> None:
    def run(mode: str = "append") -> None:
        frame = (
            spark.readStream.format("pulsebridge")
            .options(**source.options(predefinedSubscription="q", startingOffsets="earliest"))
            .load()
        )
        query = (
            frame.writeStream.format("pulsebridge")
            .outputMode(mode)
            .options(**options(target))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)
        assert query.exception() is None

    source.publish([b"1", b"2"], partition_key="k")
    run()
    source.publish([b"3"], partition_key="k")
    run()
    assert sorted(row.value for row in rows(spark, target)) == [b"1", b"2", b"3"]


def test_what_will_not_do_is_refused_before_anything_is_written(spark: SparkSession, target: TestTopic) -> None:
    frame = spark.createDataFrame([(b"v",)], "value binary")
    with pytest.raises(Exception, match="did you mean value"):
        write(frame.withColumnRenamed("value", "valeu"), options(target))
    with pytest.raises(Exception, match="did you mean keyEncoding"):
        write(frame, options(target, keyEncodng="text"))
    with pytest.raises(Exception, match=r"topic .*/none does not exist — pulsar-admin topics create-partitioned"):
        write(frame, options(target, topic=target.settings.readings_topic("none")))
    with pytest.raises(Exception, match=r"cannot be overwritten.*\.mode\('append'\)"):
        frame.write.format("pulsebridge").options(**options(target)).mode("overwrite").save()
    with pytest.raises(Exception, match=r"cannot be written in the .ErrorIfExists. mode"):  # Spark's own words
        frame.write.format("pulsebridge").options(**options(target)).save()
    assert not received(target)


def test_a_topic_that_no_row_chose_and_that_is_gone_fails_the_task_and_buries_nothing(
    target: TestTopic,
) -> None:
    options_of = read_topic_options(options(target))
    gone = target.settings.readings_topic("gone")
    message = PulsarMessage(0, gone, b"v", "k", {})
    task = TaskWriter(options_of.target)
    try:
        with pytest.raises(TransientError, match=f"topic {gone} does not exist — Spark retries the task"):
            task.write([message], gone)
        assert task.write([replace(message, topic=target.name)], target.name) == (1, 0)
    finally:
        task.retire()
    with PulsarAdmin(target.settings) as admin:
        assert not admin.exists(target.settings.system_topic(DEAD_LETTERS_TOPIC)), "no letter was written"


def test_producers_that_are_not_used_are_closed_and_lose_nothing(
    target: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_MAX_PRODUCERS", 2)
    task = TaskWriter(read_topic_options(options(target)).target)
    rows = [PulsarMessage(n, target.name, b"%d" % n, f"k{n % 7}", {}) for n in range(60)]
    try:
        assert task.write(rows, target.name) == (60, 0)
        assert len(task._producers) == 2
        assert len({message.producer_name() for message in received(target)}) > 3, "each time a new one"
    finally:
        task.retire()
    found: dict[str, list[int]] = {}
    for message in received(target):
        found.setdefault(message.partition_key(), []).append(int(message.data()))
    assert found == {f"k{n}": list(range(n, 60, 7)) for n in range(7)}, "in the order of each key"

"""Rows in Spark as they were stored: keys, nulls and times as they are, values by the topic's schema when asked."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Long, Record, String

from bridge.pulsar.wire.protobuf import number
from bridge.settings.pulsar import PulsarSettings
from tests.support.pulsar_topics import TestTopic, topic_of
from tests.support.raw_pulsar import store_raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


class Old(Record):
    _avro_namespace = "n"
    a = Integer()
    gone = String(required_default=True)


class New(Record):
    _avro_namespace = "n"
    a = Integer()
    b = String(default="usual", required=True, required_default=True)
    device = Long(required_default=True)


Old.__name__ = New.__name__ = "Reading"  # versions of one record


@pytest.fixture
def topic(namespaces: PulsarSettings) -> Iterator[TestTopic]:
    with topic_of(namespaces) as found:
        yield found


def frame(spark: SparkSession, topic: TestTopic, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("pulsebridge").options(**topic.options(**options))
    return (reader if schema is None else reader.schema(schema)).load()


def publish(topic: TestTopic, schema: Any, *values: Any) -> None:
    """Write with a schema; None is a tombstone."""
    client = topic.client
    producer = client.create_producer(topic.name, schema=schema, send_timeout_millis=30_000)
    for value in values:
        producer.send(value, partition_key="k")
    producer.close()


def test_keys_and_payloads_are_the_bytes_that_were_stored(spark: SparkSession, topic: TestTopic) -> None:
    raw = bytes(range(256))
    for kind in ("batched", "unbatched"):
        topic.publish([raw, b""], kind, partition_key="ключ")
        topic.publish([None], kind)
    store_raw(topic.settings, topic.partition(), b"flagged", key=base64.b64encode(raw), as_base64=True)
    store_raw(topic.settings, topic.partition(), b"no text", key=b"\xff\x00k")
    rows = frame(spark, topic).select("value", "payload", "__key").collect()
    key = base64.b64encode(raw).decode()
    wanted = [(raw, "ключ"), (b"", "ключ"), (None, None)] * 2
    wanted += [(b"flagged", key), (b"no text", "\ufffd\x00k")]
    assert [(row.value, row["__key"]) for row in rows] == wanted, "null is not empty, and a key is as it is stored"
    assert [row.payload for row in rows] == [row.value for row in rows]
    as_bytes = frame(spark, topic, "__key binary").collect()
    assert [row["__key"] for row in as_bytes[-2:]] == [key.encode(), b"\xff\x00k"]
    assert as_bytes[0]["__key"] == "ключ".encode()


def test_binary_keys_are_read_as_bytes_with_the_option(spark: SparkSession, topic: TestTopic) -> None:
    keys = [b"\x00\xff", bytes(range(200))]
    for key in keys:
        store_raw(topic.settings, topic.partition(), b"v", key=base64.b64encode(key), as_base64=True)
    found = frame(spark, topic, keyEncoding="base64")
    assert dict(found.dtypes)["__key"] == "binary"
    assert [row["__key"] for row in found.collect()] == keys
    topic.publish([b"v"], partition_key="no base64!")
    with pytest.raises(Exception, match="keyEncoding is base64, and a key is not base64"):
        frame(spark, topic, keyEncoding="base64").collect()


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (number(8, 2) + number(9, 1000), r"it cannot be decompressed \(type 2\)"),
        (number(8, 9) + number(9, 3), r"it cannot be decompressed \(type 9\)"),
        (number(11, 1000), "its batch of 1000 cannot be read"),
    ],
    ids=["no zlib", "an unknown type", "no batch"],
)
def test_h44_an_unreadable_entry_is_reported_and_skipped_only_if_loss_is_allowed(
    spark: SparkSession, topic: TestTopic, metadata: bytes, why: str
) -> None:
    """Any client that may write to the topic can store it. Before, the query retried it for ever."""
    topic.publish([b"before"])
    store_raw(topic.settings, topic.partition(), b"bad", key=b"k", metadata_fields=metadata)
    topic.publish([b"after"])
    with pytest.raises(Exception, match=rf"(?s)entry \d+:\d+ cannot be read: {why}.*failOnDataLoss=false"):
        frame(spark, topic).collect()
    rows = frame(spark, topic, failOnDataLoss="false").collect()
    assert [row.value for row in rows] == [b"before", b"after"]


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_times_are_instants_whatever_the_zone_of_the_session(spark: SparkSession, topic: TestTopic, kind: str) -> None:
    event_ms = 1_700_000_000_123
    before = datetime.now(timezone.utc).timestamp()
    topic.publish([b"v"], event_timestamp=event_ms)
    after = datetime.now(timezone.utc).timestamp()
    settings = {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.timestampType": kind}
    former = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        found = frame(spark, topic)
        assert {of for name, of in found.dtypes if name.endswith("Time")} == {"timestamp"}
        (row,) = found.selectExpr(
            "unix_micros(__eventTime) AS event", "unix_millis(__publishTime) / 1000 AS published",
            "date_format(__eventTime, 'HH:mm:ss.SSS') AS clock",
        ).collect()  # fmt: skip
        assert row.event == event_ms * 1000
        assert before - 1 <= row.published <= after + 1
        assert row.clock == "03:58:20.123", "22:13:20.123 UTC in a zone 5:45 ahead"
        at = datetime.fromtimestamp(event_ms / 1000, timezone.utc).isoformat()
        assert found.where(f"__eventTime = timestamp_ltz'{at}'").count() == 1
        pushed = frame(spark, topic, publishTimeSlackMs="0")
        edge = f"timestamp_millis({int(row.published * 1000)})"
        assert pushed.where(f"__publishTime >= {edge} AND __publishTime <= {edge}").count() == 1
    finally:
        for name, value in former.items():
            spark.conf.set(name, value)


@pytest.mark.long
def test_an_avro_topic_is_read_under_its_newest_schema_whatever_wrote_it(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    publish(topic, AvroSchema(Old), Old(a=1, gone="x"))
    publish(topic, AvroSchema(New), New(a=2, b="b", device=2**40), None)
    assert dict(frame(spark, topic).dtypes)["value"] == "binary", "raw bytes unless asked"
    whole = frame(spark, topic, decode="value")
    assert dict(whole.dtypes)["value"] == "struct<a:int,b:string,device:bigint>"
    wanted = [(1, "usual", None), (2, "b", 2**40)]
    rows = whole.select("value", "payload", "__key").collect()
    assert [None if row.value is None else tuple(row.value) for row in rows] == [*wanted, None]
    assert rows[2].payload is None
    fields = frame(spark, topic, decode="fields")
    assert fields.columns[:4] == ["a", "b", "device", "__key"]
    assert [tuple(row) for row in fields.select("a", "b", "device").collect()] == [
        *wanted,
        (None, None, None),
    ]
    assert [tuple(row) for row in frame(spark, topic, "device bigint", decode="fields").collect()] == [
        (None,), (2**40,), (None,),
    ]  # fmt: skip
    assert frame(spark, topic, decode="fields", columns="b,__key").columns == ["b", "__key"]
    with pytest.raises(Exception, match="columns: no column nothing"):
        frame(spark, topic, decode="fields", columns="b,nothing")
    stream = (
        spark.readStream.format("pulsebridge")
        .options(**topic.options(startingOffsets="earliest", predefinedSubscription="q", decode="fields"))
        .load().select("a", "b")
    )  # fmt: skip
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(90)
    found = spark.read.parquet(str(tmp_path / "rows")).where("a IS NOT NULL").orderBy("a").collect()
    assert [tuple(row) for row in found] == [(1, "usual"), (2, "b")]


def test_a_json_topic_is_read_likewise_and_what_is_no_json_fails_or_is_null(
    spark: SparkSession, topic: TestTopic
) -> None:
    publish(topic, JsonSchema(Old), Old(a=1, gone="x"))
    publish(topic, JsonSchema(New), New(a=2, b="b", device=3), None)
    assert [tuple(row) for row in frame(spark, topic, decode="fields").select("a", "b", "device").collect()] == [
        (1, "usual", None), (2, "b", 3), (None, None, None),
    ]  # fmt: skip
    topic.publish([b"no json"], "unbatched")
    with pytest.raises(Exception, match="does not match the topic's JSON schema") as caught:
        frame(spark, topic, decode="value").select("value").collect()
    assert "set decodeErrors=null" in str(caught.value)
    assert frame(spark, topic, decode="value", columns="__topic").count() == 4, "only what is asked for is decoded"
    last = frame(spark, topic, decode="value", decodeErrors="null").collect()[-1]
    assert (last.value, last.payload) == (None, b"no json")


def test_a_topic_without_a_schema_and_topics_that_differ_are_refused_with_the_remedy(
    spark: SparkSession, topic: TestTopic
) -> None:
    with pytest.raises(Exception, match=r"no schema exists for .*upload one"):
        frame(spark, topic, decode="value")
    with topic_of(topic.settings) as other:
        publish(topic, AvroSchema(Old))
        publish(other, AvroSchema(New))
        options = {k: v for k, v in topic.options(decode="value").items() if k != "topic"}
        reader = spark.read.format("pulsebridge").options(**options, topics=f"{topic.name},{other.name}")
        with pytest.raises(Exception, match="the topics have different schemas"):
            reader.load()

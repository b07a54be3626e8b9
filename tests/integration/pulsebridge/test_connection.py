"""``pulsebridge.connect`` with a real Pulsar, push, devices, Spark and Delta."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import ConfigError, TransientError
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.cli.completion import complete_device
from pulsebridge.connection import Connection
from pulsebridge.local.stack import LocalStack
from sinks.receipts import with_receipts
from tests.support.push import Devices, parking_settings, provision, push_in_thread, push_settings, says
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]


@pytest.fixture
def connection(stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path) -> Connection:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=2)
    provision(settings)
    topic = f"{settings.push.client_id}/{{device}}/commands"
    route = TopicRule(
        name="plant", filter="plant/+device/+metric", topic="plant", device="{device}", command_topic=topic
    )
    changed = {
        "ingest": settings.ingest.model_copy(update={"routes": [route]}),
        "streaming": settings.streaming.model_copy(update={"root": str(tmp_path / "lakehouse")}),
    }
    return Connection(settings.model_copy(update=changed))


def test_a_command_to_a_device_and_those_of_a_frame_have_their_receipts(
    connection: Connection, spark: SparkSession
) -> None:
    settings = connection.settings
    with connection, Devices(settings) as devices, push_in_thread(settings):
        sent = connection.send("press-1", {"reset": True}, command_id="c-1")
        assert [(one["device"], one["state"]) for one in sent.wait()] == [("press-1", "delivered")]
        rows = spark.createDataFrame([(f"f-{n}", f"press-{n}", b"x") for n in range(3)], "command_id string, device string, payload binary")  # fmt: skip
        more = connection.send(rows)
        assert {one["command_id"] for one in more.wait()} == {"f-0", "f-1", "f-2"}
        assert devices.ids("press-1") == ["c-1", "f-1"]
        assert json.loads(devices.got["press-1"][0].payload) == {"reset": True}
        receipts = connection.receipts()
        assert {row.command_id: row.state for row in receipts.collect()} == dict.fromkeys(["c-1", "f-0", "f-1", "f-2"], "delivered")  # fmt: skip
        assert [row.state for row in with_receipts(rows, receipts).collect()] == ["delivered"] * 3


def test_the_command_of_an_offline_device_waits_and_is_listed(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    connection = Connection(settings)
    with connection, push_in_thread(settings):
        says(settings, "press-2", b"offline")
        sent = connection.send("press-2", "open", topic=f"{settings.push.client_id}/press-2/commands")
        with pytest.raises(TransientError, match="1 of 1 commands have no receipt"):
            sent.wait(1.0)
        found = {one["device"]: one for one in connection.devices(pending=True)}
        assert found["press-2"]["pending"] == 1
        names = ("service_url", "admin_url", "namespace", "system_namespace")
        sets = [f"pulsar.{name}={getattr(namespaces, name)}" for name in names]
        connection.send("press-$(id)", "open", topic=f"{settings.push.client_id}/press-$(id)/commands")
        context: Any = SimpleNamespace(params={"sets": sets})
        poll_for(lambda: "press-$(id)" in {one["device"] for one in connection.devices()}, 30, "both devices")
        # It gives up after three seconds, and a busy machine may need more.
        completed = poll_for(lambda: complete_device(context, "pre"), 60, "the names of devices")
        assert completed == ["press-2"], "a name that a shell would expand is left out"
        assert complete_device(context, "x") == []


def test_topics_are_read_and_written_by_their_short_names(
    connection: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    with PulsarAdmin(connection.settings.pulsar, timeout_s=30) as admin:
        admin.create_partitioned(connection.settings.pulsar.readings_topic("copies"), 1)
    rows = spark.createDataFrame([(b"1",), (b"2",)], "value binary")
    assert connection.write(rows, "copies") is None
    assert sorted(bytes(row.value) for row in connection.read("copies").collect()) == [b"1", b"2"]
    for read in (connection.read, lambda topic: connection.stream(topic, name="reader")):
        with pytest.raises(ConfigError, match=r"/copie does not exist — did you mean copies\?$"):
            read("copie")
        with pytest.raises(ConfigError, match=r"does not exist — topics of .*: .*copies.*; ingest makes"):
            read("copies,another")
        with pytest.raises(ConfigError, match="topics explain"):
            read("plant/press-1")
    waiting = connection.stream("another", name="waiter", waitingForNonExistedTopic="true")
    assert waiting.isStreaming
    stream = connection.stream("copies", name="copier")
    with pytest.raises(ConfigError, match="checkpoint"):
        connection.write(stream.select("value"), "more")
    query = (
        stream.select("value").writeStream.format("delta").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "t"))
    )  # fmt: skip
    query.awaitTermination()
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 2


def test_a_table_is_read_now_and_as_it_was(connection: Connection, spark: SparkSession) -> None:
    where = f"{connection.settings.streaming.root}/presses"
    for n in range(3):
        spark.range(n, n + 1).write.format("delta").mode("append").save(where)
    assert connection.table("presses").count() == 3
    assert connection.table("presses", version=0).count() == 1
    at = spark.sql(f"DESCRIBE HISTORY delta.`{where}`").where("version = 1").first().timestamp
    assert connection.table("presses", timestamp=str(at)).count() == 2
    with pytest.raises(ConfigError, match="pressen does not exist"):
        connection.table("pressen")
    with pytest.raises(ConfigError, match="give one of them"):
        connection.table("presses", version=1, timestamp="2026-01-01")

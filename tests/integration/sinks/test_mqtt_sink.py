"""The direct sink on real brokers: what is published arrives whole, and what cannot be is named on a topic."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridge.contract import ORIGIN_PROPERTY, ORIGIN_SINK
from bridge.errors import TransientError
from bridge.mqtt.device import DeviceClient, probe
from bridge.mqtt.types import Connected, Message
from bridge.settings.mqtt import MqttSettings
from pulsebridge.downloads.preflight import find_mosquitto
from pulsebridge.local.mqtt_servers import mosquitto_config
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from sinks.mqtt_rows import Plan, Publish
from sinks.mqtt_writer import write as write_task
from sinks.options import read_mqtt_options
from tests.support.stack import mqtt_settings, new_stack
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

USER = "array(named_struct('name', 'n', 'value', '1'), named_struct('name', 'n', 'value', '2'))"


@contextmanager
def listening(stack: LocalStack, topics: str) -> Iterator[list[Message]]:
    got: list[Message] = []
    settings = mqtt_settings(stack)
    with DeviceClient(settings, f"{settings.client_id}-l", on_message=got.append) as client:
        client.subscribe(topics)
        yield got


def options(stack: LocalStack, prefix: str, **more: str) -> dict[str, str]:
    return {
        "mqtt.host": stack.mqtt_host,
        "mqtt.port": str(stack.mqtt_port),
        "deadLetterTopic": f"{prefix}/dead",
        **more,
    }


def write(frame: DataFrame, given: dict[str, str]) -> None:
    frame.write.format("pulsebridge_mqtt").options(**given).mode("append").save()


def test_rows_arrive_whole_and_in_order_and_bad_ones_on_the_dead_letter_topic(
    spark: SparkSession, broker: LocalStack, stack: LocalStack
) -> None:
    prefix = uuid.uuid4().hex
    frame = spark.range(0, 60, numPartitions=1).selectExpr(
        f"if(id = 7, '{prefix}/#', '{prefix}/d') mqtt_topic", "if(id = 9, null, cast(id as string)) payload",
        "cast(id = 20 as int) + 1 qos", "id = 59 retain", "'text/plain' content_type", f"'{prefix}/r' response_topic",
        "unhex('00ff') correlation_data", f"{USER} user_properties", "1 payload_format", "600 expiry_s",
    )  # fmt: skip
    with listening(broker, f"{prefix}/+") as got:
        write(frame, options(broker, prefix, window="10"))
        poll_for(lambda: len(got) == 60, 30, "every row at its subscriber")
    rows = [message for message in got if message.topic == f"{prefix}/d"]
    wanted = [n for n in range(60) if n not in (7, 9)]
    assert sorted(int(m.payload) for m in rows) == wanted
    if broker is not stack:  # Artemis may route publishes in flight out of order (pulsebridge.local.mqtt_servers)
        once = [int(m.payload) for m in rows if m.payload != b"20"]  # order holds within a QoS (MQTT 5, 4.6)
        assert once == [n for n in wanted if n != 20]
    properties = next(m for m in rows if m.payload == b"1").properties
    assert properties is not None
    assert properties.user == (("n", "1"), ("n", "2"), (ORIGIN_PROPERTY, ORIGIN_SINK))
    assert (properties.content_type, properties.response_topic) == ("text/plain", f"{prefix}/r")
    assert (properties.correlation_data, properties.payload_format) == (b"\x00\xff", 1)
    assert 0 < (properties.expiry_s or 0) <= 600
    letters = [json.loads(message.payload) for message in got if message.topic == f"{prefix}/dead"]
    assert [(letter["row"], letter["field"]) for letter in letters] == [(7, "mqtt_topic"), (9, "payload")]
    with listening(broker, f"{prefix}/d") as later:
        poll_for(lambda: [m.payload for m in later] == [b"59"], 30, "the retained row")


def test_a_stream_a_bad_schema_and_a_wrong_option(
    spark: SparkSession, stack: LocalStack, tmp_path: os.PathLike[str]
) -> None:
    prefix = uuid.uuid4().hex
    given = options(stack, prefix, topic=f"{prefix}/d", **{"mqtt.protocol": "3.1.1"})
    folder = f"{os.fspath(tmp_path)}/rows"
    frame = spark.range(0, 20, numPartitions=1).selectExpr("cast(id as string) payload")
    frame.write.parquet(folder)
    with listening(stack, f"{prefix}/d") as got:
        query = (
            spark.readStream.schema(frame.schema)
            .parquet(folder)
            .writeStream.format("pulsebridge_mqtt")
            .options(**given)
            .option("checkpointLocation", f"{os.fspath(tmp_path)}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)
        assert query.exception() is None
        poll_for(lambda: len(got) == 20, 30, "every row at its subscriber")
    with pytest.raises(Exception, match="did you mean payload"):
        write(frame.withColumnRenamed("payload", "pyload"), given)
    with pytest.raises(Exception, match=r"did you mean mqtt\.port"):
        write(frame, given | {"mqtt.prt": "1"})
    with pytest.raises(Exception, match=r"row 0 of the task, mqtt_topic: .* badRows=deadletter"):
        write(frame.selectExpr("'a/+' mqtt_topic", "payload"), given | {"badRows": "fail"})


def test_a_task_succeeds_only_when_the_broker_has_confirmed_every_row(stack: LocalStack) -> None:
    prefix = uuid.uuid4().hex
    plan = Plan(None, True, False)
    rows = [Publish(n, f"{prefix}/d", b"%d" % n, 1, False, None) for n in range(300)]
    with TcpProxy(stack.mqtt_host, stack.mqtt_port) as proxy, listening(stack, f"{prefix}/d") as got:
        given = options(stack, prefix, sendTimeoutMs="2000", window="50")
        given |= {"mqtt.host": "127.0.0.1", "mqtt.port": str(proxy.port)}

        def cut_in_the_middle() -> Iterator[Publish]:
            for row in rows:
                if row.row == 150:
                    proxy.cut()
                yield row

        assert write_task(cut_in_the_middle(), read_mqtt_options(given), plan) == (300, 0)
        poll_for(lambda: {m.payload for m in got} == {row.payload for row in rows}, 30, "every row")

        def silent_from_the_middle() -> Iterator[Publish]:
            for row in rows:
                if row.row == 150:
                    proxy.freeze()
                yield row

        with pytest.raises(TransientError, match="publishes have no confirmation from the MQTT broker after 2 s"):
            write_task(silent_from_the_middle(), read_mqtt_options(given), plan)


LIMITS = {"max_packet_size": "2000", "max_qos": "1", "retain_available": "false"}
"""Before MQTT 5 Mosquitto says nothing of them, and closes the connection at a packet that is larger."""


@pytest.fixture
def limited(mosquitto: LocalStack, tmp_path: Path) -> Iterator[LocalStack]:
    """A Mosquitto that takes small packets, QoS 1 and nothing retained."""
    (port,) = free_ports(1)
    lines = [
        mosquitto_config(port=port, data=tmp_path),
        *(f"{name} {value}" for name, value in LIMITS.items()),
    ]
    config = tmp_path / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    program = find_mosquitto()
    assert program is not None
    beside = new_stack(
        mqtt_url=f"mqtt://127.0.0.1:{port}", pulsar_url=mosquitto.pulsar_url, admin_url=mosquitto.admin_url
    )
    with subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            poll_for(lambda: isinstance(probe(MqttSettings(port=port)), Connected), 30, "Mosquitto listens")
            with beside:
                yield beside
        finally:
            process.terminate()


def test_rows_beyond_what_the_broker_takes_are_named_and_the_query_goes_on(
    spark: SparkSession, limited: LocalStack
) -> None:
    frame = spark.range(0, 30, numPartitions=1).selectExpr(
        "'many/d' mqtt_topic", "if(id = 3, repeat('x', 5000), cast(id as string)) payload",
        "if(id = 5, 2, 1) qos", "id = 7 retain",
        "array(named_struct('name', 'n', 'value', if(id = 9, 'a\\nb', 'v'))) user_properties",
    )  # fmt: skip
    with listening(limited, "many/+") as got:
        write(frame, options(limited, "many"))
        poll_for(lambda: len(got) == 30, 30, "every row, or its letter")
    letters = [json.loads(one.payload) for one in got if one.topic == "many/dead"]
    assert sorted((one["row"], one["field"]) for one in letters) == [
        (3, "payload"), (5, "qos"), (7, "retain"), (9, "user_properties"),
    ]  # fmt: skip
    (large,) = [one for one in letters if one["row"] == 3]
    assert large["payload_bytes"] == 5000
    assert base64.b64decode(large["payload_base64"]).strip(b"x") == b""


def test_a_row_at_which_a_broker_before_mqtt_5_closes_the_connection_is_named_and_the_others_go_on(
    spark: SparkSession, limited: LocalStack
) -> None:
    frame = spark.range(0, 30, numPartitions=1).selectExpr(
        "'many/d' mqtt_topic", "if(id in (3, 4, 29), repeat('x', 5000), cast(id as string)) payload"
    )
    with listening(limited, "many/+") as got:
        write(frame, options(limited, "many", **{"mqtt.protocol": "3.1.1"}))
        poll_for(lambda: len({one.payload for one in got}) == 30, 30, "every row, or its letter")
    letters = [json.loads(one.payload) for one in got if one.topic == "many/dead"]
    assert sorted((one["row"], one["field"]) for one in letters) == [
        (3, "payload"), (4, "payload"), (29, "payload"),
    ]  # fmt: skip
    assert {one["payload_bytes"] for one in letters} == {5000}
    assert all("closed the connection" in one["reason"] for one in letters)

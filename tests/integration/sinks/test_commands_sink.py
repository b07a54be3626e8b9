from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import C_EMITTED, C_ID, COMMANDS_TOPIC, DEAD_LETTERS_TOPIC, P_DEAD_REASON
from bridge.contract.commands import decode_command
from bridge.dead_letters.records import Selection
from bridge.dead_letters.replay import Replayer
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support import commands_driver
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    push_in_thread,
    push_settings,
    read_topic,
    receipts,
    user,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

SCHEMA = "command_id string, device string, mqtt_topic string, payload binary, emitted_at timestamp, qos int"
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    return push_settings(namespaces, mqtt_settings(stack), command_partitions=2)


def options(settings: Settings) -> dict[str, str]:
    return {
        "service.url": settings.pulsar.service_url,
        "admin.url": settings.pulsar.admin_url,
        "namespace": settings.pulsar.namespace,
        "system.namespace": settings.pulsar.system_namespace,
        "partitions": str(settings.pulsar.command_partitions),
    }


def rows(settings: Settings, numbers: range) -> list[tuple[Any, ...]]:
    made = []
    for n in numbers:
        one = command(settings, f"d{n % 4}", n)
        made.append((one.command_id, one.device, one.mqtt_topic, one.payload, AT + timedelta(seconds=n), 1))
    return made


def write(frame: DataFrame, settings: Settings) -> None:
    frame.write.format("pulsebridge_commands").options(**options(settings)).mode("append").save()


def test_a_replayed_batch_is_twice_in_pulsar_and_once_at_the_device(spark: SparkSession, settings: Settings) -> None:
    commands = [command(settings, f"d{n % 4}", n) for n in range(60)]
    frame = (
        spark.createDataFrame(rows(settings, range(60)), SCHEMA)
        .repartition(2, "device")
        .sortWithinPartitions("device", "emitted_at")
    )
    write(frame, settings)  # nothing was provisioned before: the sink does it first
    write(frame, settings)
    assert len(read_topic(settings, COMMANDS_TOPIC)) == 120
    with Devices(settings) as devices, push_in_thread(settings):
        devices.await_all(commands)
        all_acknowledged(settings)
        assert devices.check(commands) == 0
        assert all("repeat" not in user(m) for got in devices.got.values() for m in got)
    for found in receipts(settings).values():
        assert sorted(r.state for r in found) == ["delivered", "duplicate"]


def test_h22_bad_rows_go_to_the_dead_letters_and_the_others_go_on(spark: SparkSession, settings: Settings) -> None:
    topic = command(settings, "d", 0).mqtt_topic
    frame = spark.createDataFrame(
        [
            ("c1", "d", topic, b"1", AT, 1),
            ("c2", "d", topic, b"2", AT - timedelta(seconds=1), 1),
            ("c3", "d", "all/#", b"3", AT, 1),
            (None, "d", topic, b"4", AT, None),
            ("c5", "d", topic, b"5", AT, 7),
            ("c6", "d", topic, b"6", AT, None),
        ],
        SCHEMA,
    ).coalesce(1)
    write(frame, settings)
    assert [m.data() for m in read_topic(settings, COMMANDS_TOPIC)] == [b"1", b"6"]
    reasons = {m.data(): m.properties()[P_DEAD_REASON] for m in read_topic(settings, DEAD_LETTERS_TOPIC)}
    assert set(reasons) == {b"2", b"3", b"4", b"5"}
    assert reasons[b"2"].startswith("row 1 of the task, emitted_at: ")
    with PulsarAdmin(settings.pulsar) as admin, PulsarClient(settings.pulsar) as client:
        replayed = Replayer(client, admin, Selection()).run()
    assert replayed.replayed == {settings.pulsar.system_topic(COMMANDS_TOPIC): 1}, "what was but out of order"
    again = read_topic(settings, COMMANDS_TOPIC)[-1]
    assert again.partition_key() == "d"
    found = decode_command(again.properties(), again.data())
    assert (found.command_id, found.device, found.mqtt_topic, found.payload) == ("c2", "d", topic, b"2")
    assert "mqtt_topic" in reasons[b"3"]
    assert reasons[b"4"] == "row 3 of the task, command_id: is null"
    assert "qos" in reasons[b"5"]


def test_a_schema_that_will_not_do_fails_before_anything_is_written(spark: SparkSession, settings: Settings) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.createDataFrame(rows(settings, range(1)), SCHEMA)
    with pytest.raises(AnalysisException, match="did you mean device"):
        write(frame.withColumnRenamed("device", "devise"), settings)
    with pytest.raises(AnalysisException, match="column payload is string, wanted binary"):
        write(
            frame.selectExpr("command_id", "device", "mqtt_topic", "cast(payload as string) payload"),
            settings,
        )


def test_a_stream_whose_checkpoint_is_lost_gives_no_second_command(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    commands = [command(settings, f"d{n % 4}", n) for n in range(40)]
    source = str(tmp_path / "rows")
    spark.createDataFrame(rows(settings, range(40)), SCHEMA).coalesce(1).write.parquet(source)

    def run(checkpoint: str) -> None:
        frame = spark.readStream.schema(SCHEMA).parquet(source)  # one file is one task, in its order
        query = (
            frame.writeStream.format("pulsebridge_commands")
            .options(**options(settings))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None

    with Devices(settings) as devices:
        run("first")
        with push_in_thread(settings):
            devices.await_all(commands)
            run("first")  # nothing new
            run("second")  # everything again
            all_acknowledged(settings)
        assert len(read_topic(settings, COMMANDS_TOPIC)) == 80
        assert devices.check(commands) == 0
        assert sum(len(got) for got in devices.got.values()) == 40


def test_h21_a_task_tried_again_in_another_order_and_a_driver_killed_before_its_commit(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    commands = [command(settings, f"d{n % 4}", n) for n in range(40)]
    made = spark.createDataFrame(rows(settings, range(40)), SCHEMA).coalesce(1)
    made.write.parquet(str(tmp_path / "rows"))
    killed = subprocess.run(
        [sys.executable, "-m", commands_driver.__name__, str(tmp_path), json.dumps(options(settings))],
        capture_output=True, text=True, timeout=patient(170), check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    checkpoint = tmp_path / "checkpoint"
    assert [path.name for path in (checkpoint / "offsets").glob("[0-9]*")] == ["0"]
    assert not list((checkpoint / "commits").glob("[0-9]*")), "all was written and nothing is committed"
    written = [m.properties()[C_ID] for m in read_topic(settings, COMMANDS_TOPIC)]
    assert (len(written), len(set(written))) == (60, 40), "half by the first try, and all by the second"

    query = (
        spark.readStream.schema(made.schema)
        .parquet(str(tmp_path / "rows"))
        .writeStream.format("pulsebridge_commands")
        .options(**options(settings))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    written = [m.properties()[C_ID] for m in read_topic(settings, COMMANDS_TOPIC)]
    assert len(written) == 100, "the batch was run again"
    assert not read_topic(settings, DEAD_LETTERS_TOPIC)
    with Devices(settings) as devices, push_in_thread(settings):
        devices.await_all(commands)
        all_acknowledged(settings)
        assert devices.check(commands) == 0, "each command once, in its device's order"
        assert sum(len(got) for got in devices.got.values()) == 40


def test_a_value_that_python_has_not_costs_its_row_alone_whatever_the_sessions_zone(
    spark: SparkSession, settings: Settings
) -> None:
    topic = command(settings, "d", 0).mqtt_topic
    frame = spark.range(0, 3, numPartitions=1).selectExpr(
        "concat('c', id) command_id", "cast(if(id = 1, unhex('64fffe'), unhex('64')) as string) device",
        f"'{topic}' mqtt_topic", "cast(cast(id as string) as binary) payload",
        "timestamp_micros(if(id = 2, 1760000000000000000, 1760000000123456)) emitted_at",
    )  # fmt: skip
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "GMT+03:00")  # pyarrow knows none of that name
    try:
        write(frame, settings)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    written = {m.data(): m.properties()[C_EMITTED] for m in read_topic(settings, COMMANDS_TOPIC)}
    assert written == {b"0": "1760000000123456", b"2": "1760000000000000000"}
    (letter,) = read_topic(settings, DEAD_LETTERS_TOPIC)
    assert letter.data() == b"1"
    assert letter.properties()[P_DEAD_REASON].startswith("row 1 of the task, device: b'd\\xff\\xfe' is not UTF-8")

"""Commands that push has delivered, expired or not seen, joined with their receipts in Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import RECEIPTS_TOPIC, Receipt
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from sinks.receipts import with_receipts
from sources.spark_features import spark_features
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    write_commands,
)
from tests.support.stack import mqtt_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

SCHEMA = "command_id string, device string, mqtt_topic string, payload binary, emitted_at timestamp, cause string"
AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


@pytest.mark.long
def test_each_command_is_one_row_with_its_last_state_and_its_times(
    spark: SparkSession, stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=2)
    provision(settings)
    times = [AT + timedelta(seconds=n) for n in range(12)] + [AT + timedelta(hours=3)]
    commands = [
        command(
            settings, f"d{n % 3}", n, emitted_at_us=micros(at), cause=f"because {n}",
            expires_at_ms=1000 if n in (9, 10) else 0,
        )
        for n, at in enumerate(times)
    ]  # fmt: skip
    written = [one for n, one in enumerate(commands) if n != 11]
    with Devices(settings) as devices, push_in_thread(settings):
        write_commands(settings, [*written, *written[:5]])
        devices.await_all(one for n, one in enumerate(commands) if n not in (9, 10, 11))
        all_acknowledged(settings)
        write_commands(settings, [replace(commands[10], command_id="d1-10~2", resend_of="d1-10", expires_at_ms=0)])
        all_acknowledged(settings)

    frame = spark.createDataFrame(
        [(c.command_id, c.device, c.mqtt_topic, c.payload, at, c.cause) for c, at in zip(commands, times, strict=True)],
        SCHEMA,
    ).coalesce(1)
    frame.write.parquet(str(tmp_path / "commands"))
    given = {
        "service.url": settings.pulsar.service_url, "admin.url": settings.pulsar.admin_url,
        "topic": settings.pulsar.system_topic(RECEIPTS_TOPIC),
    }  # fmt: skip
    receipts = spark.read.format("pulsebridge").options(**given).load()
    found = {row.command_id: row for row in with_receipts(frame.union(frame.limit(1)), receipts).collect()}
    assert len(found) == len(commands)
    check(found, commands, times)
    assert sorted(row.copies for row in found.values()) == [1] * 12 + [2]

    stream = with_receipts(
        spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "commands")),
        spark.readStream.format("pulsebridge")
        .options(**given, predefinedSubscription="receipts", startingOffsets="earliest")
        .load(),
    )
    followed = str(tmp_path / "followed")
    query = stream.writeStream.format("parquet").option("path", followed).outputMode("append")
    # Else the rows would come with the next batch that has data.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    folder = str(tmp_path / "checkpoint")
    try:
        for again in range(1 if spark_features().limits else 2):
            if again:  # where Spark takes all in one batch, what the watermark has passed comes with further data
                frame.where(f"command_id = '{commands[-1].command_id}'").write.mode("append").parquet(
                    str(tmp_path / "commands")
                )
            started = query.option("checkpointLocation", folder).trigger(availableNow=True).start()
            assert started.awaitTermination(150)
            assert started.exception() is None
    finally:
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    rows = spark.read.parquet(followed).collect()
    assert len(rows) == 12, "all but the newest, once"
    check({row.command_id: row for row in rows}, commands[:12], times)
    assert stream.dtypes == with_receipts(frame, receipts).dtypes


def check(found: dict[str, Any], commands: list[Any], times: list[datetime]) -> None:
    for n, one in enumerate(commands):
        row = found[one.command_id]
        assert (row.device, row.mqtt_topic, row.cause) == (one.device, one.mqtt_topic, one.cause)
        assert row.emitted_at == times[n].astimezone().replace(tzinfo=None)
        # The tenth expired as well, and so did its resent copy.
        state = {9: "expired", 11: None}.get(n, "delivered")
        assert (row.state, row.receipts) == (state, 2 if n < 5 or n == 10 else 0 if n == 11 else 1)
        if state == "delivered":
            assert row.attempts == 1
            assert row.pushed_at <= row.confirmed_at
        else:
            assert row.confirmed_at is None or state == "expired"


COMMANDS = "command_id string, device string, group string, payload binary, emitted_at timestamp"
PLACES = "value binary, ledger_id bigint, entry_id bigint, batch_index int"


def row_of(entry: int, state: str, one: str, device: str, at: datetime | None, of: str = "") -> tuple[Any, ...]:
    emitted = 0 if at is None else micros(at)
    written = Receipt(one, device, "t", state, emitted_at_us=emitted, resend_of=of)
    return (written.encode(), 1, entry, 0)


@pytest.mark.long
def test_a_stream_has_the_rows_of_a_batch_however_far_its_receipts_are_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    early, late, last = AT, AT + timedelta(hours=5), AT + timedelta(hours=9)
    commands = [
        [
            ("reboot", "d1", None, b"x", early),
            ("reboot", "d2", None, b"x", early),
            ("g", None, "all", b"x", early),
        ],
        [("before", "d1", None, b"x", early)],  # Spark drops what is late of the batch after the next one on
        [("again", "d1", None, b"x", early + timedelta(seconds=1)), ("timeless", "d1", None, b"x", None)],
        [("end", "d1", None, b"x", last)],
    ]
    receipts = [
        [row_of(1, "expired", "reboot", "d1", early), row_of(2, "delivered", "reboot", "d2", early),
         row_of(3, "expanded", "g", "", early), row_of(4, "delivered", "far", "d1", late)],
        [row_of(9, "delivered", "before", "d1", early)],
        [row_of(5, "expired", "again", "d1", early + timedelta(seconds=1)),
         row_of(6, "delivered", "again~2", "d1", late, "again"), row_of(7, "delivered", "timeless", "d1", None)],
        [row_of(8, "delivered", "end", "d1", last)],
    ]  # fmt: skip

    def stored(name: str, parts: list[list[tuple[Any, ...]]], schema: str) -> tuple[DataFrame, DataFrame]:
        folder = str(tmp_path / name)
        for part in parts:
            spark.createDataFrame(part, schema).coalesce(1).write.mode("append").parquet(folder)
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(folder)
        return spark.read.schema(schema).parquet(folder), stream

    commands_in, commands_of = stored("commands", commands, COMMANDS)
    receipts_in, receipts_of = stored("receipts", receipts, PLACES)
    of_batch = {(r.command_id, r.device): r for r in with_receipts(commands_in, receipts_in).collect()}
    assert {key: (r.state, r.receipts, r.emitted_at is None) for key, r in of_batch.items()} == {
        ("reboot", "d1"): ("expired", 1, False),
        ("reboot", "d2"): ("delivered", 1, False),
        ("g", None): ("expanded", 1, False),
        ("before", "d1"): ("delivered", 1, False),
        ("again", "d1"): ("delivered", 2, False),
        ("timeless", "d1"): ("delivered", 1, True),
        ("end", "d1"): ("delivered", 1, False),
    }
    found = str(tmp_path / "found")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    try:
        query = (
            with_receipts(commands_of, receipts_of, within_s=3600)
            .writeStream.format("parquet")
            .option("path", found)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)
        assert query.exception() is None
    finally:
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    of_stream = {(r.command_id, r.device): r for r in spark.read.parquet(found).collect()}
    del of_batch["end", "d1"]  # it is followed yet
    assert of_stream == of_batch

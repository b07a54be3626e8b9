"""Groups from Spark: members and commands written by DataFrames, receipts counted by group."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from bridge.contract import GROUP_COMMANDS_TOPIC, GROUP_MEMBERS_TOPIC, RECEIPTS_TOPIC, Receipt
from bridge.contract.groups import member_of
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from sinks.receipts import by_group, with_receipts
from tests.support.groups import entries, group_command
from tests.support.push import Devices, all_acknowledged, push_in_thread, push_settings, read_topic
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

NAMES = ["d1", "d2", "d3"]
COMMANDS = "command_id string, device string, group string, mqtt_topic string, payload binary, emitted_at timestamp"


def test_spark_writes_members_and_a_command_and_counts_who_got_it(
    spark: SparkSession, stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    options = {
        "service.url": settings.pulsar.service_url,
        "admin.url": settings.pulsar.admin_url,
        "namespace": settings.pulsar.namespace,
        "system.namespace": settings.pulsar.system_namespace,
        "partitions": "1",
    }
    members = [("fleet", name, True) for name in [*NAMES, "gone"]] + [("fleet", "gone", False)]
    frame = spark.createDataFrame(members, "group string, device string, member boolean").coalesce(1)
    frame.write.format("pulsebridge_groups").options(**options).mode("append").save()
    stored = [member_of(m.partition_key(), m.data()) for m in read_topic(settings, GROUP_MEMBERS_TOPIC)]
    assert stored == members

    one = group_command(settings, 1, "fleet")
    at = datetime.now(timezone.utc)
    rows = [
        (one.command_id, None, "fleet", one.mqtt_topic, bytearray(one.payload), at),
        ("own", "d1", None, one.mqtt_topic.replace("{device}", "d1"), bytearray(b"own"), at),
        ("bad", "d1", "fleet", one.mqtt_topic, bytearray(b"bad"), at),
    ]
    commands = spark.createDataFrame(rows, COMMANDS).coalesce(1)
    for _ in range(2):  # a replayed batch
        commands.write.format("pulsebridge_commands").options(**options).mode("append").save()
    assert len(read_topic(settings, GROUP_COMMANDS_TOPIC)) == 2
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        again = metrics.counters["group_commands"].labels("duplicate")
        devices.await_all(entries(one, NAMES))
        all_acknowledged(settings)
        poll_for(lambda: again._value.get() == 1, 30, "the copy of the group command")
        assert {name: len(got) for name, got in devices.got.items()} == {"d1": 2, "d2": 1, "d3": 1}

    given = {name: options[name] for name in ("service.url", "admin.url")}
    given["topic"] = settings.pulsar.system_topic(RECEIPTS_TOPIC)
    receipts = spark.read.format("pulsebridge").options(**given).load()
    joined = {r.command_id: r for r in with_receipts(commands, receipts).collect()}
    assert (joined[one.command_id].state, joined[one.command_id].group) == ("expanded", "fleet")
    assert joined[one.command_id].receipts == 2, "of the copy as well"
    assert joined["own"].state == "delivered"
    counts = {(r.group_command_id, r.state): r.devices for r in by_group(receipts).collect()}
    assert counts == {(one.command_id, "delivered"): 3}


def test_a_member_that_got_its_command_again_counts_once_by_the_last_copy(spark: SparkSession) -> None:
    group = {"group": "fleet", "group_command_id": "fleet-1"}
    rows = [
        *(Receipt(f"g-{name}", name, "t", "expired", **group) for name in NAMES),
        Receipt("g-d1~2", "d1", "t", "delivered", resend_of="g-d1"),
        Receipt("g-d2~2", "d2", "t", "rejected", resend_of="g-d2", **group),  # as earlier releases wrote it
        Receipt("g-d2~3", "d2", "t", "delivered", resend_of="g-d2"),
        Receipt("g-d2~3", "d2", "t", "duplicate", resend_of="g-d2"),
        Receipt("g-own~2", "d3", "t", "delivered", resend_of="g-own"),  # called so by its writer
        Receipt("fleet-1", "", "t", "expanded", members=3, **group),
    ]
    frame = spark.createDataFrame(
        [(bytearray(one.encode()), 1, entry, 0) for entry, one in enumerate(rows)],
        "value binary, ledger_id bigint, entry_id bigint, batch_index int",
    )
    counts = {(r.group, r.group_command_id, r.state): r.devices for r in by_group(frame).collect()}
    assert counts == {("fleet", "fleet-1", "delivered"): 2, ("fleet", "fleet-1", "expired"): 1}

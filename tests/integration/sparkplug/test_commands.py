"""Commands written from rows with metric names, and requests for births, on real Pulsar, Spark and Delta."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import COMMANDS_TOPIC, DEAD_LETTERS_TOPIC
from bridge.contract.commands import Command, decode_command
from sparkplug.commands import commands
from sparkplug.schema import Payload
from streaming import pipelines as dp
from streaming.tables import create
from tests.support.pulsar_topics import TestTopic
from tests.support.push import read_topic
from tests.support.sparkplug_node import EdgeNode
from tests.support.sparkplug_plant import Plant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark, pytest.mark.thorough]

_ORDERS = "command_id string, device string, device_id string, metric string, value string, emitted_at timestamp"


def written(plant: Plant) -> list[tuple[Command, Any]]:
    """Return the commands in Pulsar with their payloads."""
    found = [decode_command(m.properties(), m.data()) for m in read_topic(plant.settings, COMMANDS_TOPIC)]
    return [(one, Payload.FromString(one.payload)) for one in found]


def order(plant: Plant, *rows: tuple[Any, ...]) -> None:
    """Append rows to a table of orders."""
    from pyspark.sql.types import StructType

    from streaming.tables import table_of

    table = table_of("orders", plant.settings.streaming)
    create(plant.spark, table, StructType.fromDDL(_ORDERS))
    made = plant.spark.createDataFrame([(*row, None) for row in rows], _ORDERS)
    table.append(made.withColumn("emitted_at", made.emitted_at).coalesce(1))


@pytest.mark.tck(
    "tck-id-operational-behavior-data-commands-dcmd-metric-name",
    "tck-id-operational-behavior-data-commands-dcmd-verb",
    "tck-id-operational-behavior-data-commands-ncmd-metric-name",
    "tck-id-operational-behavior-data-commands-ncmd-verb", "tck-id-payloads-dcmd-retain",
    "tck-id-payloads-ncmd-retain", "tck-id-topic-structure-namespace-device-id-associated-message-types",
    "tck-id-topic-structure-namespace-device-id-non-associated-message-types", "tck-id-topics-dcmd-payload",
    "tck-id-topics-dcmd-timestamp", "tck-id-topics-dcmd-topic", "tck-id-topics-ncmd-payload",
    "tck-id-topics-ncmd-timestamp", "tck-id-topics-ncmd-topic",
)  # fmt: skip
def test_commands_name_metrics_and_the_births_give_alias_and_type(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    node = EdgeNode("G 1/N", [("speed", "Int32", "1"), ("on", "Boolean", "false"), ("note", "String", "x")])
    plant = Plant(spark, topic, tmp_path / "lakehouse")
    plant.send([node.birth(), node.device_birth("D")])
    order(plant)

    def orders() -> None:
        @dp.commands
        def writes() -> DataFrame:
            return commands(dp.read_stream("orders"))

    plant.more = orders
    plant.run("sparkplug_metrics", "sparkplug_definitions")
    before_ms = time.time_ns() // 1_000_000
    order(
        plant,
        ("c1", "G 1/N", None, "speed", "-7"), ("c2", "G 1/N", "D", "on", "true"), ("c3", "G 1/N", "", "note", None),
        ("c4", "G 1/N", None, "Node Control/Rebirth", "true"), ("c5", "G 1/N", None, "unknown", "1"),
        ("c6", "G 1/N", "D", "speed", "fast"), ("c7", "X/Y", None, "Node Control/Rebirth", "true"),
    )  # fmt: skip
    plant.run("writes")
    found = {command.command_id: (command, payload) for command, payload in written(plant)}
    assert {name: command.mqtt_topic for name, (command, _) in found.items()} == {
        "c1": "spBv1.0/G 1/NCMD/N", "c2": "spBv1.0/G 1/DCMD/N/D", "c3": "spBv1.0/G 1/NCMD/N", "c4": "spBv1.0/G 1/NCMD/N",
        "c7": "spBv1.0/X/NCMD/Y",
    }  # fmt: skip
    assert {command.device for command, _ in found.values()} == {"G 1/N", "X/Y"}
    metrics = {name: payload.metrics[0] for name, (_, payload) in found.items()}
    assert (metrics["c1"].alias, metrics["c1"].HasField("name"), metrics["c1"].int_value) == (100, False, 2**32 - 7)
    assert (metrics["c2"].alias, metrics["c2"].boolean_value) == (1001, True)
    assert (metrics["c3"].alias, metrics["c3"].is_null) == (102, True)
    assert (metrics["c4"].name, metrics["c4"].boolean_value) == ("Node Control/Rebirth", True)
    for command, payload in found.values():
        assert not payload.HasField("seq")
        assert payload.timestamp >= before_ms
        assert not command.retain
    letters = [message.properties() for message in read_topic(plant.settings, DEAD_LETTERS_TOPIC)]
    causes = {one["command.id"]: one["command.cause"] for one in letters}
    assert "no birth defines its data type" in causes["c5"]
    assert "'fast'" in causes["c6"]


@pytest.mark.tck(
    "tck-id-operational-behavior-data-commands-ncmd-rebirth-name",
    "tck-id-operational-behavior-data-commands-ncmd-rebirth-value",
    "tck-id-operational-behavior-data-commands-ncmd-rebirth-verb",
)  # fmt: skip
def test_a_gap_requests_births_once_in_the_period_and_an_old_gap_does_not(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    plant = Plant(spark, topic, tmp_path / "lakehouse")
    plant.rebirth_s = 600.0
    old, new = EdgeNode("G/old"), EdgeNode("G/new")
    new.now_ms = time.time_ns() // 1_000_000 - 60_000
    sent = [old.birth(), new.birth()]
    for node in (old, new):
        node.data("1")  # lost
        sent += [node.data("2"), node.data("3")]
        node.data("1")  # lost
        sent.append(node.data("4"))
    plant.send(sent)
    plant.run("sparkplug_metrics", "sparkplug_events", "sparkplug_rebirths")
    ((command, payload),) = written(plant)
    assert (command.device, command.mqtt_topic) == ("G/new", "spBv1.0/G/NCMD/new")
    (metric,) = payload.metrics
    assert (metric.name, metric.boolean_value, payload.HasField("seq")) == ("Node Control/Rebirth", True, False)
    assert command.expires_at_ms == sent[5].at_ms + 600_000
    assert command.cause == "sparkplug rebirth: gap"
    plant.run("sparkplug_events", "sparkplug_rebirths")
    assert len(written(plant)) == 1
    marks = plant.rows("sparkplug_metrics", "device", "mark", "value")
    assert [mark for device, mark, _ in marks if device == "G/new"][3:] == ["gap", "gap", "gap"]

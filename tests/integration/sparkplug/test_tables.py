"""The tables on real Pulsar, Spark and Delta: cut into batches, across restarts, a rebuild and a deletion."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkplug.nodes import Births, NodeState
from sparkplug.rows import METRIC_ROW, Message, event_rows, metric_rows, node_of
from streaming.upkeep import Upkeep
from tests.support.pulsar_topics import TestTopic
from tests.support.sparkplug_node import EdgeNode, Sent, hour, in_log
from tests.support.sparkplug_plant import Plant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.stack, pytest.mark.spark]

EVERY_US = 60_000_000
_METRIC = (
    "device",
    "device_id",
    "message_type",
    "seq",
    "bd_seq",
    "mark",
    "metric",
    "datatype",
    "value",
    "integer",
    "truth",
)


def expected(sent: list[Sent]) -> tuple[list[tuple[Any, ...]], int, list[tuple[Any, ...]]]:
    """Return the good rows of metrics, the number of faults, and the events, by one pass over the whole log."""
    nodes: dict[str, list[Message]] = {}
    for one in in_log(sent):
        nodes.setdefault(node_of(one.mqtt_topic) or "", []).append(one)
    names = [name for name, _ in METRIC_ROW]
    found, events = [], []
    for messages in nodes.values():
        found += metric_rows(NodeState(), Births({}), messages, EVERY_US)
        events += event_rows(NodeState(), messages, EVERY_US)
    entry, element, fault = names.index("entry"), names.index("element"), names.index("_fault")
    found.sort(key=lambda row: (row[entry], row[element]))
    events.sort(key=lambda row: (row[entry], row[element]))
    good = [tuple(row[names.index(name)] for name in _METRIC) for row in found if row[fault] is None]
    return good, sum(row[fault] is not None for row in found), [(row[0], *row[-3:]) for row in events]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_batches_restarts_and_a_rebuild_give_the_rows_of_one_pass(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    sent = hour(176, 140)
    plant = Plant(spark, topic, tmp_path / "lakehouse", trigger={"max_rows": 60})
    plant.send(sent[:97])
    plant.run("sparkplug_metrics", "sparkplug_events")
    plant.send(sent[97:])
    plant.run("bronze", "sparkplug_metrics", "sparkplug_events")
    good, faults, events = expected(sent)
    assert {row[_METRIC.index("mark")] for row in good} == {None, "gap", "unborn", "repeat", "stale"}

    def check() -> None:
        assert plant.rows("sparkplug_metrics", *_METRIC) == good
        assert plant.rows("sparkplug_events", "device", "event", "device_id", "detail") == events
        assert plant.rows("quarantine", "`table`") == [("sparkplug_metrics",)] * faults

    check()
    assert faults > 0
    # A rebuild of the rows since then needs the births before them.
    since = datetime.fromtimestamp(sent[30].at_ms / 1000, timezone.utc).isoformat()
    upkeep = Upkeep(plant.job(), patience_s=2)
    upkeep.settle(upkeep.ask("rebuild", "sparkplug_metrics", since=since))
    upkeep.settle(upkeep.ask("rebuild", "sparkplug_events"))
    check()
    last = {
        (device, device_id or ""): event for device, event, device_id, _ in events if event in ("online", "offline")
    }
    presence = plant.rows("sparkplug_presence", "device", "device_id", "online")
    assert {row[:2]: row[2] for row in presence} == {key: event == "online" for key, event in last.items()}


@pytest.mark.thorough
def test_a_driver_that_is_killed_between_its_state_and_the_table_gives_the_rows_of_one_pass(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    sent = hour(176, 140)
    flow = "sparkplug_metrics"
    plant = Plant(spark, topic, tmp_path / "lakehouse")
    plant.send(sent[:97])
    plant.run(flow)
    before = plant.rows(flow, *_METRIC)
    plant.send(sent[97:])
    checkpoint = tmp_path / "lakehouse" / "checkpoints" / flow
    plant.run_killed_at("table.validated", flow)
    assert list(checkpoint.glob("state/0/*/**/2*.changelog")), "the state of the second batch"
    assert not (checkpoint / "commits" / "1").exists()
    assert plant.rows(flow, *_METRIC) == before
    plant.run(flow)
    good, faults, _ = expected(sent)
    assert plant.rows(flow, *_METRIC) == good
    assert len(plant.rows("quarantine", "payload")) == faults


def documented(plant: Plant) -> DataFrame:
    """Return the result of the query in docs/guides/sparkplug.md."""
    text = (Path(__file__).parents[3] / "docs/guides/sparkplug.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for table in ("sparkplug_metrics", "sparkplug_presence"):
        query = query.replace(f"{table} ", f"delta.`{plant.settings.streaming.root}/{table}` ")
    return plant.spark.sql(query)


@pytest.mark.tck(
    "tck-id-operational-behavior-edge-node-termination-host-action-ddeath-devices-tags-stale",
    "tck-id-operational-behavior-edge-node-termination-host-action-ndeath-devices-tags-stale",
    "tck-id-operational-behavior-edge-node-termination-host-action-ndeath-node-tags-stale",
)  # fmt: skip
def test_times_definitions_stale_metrics_and_a_device_that_is_forgotten(
    spark: SparkSession, topic: TestTopic, tmp_path: Path
) -> None:
    one, other = EdgeNode("G/A", [("temp", "Double", "1"), ("at", "DateTime", "1767225600000")]), EdgeNode("G/B")
    sent = [
        one.birth(),
        other.birth(),
        one.device_birth("D"),
        one.data("2"),
        one.device_data("D", "3"),
        other.data("4"),
        one.death(),
    ]
    plant = Plant(spark, topic, tmp_path / "lakehouse")
    plant.send(sent)
    plant.run()
    rows = plant.rows(
        "sparkplug_metrics", "device", "metric", "value", "unix_millis(event_time)", "unix_millis(time)", "alias"
    )
    born = [row for row in rows if row[1] == "at"]
    assert born[0][4] == 1_767_225_600_000
    assert [(row[0], row[2]) for row in rows if row[3] == sent[5].at_ms and row[0] == "G/B"] == [("G/B", 4.0)]
    definitions = plant.rows("sparkplug_definitions", "device", "device_id", "metric", "CAST(alias AS INT)", "datatype")
    assert sorted(row for row in definitions if row[2] in ("temp", "at")) == [
        ("G/A", "", "at", 101, "DateTime"), ("G/A", "", "temp", 100, "Double"), ("G/A", "D", "at", 1001, "DateTime"),
        ("G/A", "D", "temp", 1000, "Double"), ("G/B", "", "temp", 100, "Double"),
    ]  # fmt: skip
    presence = plant.rows("sparkplug_presence", "device", "device_id", "online")
    assert sorted(presence) == [("G/A", "", False), ("G/A", "D", False), ("G/B", "", True)]
    stale = {
        (row["device"], row["device_id"] or "", row["metric"]): row["stale"] for row in documented(plant).collect()
    }
    assert stale["G/A", "", "temp"] is stale["G/A", "D", "at"] is stale["G/A", "D", "temp"] is True
    assert stale["G/B", "", "temp"] is False
    upkeep = Upkeep(plant.job(), patience_s=2)
    upkeep.settle(upkeep.ask("forget", device="G/A"))
    assert {
        row[0]
        for table in ("sparkplug_metrics", "sparkplug_events", "sparkplug_presence")
        for row in plant.rows(table, "device")
    } == {"G/B"}

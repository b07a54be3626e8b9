"""The query alerts on real Spark state: the same commands after a crash, in order for each device."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.contract import COMMAND_COLUMNS
from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from streaming import alerts, bronze, silver
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import load_decoders
from streaming.predicates import load_suite
from streaming.rules import command_id, load_rules
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class World:
    """Bronze to silver by the real query; alerts into a Delta table that keeps every emission."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.tables = Tables.of(StreamingSettings(root=str(root)))
        bronze.create_tables(spark, self.tables)
        silver.create_tables(spark, self.tables)

    def arrive(self, messages: Iterable[Message]) -> None:
        bronze_rows.append(self.spark, self.tables, messages)
        recipe = silver.recipe_of(
            load_decoders(conf_path("rules.yaml")), load_suite(conf_path("expectations/silver.json")), 600.0
        )
        batches = silver.SilverBatches(
            self.tables, Checkpoint(self.spark, self.tables.checkpoint("silver")), recipe
        )
        silver.query(self.spark, self.tables, batches).trigger(availableNow=True).start().awaitTermination()

    def judge(self) -> list[dict[str, Any]]:
        """Run alerts over what is new and return the emissions of this run, in order."""
        out = str(self.root / "emitted" / str(len(list((self.root / "emitted").glob("*")))))
        found = alerts.commands(
            self.tables.silver.read_stream(self.spark), load_rules(conf_path("rules.yaml"))
        )
        assert [(f.name, f.dataType.simpleString()) for f in found.schema.fields] == list(COMMAND_COLUMNS)

        def keep(rows: Any, batch: int) -> None:
            rows.write.mode("append").parquet(out)

        query = found.writeStream.foreachBatch(keep).option(
            "checkpointLocation", self.tables.checkpoint("alerts")
        )
        query.trigger(availableNow=True).start().awaitTermination()
        if not Path(out).exists():
            return []
        return [r.asDict() for r in self.spark.read.parquet(out).collect()]

    def forget_last_commit(self) -> None:
        commits = Path(self.tables.checkpoint("alerts")) / "commits"
        last = max(int(f.name) for f in commits.glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)


def test_h19_redelivery_and_a_batch_run_again_give_the_same_commands(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path)
    low = reading(3, "a", 3, 60)
    world.arrive([reading(1, "a", 1, 90), reading(2, "a", 2, 85), low, reading(4, "b", 1, 100)])
    first = world.judge()
    expected = [command_id(rule, "a", "a-3") for rule in ("glucose-falling", "glucose-low")]
    assert [c["command_id"] for c in first] == expected
    body = json.loads(bytes(first[1]["payload"]))
    assert (body["rule"], body["value"], body["device"]) == ("glucose-low", 60.0, "a")
    assert (first[0]["mqtt_topic"], first[0]["qos"], first[0]["retain"]) == ("devices/a/commands", 1, False)
    assert first[0]["expires_at"] > first[0]["emitted_at"]

    world.forget_last_commit()  # as after a crash between the sink and the commit of the batch
    again = world.judge()
    assert [(c["command_id"], bytes(c["payload"])) for c in again] == [
        (c["command_id"], bytes(c["payload"])) for c in first
    ]

    # the low reading comes again (QoS 1), with one that is still low, and a device that takes no commands
    silent = [reading(7, "c", 1, 50, command_topic=None)]
    world.arrive([Message(5, "a", low.payload), reading(6, "a", 4, 55), *silent])
    assert world.judge() == []
    # state outlived the restarts: back above the limit and below again
    world.arrive([reading(9, "a", 6, 69), reading(8, "a", 5, 75)])
    assert [c["command_id"] for c in world.judge()] == [command_id("glucose-low", "a", "a-6")]

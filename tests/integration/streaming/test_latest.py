"""The latest state on real Spark and Delta: what counts does not depend on the batches, nor on what is run again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.checkpoints import Checkpoint

from bridge.settings import StreamingSettings
from streaming import bronze, device_changes, latest, silver
from streaming.tables import Tables
from tests.support import silver_rows
from tests.support.device_messages import Commanded, DeviceTopics, Seen, Told, latest_of
from tests.support.silver_rows import AT, Silver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Crash(Exception):
    """Stands for the end of a driver between two steps; the query stops as it would."""


@dataclass
class World:
    """The tables of one test, and runs of the query over what silver and the topics hold."""

    spark: SparkSession
    tables: Tables
    topics: DeviceTopics
    written: list[int] = field(default_factory=list)

    def run(self, cut_after: str = "") -> None:
        def after(step: str) -> None:
            if step == cut_after:
                raise Crash(step)

        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("latest"))
        count: Callable[[str, int], object] = lambda table, rows: self.written.append(rows)  # noqa: E731
        batches = latest.LatestBatches(self.tables, checkpoint, after, count)
        readings = device_changes.of_silver(self.tables.silver.read_stream(self.spark))
        changes = readings.unionByName(device_changes.of_topics(self.topics.stream()))
        writer = latest.query(changes, self.tables, batches)
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self) -> list[tuple[Any, ...]]:
        seen = f"unix_seconds(presence.seen_at) - {int(AT.timestamp())}"
        rows = self.tables.device_latest.read(self.spark).selectExpr(
            "device", "metric", "reading_id", "command.command_id", "receipt.state", seen
        )
        return sorted((tuple(row) for row in rows.collect()), key=str)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    tables = Tables.of(StreamingSettings(root=str(tmp_path / "lakehouse")))
    bronze.create_tables(spark, tables)
    silver.create_tables(spark, tables)
    latest.create_table(spark, tables)
    return World(spark, tables, DeviceTopics(spark, tmp_path / "topics"))


@pytest.mark.long
def test_whatever_order_batches_come_in_and_wherever_they_are_cut_the_newest_of_each_counts(
    world: World,
) -> None:
    dice = random.Random(7)
    readings = [
        Silver(
            f"r{n}",
            dice.choice("ab"),
            dice.randrange(12),
            float(n),
            dice.choice(("glucose", "pulse")),
            entry=n,
        )
        for n in range(40)
    ]
    commands = [
        Commanded(n, f"c{n}", dice.choice("abc"), dice.choice((None, dice.randrange(20)))) for n in range(20)
    ]
    states = ("delivered", "duplicate", "expired")
    told = [Told(100 + n, dice.choice(commands), dice.choice(states)) for n in range(40)]
    seen = [Seen(200 + n, dice.choice("abcd"), dice.choice((None, n, 50 - n))) for n in range(20)]
    messages: list[Commanded | Told | Seen] = [*commands, *told, *seen]
    wanted = sorted(latest_of(readings, messages), key=str)
    assert {row[1] for row in wanted} == {"glucose", "pulse", None}

    dice.shuffle(readings)
    dice.shuffle(messages)  # a receipt may be read before its command
    for part in range(3):
        if part:  # at first nothing but what the topics tell
            silver_rows.append(world.spark, world.tables, readings[part - 1 :: 2])
        world.topics.append(messages[part::3])
        for step in ("changes", "merged") if part == 1 else ():
            with pytest.raises(Exception, match=step):
                world.run(step)
        world.run()
    assert world.rows() == wanted

    kept = world.written.copy()
    shutil.rmtree(world.tables.checkpoint("latest"))  # all is read again, as batches that nobody knows
    world.run()
    assert world.rows() == wanted
    assert set(world.written[len(kept) :]) == {0}


def test_a_reading_brings_its_times_and_what_cannot_be_read_changes_nothing(world: World) -> None:
    silver_rows.append(
        world.spark,
        world.tables,
        [
            Silver("x", "", 0, 1.0, fields={"device": None}),
            Silver("y", "a", 5, 2.5),
            Silver("z", "a", 4, 9.0),
        ],
    )
    world.run()
    (row,) = world.tables.device_latest.read(world.spark).collect()
    times = [row[n] for n in ("event_time", "sent_at", "arrival_time", "publish_time", "processed_at")]
    assert [int(t.timestamp() - times[0].timestamp()) for t in times] == [0, 1, 2, 3, 4]
    assert (row["device"], row["metric"], row["value"], row["reading_id"]) == ("a", "glucose", 2.5, "y")
    assert (row["presence"], row["command"], row["receipt"]) == (None, None, None)

    good = Commanded(1, "c1", "a", None)
    spoiled = [Told(2, good, "delivered"), Seen(3, "a", 7), Commanded(4, "c2", "a", 9)]
    bad = [{**m.row(), "value": bytearray(b"\xff{"), "__messageProperties": {}} for m in spoiled]
    world.topics.append([good])
    world.topics.append_rows(bad)
    world.run()
    (row,) = world.tables.device_latest.read(world.spark).collect()
    assert (row["command"]["command_id"], row["command"]["qos"]) == ("c1", 1)
    assert row["command"]["mqtt_topic"] == "devices/a/commands"
    assert (row["presence"], row["receipt"]) == (None, None)

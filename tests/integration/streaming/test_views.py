"""Views follow their tables: late rows, deletions and corrections included; the newest row of a key never goes back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streaming import pipelines as dp
from tests.support.pipelines import PipelineWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark]

READINGS = "device string, at timestamp, value double, n int"
HOURLY = ("device", "hour", "readings", "total")


def hourly(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    hour = F.date_trunc("hour", "at").alias("hour")
    return rows.groupBy("device", hour).agg(F.count("*").alias("readings"), F.sum("value").alias("total"))


def declare_hourly() -> None:
    @dp.materialized_view(name="hourly", keys=["device", "hour"], within=("at", "1 hour"), cluster_by=["device"])
    def view() -> DataFrame:
        return hourly(dp.read("source"))


def declare_newest() -> None:
    dp.create_streaming_table("newest", schema=READINGS)
    dp.create_auto_cdc_flow("newest", "source", ["device"], "struct(at, n)")


def reading(device: str | None, minute: int, value: float, n: int = 0) -> tuple[Any, ...]:
    from datetime import datetime, timedelta

    return (device, datetime(2026, 1, 1) + timedelta(minutes=minute), value, n)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_view_is_what_its_function_gives_after_any_changes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    world = PipelineWorld(spark, tmp_path)
    devices = ["a", "b", "c", None]
    for _ in range(4):
        rows = [
            reading(draw.choice(devices), draw.randrange(300), float(draw.randrange(9)))
            for _ in range(draw.randrange(1, 9))
        ]
        world.fill("source", rows, READINGS)
        kind = draw.randrange(3)
        if kind == 0:
            spark.sql(f"DELETE FROM {world.table('source').sql} WHERE device = '{draw.choice('abc')}'")
        elif kind == 1:
            spark.sql(f"UPDATE {world.table('source').sql} SET value = value + 1 WHERE minute(at) < 20")
        world.run(declare_hourly)
        wanted = hourly(world.table("source").read(spark)).select(*HOURLY).collect()
        assert world.rows("hourly", *HOURLY) == sorted((tuple(r) for r in wanted), key=repr)


def test_a_late_reading_corrects_its_window_alone(spark: SparkSession, tmp_path: Path) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [reading("a", 5, 1.0), reading("a", 65, 2.0), reading("b", 5, 3.0)], READINGS)
    world.run(declare_hourly)
    before = world.table("hourly").read(spark).count()
    world.fill("source", [reading("a", 6, 10.0)], READINGS)
    world.run(declare_hourly)
    found = {(d, h.hour): (n, t) for d, h, n, t in world.rows("hourly", *HOURLY)}
    assert found == {("a", 0): (2, 11.0), ("a", 1): (1, 2.0), ("b", 0): (1, 3.0)}
    assert before == 3
    changed = spark.sql(f"DESCRIBE HISTORY {world.table('hourly').sql}").where("operation = 'MERGE'")
    assert changed.orderBy("version").collect()[-1]["operationMetrics"]["numTargetRowsUpdated"] == "1"


@pytest.mark.thorough
def test_the_newest_row_of_a_key_counts_in_whatever_order_they_come(spark: SparkSession, tmp_path: Path) -> None:
    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [reading("a", 9, 9.0, 1), reading("b", 1, 1.0, 1)], READINGS)
    world.run(declare_newest)
    world.fill("source", [reading("a", 5, 5.0, 2), reading("b", 2, 2.0, 2), reading("c", 1, 1.0)], READINGS)
    world.run(declare_newest)
    world.run(declare_newest)
    assert world.rows("newest", "device", "value") == [("a", 9.0), ("b", 2.0), ("c", 1.0)]


@pytest.mark.thorough
def test_a_view_of_a_view_follows_it(spark: SparkSession, tmp_path: Path) -> None:
    def declare() -> None:
        declare_hourly()

        @dp.materialized_view(name="total", keys=["device"])
        def view() -> DataFrame:
            from pyspark.sql import functions as F

            return dp.read("hourly").groupBy("device").agg(F.sum("readings").alias("readings"))

    world = PipelineWorld(spark, tmp_path)
    world.fill("source", [reading("a", 5, 1.0), reading("a", 65, 2.0), reading("b", 5, 3.0)], READINGS)
    world.run(declare)
    world.fill("source", [reading("a", 7, 1.0)], READINGS)
    spark.sql(f"DELETE FROM {world.table('source').sql} WHERE device = 'b'")
    world.run(declare)
    assert world.rows("total") == [("a", 3)]

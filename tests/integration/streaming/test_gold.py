"""Gold on real Spark and Delta: each reading in one window or late, once, whatever is cut and run again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import load_decoders
from streaming.predicates import load_suite

from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from streaming import bronze, gold, silver
from streaming.tables import Tables
from tests.support import bronze_rows, silver_rows
from tests.support.bronze_rows import ARRIVAL, reading
from tests.support.gold_driver import DELAY_S, WINDOW_S
from tests.support.silver_rows import GoldModel, Silver
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Crash(Exception):
    """Stands for the end of a driver between two steps; the query stops as it would."""


def cut_after(step: str) -> Callable[[str], None]:
    def cut(done: str) -> None:
        if done == step:
            raise Crash(step)

    return cut


@dataclass
class World:
    """The tables of one test, and runs of gold over what silver holds."""

    spark: SparkSession
    tables: Tables
    written: dict[str, int] = field(default_factory=dict)

    def run(self, after: Callable[[str], None] = lambda step: None, *, window_s: int = WINDOW_S) -> None:
        def count(table: str, rows: int) -> None:
            self.written[table] = self.written.get(table, 0) + rows

        recipe = gold.recipe_of(StreamingSettings(gold_window_s=window_s))
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("gold"))
        batches = gold.GoldBatches(self.tables, checkpoint, recipe, after, count)
        writer = gold.query(self.spark, self.tables, DELAY_S, batches)
        writer.trigger(availableNow=True).start().awaitTermination()

    def batch(self, readings: Iterable[Silver]) -> None:
        silver_rows.append(self.spark, self.tables, readings)
        self.run()

    def windows(self) -> list[tuple[Any, ...]]:
        rows = self.tables.gold.read(self.spark).selectExpr(
            "device", "metric", "unix_seconds(window_start)", "readings", "min_value", "max_value",
            "round(sum_value, 6)", "first_id", "last_id",
        )  # fmt: skip
        return sorted(tuple(row) for row in rows.collect())

    def late(self) -> list[str]:
        return sorted(str(r[0]) for r in self.tables.late.read(self.spark).select("reading_id").collect())

    def forget_commits(self) -> None:
        """Put the checkpoint back to where the last batch was planned and not committed."""
        commits = Path(self.tables.checkpoint("gold")) / "commits"
        last = max(int(f.name) for f in commits.glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    tables = Tables.of(StreamingSettings(root=str(tmp_path / "lakehouse")))
    bronze.create_tables(spark, tables)
    silver.create_tables(spark, tables)
    gold.create_tables(spark, tables)
    return World(spark, tables)


def some(seed: int, begin: float, end: float, count: int) -> list[Silver]:
    dice = random.Random(seed)
    return [
        Silver(
            f"{seed}-{n}",
            dice.choice("abc"),
            round(dice.uniform(begin, end), dice.choice((0, 3))),
            None if dice.random() < 0.05 else round(dice.uniform(20, 400), 2),
            dice.choice(("glucose", "temperature")),
        )
        for n in range(count)
    ]


@pytest.mark.long
def test_h17_each_reading_is_in_one_window_or_late_however_its_batch_is_cut_and_run_again(
    world: World,
) -> None:
    model = GoldModel(WINDOW_S, DELAY_S)
    first, second, third = some(1, 0, 600, 120), some(2, 300, 900, 120), some(3, 500, 1000, 60)
    model.batch(first)
    world.batch(first)
    assert (world.windows(), world.late()) == (list(model.windows()), [])

    model.batch(second)
    silver_rows.append(world.spark, world.tables, second)
    for step in ("recipe", "split", "gold", "late"):
        # from the first restart on with windows of another length: the batch keeps those that it began with
        with pytest.raises(Exception, match=step):
            world.run(cut_after(step), window_s=WINDOW_S if step == "recipe" else 45)
    world.run()
    assert model.late
    assert (world.windows(), world.late()) == (list(model.windows()), sorted(model.late))
    changed = world.written["gold"]

    world.forget_commits()  # killed between the last write and the commit of the batch
    world.run()
    assert (world.windows(), world.late()) == (list(model.windows()), sorted(model.late))
    assert world.written["gold"] == changed

    model.batch(third)  # the watermark is the same after all these restarts
    world.batch(third)
    assert (world.windows(), world.late()) == (list(model.windows()), sorted(model.late))
    late = world.tables.late.read(world.spark)
    assert late.where("window_end > watermark OR event_time >= window_end").count() == 0
    means = world.tables.gold.read(world.spark).where("abs(mean_value * measured - sum_value) > 1e-6")
    assert means.count() == 0


@pytest.mark.long
def test_h20_a_reading_from_2099_among_ten_thousand_costs_no_window(world: World) -> None:
    epoch = datetime(2010, 3, 24, tzinfo=timezone.utc)
    begin = (ARRIVAL - timedelta(hours=3) - epoch).total_seconds() / 60
    wrong = (datetime(2099, 1, 1, tzinfo=timezone.utc) - epoch).total_seconds() / 60
    sent = [reading(n, f"d{n % 5}", n, 100, minutes=begin + n / 100) for n in range(9_999)]
    recipe = silver.recipe_of(
        load_decoders(conf_path("rules.yaml")), load_suite(conf_path("expectations/silver.json")), 600.0
    )
    batches = silver.SilverBatches(
        world.tables, Checkpoint(world.spark, world.tables.checkpoint("silver")), recipe
    )
    skewed = reading(9_999, "d0", 9_999, 100, minutes=wrong)
    for part in ([*sent[:5_000], skewed], sent[5_000:]):
        bronze_rows.append(world.spark, world.tables, part)
        writer = silver.query(world.spark, world.tables, batches)
        writer.trigger(availableNow=True).start().awaitTermination()
        world.run()
    held = world.tables.quarantine.read(world.spark).select("reading_id", "failed_rules").collect()
    assert [(r[0], r[1]) for r in held] == [("d0-9999", ["clock_skew"])]
    total = world.tables.gold.read(world.spark).selectExpr("sum(readings)", "sum(sum_value)").first()
    assert total is not None
    assert tuple(total) == (9_999, 999_900.0)
    assert world.late() == []


def test_h45_two_clocks_that_are_ahead_cost_no_window(world: World) -> None:
    """A device and ingest are both in 2099; the clock that bronze had is right, and stands in its row."""
    epoch = datetime(2010, 3, 24, tzinfo=timezone.utc)
    begin = (ARRIVAL - timedelta(hours=3) - epoch).total_seconds() / 60
    ahead = datetime(2099, 1, 1, tzinfo=timezone.utc)
    sent = [reading(n, f"d{n % 5}", n, 100, minutes=begin + n) for n in range(100)]
    wrong = reading(
        100, "d0", 100, 100, minutes=(ahead - epoch).total_seconds() / 60, arrival=ahead,
        fields={"stored_at": ARRIVAL},
    )  # fmt: skip
    recipe = silver.recipe_of(
        load_decoders(conf_path("rules.yaml")), load_suite(conf_path("expectations/silver.json")), 600.0
    )
    batches = silver.SilverBatches(
        world.tables, Checkpoint(world.spark, world.tables.checkpoint("silver")), recipe
    )
    for part in ([*sent[:50], wrong], sent[50:]):
        bronze_rows.append(world.spark, world.tables, part)
        writer = silver.query(world.spark, world.tables, batches)
        writer.trigger(availableNow=True).start().awaitTermination()
        world.run()
    held = world.tables.quarantine.read(world.spark).select("reading_id", "failed_rules").collect()
    assert [(r[0], r[1]) for r in held] == [("d0-100", ["clock_skew"])]
    assert world.late() == [], "the readings that follow are in their windows"


@pytest.mark.chaos
def test_h17_a_driver_killed_between_gold_and_the_late_table_counts_nothing_twice(world: World) -> None:
    model = GoldModel(WINDOW_S, DELAY_S)
    first, second = some(4, 0, 600, 40), some(5, 200, 700, 40)
    model.batch(first)
    world.batch(first)
    model.batch(second)
    silver_rows.append(world.spark, world.tables, second)
    code = "from tests.support.gold_driver import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, world.tables.root, "gold"],
        capture_output=True,
        text=True,
        timeout=patient(150),
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    assert (world.windows(), world.late()) == (list(model.windows()), [])
    world.run()
    assert (world.windows(), world.late()) == (list(model.windows()), sorted(model.late))
    assert model.late

"""Gold and the latest state after silver was changed: a rebuild and a forgetting killed, a replay, the next batch."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import TransientError
from bridge.settings import Settings, StreamingSettings
from streaming import device_changes, gold, job, latest, tables_job
from streaming.checkpoints import Checkpoint
from streaming.following import Following
from streaming.forgetting import Forgetting
from streaming.quarantine.replay import Replay
from streaming.quarantine.selection import Selection
from streaming.rebuild import Rebuild, Span
from streaming.standing import batches_of
from streaming.stopping import StopRequest
from tests.support import silver_rows
from tests.support.bronze_rows import reading
from tests.support.care_driver import DAY, killed_after
from tests.support.device_messages import DeviceTopics, Seen
from tests.support.lakehouse import Lakehouse
from tests.support.silver_rows import AT, Silver
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

WINDOW_S = 600
MORE = os.environ.get("PULSEBRIDGE_TEST_KILLS") == "all"
REBUILD_STEPS = ("judged", "silver", "quarantine", "windows", "gold") if MORE else ("silver",)
FORGET_STEPS = ("bronze", "silver", "quarantine", "gold", "late") if MORE else ()


class World(Lakehouse):
    """The tables of one test, with gold and the latest state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder / "lakehouse")
        gold.create_tables(spark, self.tables)
        latest.create_table(spark, self.tables)
        self.topics = DeviceTopics(spark, folder / "topics")

    def add(self, device: str, number: int) -> None:
        """Have silver take a reading, without bronze; its time is that of ``bronze_rows.reading``."""
        at = datetime(2010, 3, 24, tzinfo=timezone.utc) + timedelta(minutes=5 * number)
        row = Silver(f"{device}-{number}", device, (at - AT).total_seconds(), 70.0, entry=1000 + number)
        silver_rows.append(self.spark, self.tables, [row])

    def run_gold(self) -> None:
        recipe = gold.recipe_of(StreamingSettings(gold_window_s=WINDOW_S))
        batches = gold.GoldBatches(
            self.tables, Checkpoint(self.spark, self.tables.checkpoint("gold")), recipe
        )
        writer = gold.query(self.spark, self.tables, 0.0, batches)
        writer.trigger(availableNow=True).start().awaitTermination()

    def run_latest(self) -> None:
        batches = latest.LatestBatches(self.tables, Checkpoint(self.spark, self.tables.checkpoint("latest")))
        readings = device_changes.of_silver(self.tables.silver.read_stream(self.spark))
        changes = readings.unionByName(device_changes.of_topics(self.topics.stream()))
        writer = latest.query(changes, self.tables, batches)
        writer.trigger(availableNow=True).start().awaitTermination()

    def windows(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        rows = self.tables.gold.read(self.spark).selectExpr(
            "device", "metric", "unix_seconds(window_start)", "unix_seconds(window_end)", "readings", "sum_value",
            "first_id", "last_id",
        ).collect()  # fmt: skip
        found = {tuple(row[:4]): tuple(row[4:]) for row in rows}
        assert len(found) == len(rows), "a window is there twice"
        return found

    def check(self, newest: dict[str, str], late: tuple[str, ...] = ()) -> None:
        """Compare gold and the latest readings with silver, apart from Spark's aggregates."""
        held: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
        latest_of: dict[str, tuple[Any, ...]] = {}
        rows = self.tables.silver.read(self.spark).selectExpr(
            "device", "metric", "unix_seconds(event_time)", "reading_id", "value"
        )
        for device, metric, second, name, value in rows.collect():
            start = second // WINDOW_S * WINDOW_S
            latest_of[device] = max(latest_of.get(device, (0, "")), (second, name))
            if name not in late:
                held[device, metric, start, start + WINDOW_S].append((second, name, value))
        assert self.windows() == {
            key: (len(of), sum(r[2] for r in of), min(of)[1], max(of)[1]) for key, of in held.items()
        }
        assert tuple(self.ids("late")) == late
        shown = {
            row["device"]: row["reading_id"] for row in self.tables.device_latest.read(self.spark).collect()
        }
        assert {device: name for device, name in shown.items() if name} == newest
        assert newest == {device: place[1] for device, place in latest_of.items()}


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_gold_and_the_latest_state_say_what_silver_says_after_a_rebuild_a_replay_and_a_forgetting_however_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path)
    world.arrive(
        reading(1, "a", 1, 100), reading(2, "a", 2, 60), reading(3, "b", 1, 90), reading(4, "b", 40, 200),
        reading(5, "c", 3, 60), reading(6, "a", 5, 5), reading(7, "b", 3000, 80),  # days later
    )  # fmt: skip
    world.silver().awaitTermination()
    following = Following(spark, world.tables, wait_s=0.0)
    following.owe([date(2010, 3, 25)])
    with pytest.raises(TransientError, match="the query gold has not read all of silver"):
        following.pay()  # it stays owed
    world.run_gold()
    world.add("b", 2)  # too late for its window
    world.topics.append([Seen(1, "c", 7)])
    world.run_gold()
    world.run_latest()
    world.check({"a": "a-2", "b": "b-3000", "c": "c-3"}, late=("b-2",))
    before = world.windows()

    for step in REBUILD_STEPS:
        killed_after(step, world.tables.root, "rebuild", "65")
    if not MORE:
        assert world.windows() == before, "what is owed is not paid yet"
    rebuild = Rebuild(spark, world.tables, world.recipe(65), DAY)
    rebuild.run()
    # c has no reading any more and is known all the same; b's late reading is in its window
    world.check({"a": "a-1", "b": "b-3000"})
    assert rebuild.followed.days == (date(2010, 3, 24), date(2010, 3, 25)), "all that was owed"
    rows = world.tables.device_latest.read(spark).where("device = 'c'").collect()
    assert [(r["metric"], r["reading_id"], r["presence"]["link"]) for r in rows] == [(None, None, "mqtt")]

    Replay(spark, world.tables, world.recipe(0)).run(Selection())
    world.check({"a": "a-5", "b": "b-3000", "c": "c-3"})

    spark.sql(f"DELETE FROM {world.tables.gold.sql} WHERE device = 'b'")
    settings = Settings(streaming=StreamingSettings(root=world.tables.root))
    assert tables_job.rebuild_gold(spark, settings, Span.parse("2010-03-24", "2010-04-05"), False) == 0
    world.check({"a": "a-5", "b": "b-3000", "c": "c-3"})

    for step in FORGET_STEPS:
        killed_after(step, world.tables.root, "forget", "b")
    forgetting = Forgetting(spark, world.tables, "b", wait_s=0.0)
    assert forgetting.run().behind == ("gold", "latest"), "they have yet to read what the replay wrote"
    world.check({"a": "a-5", "c": "c-3"})
    world.add("a", 3001)
    world.run_gold()
    world.run_latest()
    world.check({"a": "a-3001", "c": "c-3"})  # nothing of b, and what the replay wrote is in no window twice
    done = forgetting.run()
    assert (done.complete, sum(done.deleted.values())) == (True, 0)


def test_what_a_batch_of_latest_brings_during_a_recomputation_is_not_put_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(spark, tmp_path)
    for table in (world.tables.gold, world.tables.device_latest):  # by their owner, and nobody's to fill
        spark.sql(f"ALTER TABLE {table.sql} ADD COLUMNS (note STRING)")
    world.arrive(reading(1, "a", 1, 100), reading(2, "b", 1, 90))
    world.silver().awaitTermination()
    world.topics.append([Seen(1, "a", 7)])
    world.run_gold()
    world.run_latest()
    following = Following(spark, world.tables, wait_s=0.0)
    following.owe([date(2010, 3, 24)])
    merge, turns = following._merge, []

    def meanwhile(name: str, statement: str, rows: Any) -> int:
        turns.append(name)
        if turns == ["gold", "device_latest"]:
            world.topics.append([Seen(2, "a", 9)])
            world.add("a", 3000)
            world.run_latest()
        return merge(name, statement, rows)

    following._merge = meanwhile  # type: ignore[method-assign]
    following.pay()
    assert turns.count("device_latest") == 2, "done again, since the query went on meanwhile"
    rows = world.tables.device_latest.read(spark).orderBy("device").collect()
    assert [(r["device"], r["reading_id"]) for r in rows] == [("a", "a-3000"), ("b", "b-1")]
    assert rows[0]["presence"]["entry_id"] == 2


def test_a_query_that_was_stopped_in_its_batch_ends_it_before_its_table_is_recomputed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path)
    world.arrive(reading(1, "a", 1, 100), reading(2, "b", 1, 90))
    world.silver().awaitTermination()
    world.run_latest()
    batches, stopping = [], threading.Event()
    stop_between_batches = job.stop_between_batches

    def stopped(*words: Any, **more: Any) -> None:
        stopping.set()
        stop_between_batches(*words, **more)

    def written(query: str, table: str, rows: int) -> None:
        batches.append(table)
        if len(batches) == 2:  # as if the stop came in the middle of it
            assert stopping.wait(patient(120))
            raise RuntimeError("stopped between two tables")

    monkeypatch.setattr(job, "stop_between_batches", stopped)
    settings = StreamingSettings(
        root=world.tables.root, gold_trigger_s=0.2, gold_window_s=WINDOW_S, gold_watermark_s=0
    )
    running = job.Job(spark, job.plan_of(Settings(streaming=settings)), ["gold"], written=written)
    stop = StopRequest()
    thread = threading.Thread(target=running.run, args=(stop,))
    checkpoint = world.tables.checkpoint("gold")
    running.prepare()
    thread.start()
    try:
        poll_for(lambda: batches_of(spark, checkpoint) == (0, 0), 120, "the first batch")
        world.add("a", 300)
        poll_for(lambda: len(batches) == 2, 120, "the second batch to be in its middle")
        following = Following(spark, world.tables, wait_s=30.0)
        following.owe([date(2010, 3, 24), date(2010, 3, 25)])
        assert following.pay().rows["gold"] == 0, "the batch had ended"
        assert not stop.asked
    finally:
        stopping.set()
        stop.ask()
        thread.join(patient(120))
        running.close()
    assert not thread.is_alive()
    done, begun = batches_of(spark, checkpoint)
    assert done == begun >= 1
    world.run_latest()
    world.check({"a": "a-300", "b": "b-1"})

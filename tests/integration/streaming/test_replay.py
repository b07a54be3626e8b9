"""What quarantine holds, listed and judged again on real tables: once, however often it is cut, beside the query."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import TerminalError
from bridge.settings import StreamingSettings
from bridge.settings.loading import conf_path
from streaming import bronze, care, silver
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import Decoder, load_decoders
from streaming.forgetting import Forgetting
from streaming.holding import HoldFile
from streaming.job import _cause
from streaming.predicates import Suite, load_suite, parse_suite
from streaming.quality_gate import BadShareGate
from streaming.quarantine.listing import count_held, outcome_text
from streaming.quarantine.replay import Outcome, Replay
from streaming.quarantine.selection import Selection
from streaming.rebuild import Rebuild, Span
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message, reading
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVERYTHING = Selection()
PACKED = Decoder(
    filter="+/+/noise", metric="temperature", value="$.v", id="$$.id", time="$$.ts", elements="$.list"
)


class Crash(Exception):
    """Stands for the end of a process between two steps."""


def suite(most: int = 1000) -> Suite:
    """Return the shipped suite with another greatest glucose."""
    body: dict[str, Any] = {**load_suite(conf_path("expectations/silver.json")).body}
    body["expectations"] = [
        entry if (entry.get("meta") or {}).get("rule") != "glucose_range"
        else {**entry, "kwargs": {**entry["kwargs"], "max_value": most}}
        for entry in body["expectations"]
    ]  # fmt: skip
    return parse_suite(body, "edited")


def recipe(most: int = 1000, *more: Decoder) -> dict[str, Any]:
    return silver.recipe_of((*more, *load_decoders(conf_path("rules.yaml"))), suite(most), 600.0)


class World:
    """The tables of one test, with the query silver and replays over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.tables = Tables.of(StreamingSettings(root=str(folder)))
        bronze.create_tables(spark, self.tables)
        silver.create_tables(spark, self.tables)

    def arrive(self, *messages: Message) -> None:
        bronze_rows.append(self.spark, self.tables, messages)

    def judge(self, by: dict[str, Any] | None = None, admit: silver.Admit | None = None) -> None:
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("silver"))
        batches = silver.SilverBatches(self.tables, checkpoint, by or recipe())
        batches.admit = admit or batches.admit
        query = silver.query(self.spark, self.tables, batches).trigger(availableNow=True)
        query.start().awaitTermination()

    def replay(
        self,
        by: dict[str, Any],
        after: Callable[[str], object] = lambda step: None,
        selection: Selection = EVERYTHING,
    ) -> list[Outcome]:
        return Replay(self.spark, self.tables, by, after).run(selection)

    def silver(self) -> list[tuple[str, float]]:
        rows = self.tables.silver.read(self.spark).select("reading_id", "value").collect()
        return sorted((str(row[0]), float(row[1])) for row in rows)

    def held(self) -> dict[tuple[int, int], list[str]]:
        """Return the failed rules of each row of quarantine by its entry and its element."""
        rows = self.tables.quarantine.read(self.spark).select("entry_id", "element", "failed_rules").collect()
        found = {(row[0], row[1]): list(row[2]) for row in rows}
        assert len(found) == len(rows), "a place is held twice"
        return found

    def version(self) -> int:
        history = self.spark.sql(f"DESCRIBE HISTORY {self.tables.quarantine.sql} LIMIT 1").first()
        assert history is not None
        return int(history["version"])


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path / "lakehouse")


def cut_after(step: str) -> Callable[[str], None]:
    def cut(done: str) -> None:
        if done == step:
            raise Crash(step)

    return cut


def test_h18_a_replay_cut_after_each_step_ends_by_the_rules_that_it_began_with(world: World) -> None:
    """One replay is cut after each step in turn, and the rule is edited back before the one that finishes it."""
    world.arrive(*(reading(n, "a", n, 100 if n % 2 else 2000) for n in range(1, 5)), reading(5, "a", 5, 9000))
    world.judge()
    wider = recipe(3000)
    for step in ("begun", "silver", "quarantine"):
        with pytest.raises(Crash, match=step):
            world.replay(wider, cut_after(step))
        torn = [] if step == "begun" else [("a-2", 2000.0), ("a-4", 2000.0)]
        assert world.silver() == sorted([("a-1", 100.0), ("a-3", 100.0), *torn])
        assert len(world.held()) == (1 if step == "quarantine" else 3)
    finished, own = world.replay(recipe())
    assert (finished.finished, finished.held, finished.passed) == (True, 1, 0)
    assert own == Outcome(held=1, failed=1, rules={"glucose_range": 1})
    assert world.silver() == [("a-1", 100.0), ("a-2", 2000.0), ("a-3", 100.0), ("a-4", 2000.0)]
    assert world.held() == {(5, 0): ["glucose_range"]}
    before = world.version()
    assert world.replay(recipe()) == [own]
    assert world.version() == before  # what is as it was is not written again


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.long
def test_h18_a_replay_killed_between_the_tables_is_finished_by_the_next(world: World, tmp_path: Path) -> None:
    world.arrive(*(reading(n, "a", n, 100 if n % 2 else 2000) for n in range(1, 5)))
    world.judge()
    wider = tmp_path / "wider.json"
    wider.write_text(json.dumps(suite(3000).body))
    code = "from tests.support.silver_driver import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, world.tables.root, "silver", str(wider)],
        capture_output=True,
        text=True,
        timeout=patient(280),
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    assert (len(world.silver()), len(world.held())) == (4, 2)
    finished, own = world.replay(recipe())
    assert (finished.finished, finished.passed, finished.new, own) == (True, 2, 0, Outcome())
    assert (len(world.silver()), world.held()) == (4, {})


@pytest.mark.long
def test_h17_what_passes_by_new_rules_and_decoders_comes_to_silver_once_beside_the_query(
    world: World,
) -> None:
    """A wider range, a decoder for a topic that had none, a redelivery that is held too and one while it is replayed."""
    packed = {"id": "p", "ts": "2026-01-02T11:00:00Z", "list": [{"v": 20}, {"v": 99}, {"v": 21}]}
    too_high = reading(1, "a", 1, 2000)
    world.arrive(
        too_high,
        replace(too_high, entry=2),
        reading(3, "a", 3, "high"),
        Message(4, "b", json.dumps(packed).encode(), metric="noise"),
        reading(5, "c", 5, "low"),
        reading(6, "a", 6, 100),
    )
    world.judge()
    fixed = recipe(3000, PACKED)

    found = count_held(world.tables.quarantine.read(world.spark), EVERYTHING, 2)
    assert (found.total, found.topics) == (5, {"persistent://public/t/wearables": 5})
    assert next(iter(found.rules.items())) == ("value_present", 3)
    assert [len(found.examples), found.examples[0].device] == [2, "c"]
    for selection, meant in (
        (Selection(rules=("glucose_range",), device="a"), 2),
        (Selection(topic="wearables"), 5),
        (Selection(topic="+/b/#"), 1),
        (Selection(since_us=2**52), 0),
    ):
        assert count_held(world.tables.quarantine.read(world.spark), selection, 0).total == meant

    looked = Replay(world.spark, world.tables, fixed).look(EVERYTHING)
    assert looked == Outcome(
        held=5, passed=4, new=3, failed=3, rules={"temperature_range": 1, "value_present": 2}
    )
    assert "4 readings pass (3 of them new in silver), 3 still fail" in outcome_text(looked, True)
    assert len(world.held()) == 5

    def meanwhile(step: str) -> None:
        if step == "judged":  # the query writes what the replay is about to write, and more
            world.arrive(replace(too_high, entry=7), reading(8, "a", 8, 5000))
            world.judge(fixed)

    assert world.replay(fixed, meanwhile) == [looked]
    world.spark.sql(f"DELETE FROM {world.tables.bronze.sql} WHERE entry_id = 5")
    (again,) = world.replay(fixed)
    assert (again.held, again.passed, again.failed, again.left) == (4, 0, 3, 1)
    assert world.silver() == [("a-1", 2000.0), ("a-6", 100.0), ("p#0", 20.0), ("p#2", 21.0)]
    assert world.held() == {
        (3, 0): ["value_present"],
        (4, 1): ["temperature_range"],
        (5, 0): ["value_present"],
        (8, 0): ["glucose_range"],
    }
    payloads = {r["entry_id"]: r["payload"] for r in world.tables.quarantine.read(world.spark).collect()}
    assert json.loads(payloads[4]) == {"v": 99}


def test_a_replay_asks_busy_queries_for_a_pause_as_others_do(world: World) -> None:
    hold = HoldFile(world.spark, world.tables.root)
    asked: list[str] = []

    def refused_thrice() -> None:
        asked.append(hold.text())
        if len(asked) < 4:
            raise RuntimeError("[DELTA_CONCURRENT_APPEND] somebody was first")

    Replay(world.spark, world.tables, recipe())._between(refused_thrice, "silver")
    assert [bool(text) for text in asked] == [False, False, False, True]
    assert hold.text() == ""


@pytest.mark.long
def test_rebuild_forget_and_replay_exclude_each_other_and_name_who_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(care, "_PATIENCE_S", 0.0)
    spark, tables = world.spark, world.tables
    span = Span(bronze_rows.ARRIVAL, bronze_rows.ARRIVAL + timedelta(days=1))
    runs: dict[str, Callable[[], object]] = {
        care.REBUILD: Rebuild(spark, tables, recipe(), span).run,
        care.FORGET: Forgetting(spark, tables, "a", 0.0).run,
        care.REPLAY: lambda: world.replay(recipe()),
    }
    for holder in runs:
        with care.alone(spark, tables.root, holder):
            for run in runs.values():
                with pytest.raises(TerminalError, match=rf"tables runs: {holder}, pid \d+ on ") as caught:
                    run()
                assert "\n" not in str(caught.value)
    assert Forgetting(spark, tables, "a", 0.0).run().complete


@pytest.mark.long
def test_a_batch_that_stops_the_query_writes_nothing_and_is_judged_anew_by_the_next_start(
    world: World,
) -> None:
    world.arrive(*(reading(n, "a", n, 100 if n % 2 else 2000) for n in range(1, 5)))
    gate = BadShareGate(StreamingSettings(bad_share_limit=0.3, bad_share_min_rows=4, on_bad_share="stop"))
    with pytest.raises(Exception, match="silver stopped") as caught:
        world.judge(admit=gate)
    cause = _cause(caught.value)
    assert cause.terminal
    assert cause.text.startswith("silver stopped before batch 0: 50.0% of 4 rows within 300 s failed a rule")
    assert "(glucose_range 2)" in cause.text
    assert (world.silver(), world.held()) == ([], {})
    world.judge(recipe(3000), gate)
    assert (len(world.silver()), world.held()) == (4, {})

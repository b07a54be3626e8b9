"""Silver on real Spark and Delta: the split, what is written once, and what a crash in mid-batch leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import NO_ID, Decoder, load_decoders
from streaming.predicates import Suite, load_suite, parse_suite
from streaming.rule_fields import rule_fields

from bridge.envelope import Envelope
from bridge.mapping import Mapper, Route
from bridge.settings import IngestSettings, StreamingSettings
from bridge.settings.loading import conf_path
from bridge.settings.rules import TopicRule
from streaming import bronze, silver
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import ARRIVAL, Message, reading
from tests.support.jvm_calls import noted_calls
from tests.support.silver_world import TIME, SilverWorld, message
from tests.support.waiting import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Crash(Exception):
    """Stands for the end of a driver between two steps; the query stops as it would."""


def shipped() -> Suite:
    return load_suite(conf_path("expectations/silver.json"))


def narrower() -> Suite:
    """Return the shipped suite after an edit: values that were good are bad, and the other way round."""
    body: dict[str, Any] = {**shipped().body}
    body["expectations"] = [
        entry if (entry.get("meta") or {}).get("rule") != "glucose_range"
        else {**entry, "kwargs": {**entry["kwargs"], "min_value": 150, "max_value": 5000}}
        for entry in body["expectations"]
    ]  # fmt: skip
    return parse_suite(body, "edited")


@dataclass
class World:
    """The tables of one test, and runs of the query over what bronze holds."""

    spark: SparkSession
    tables: Tables

    def arrive(self, messages: Iterable[Message]) -> None:
        bronze_rows.append(self.spark, self.tables, messages)

    def run(
        self,
        suite: Suite | None = None,
        after: Callable[[str], None] = lambda step: None,
        *,
        decoders: tuple[Decoder, ...] = (),
        rules: Iterable[TopicRule] = (),
        suspects: Callable[[int], object] = lambda count: None,
    ) -> None:
        recipe = silver.recipe_of(
            decoders or load_decoders(conf_path("rules.yaml")), suite or shipped(), 600.0, rule_fields(rules)
        )
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("silver"))
        batches = silver.SilverBatches(self.tables, checkpoint, recipe, after, suspects)
        query = silver.query(self.spark, self.tables, batches).trigger(availableNow=True).start()
        query.awaitTermination()

    def ids(self, table: str) -> list[str]:
        frame = getattr(self.tables, table).read(self.spark)
        return sorted(str(row[0]) for row in frame.select("reading_id").collect())

    def forget_commits(self) -> None:
        """Put the checkpoint back to where the last batch was planned and not committed."""
        commits = Path(self.tables.checkpoint("silver")) / "commits"
        for file in [*commits.glob("[0-9]*"), *commits.glob(".[0-9]*")]:
            file.unlink()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    tables = Tables.of(StreamingSettings(root=str(tmp_path / "lakehouse")))
    bronze.create_tables(spark, tables)
    silver.create_tables(spark, tables)
    return World(spark, tables)


def test_h17_rows_are_split_typed_and_deduplicated_however_late(world: World) -> None:
    later = ARRIVAL + timedelta(days=3)
    again = reading(6, "a", 1, 120, arrival=later)  # redelivered days later
    buffered = reading(8, "a", -9000, 120, arrival=later)  # a month older than what was seen
    world.arrive([
        reading(1, "a", 1, 120),
        reading(2, "a", 1, 121),
        reading(3, "a", 2, 5000),
        reading(4, "b", 1, "high"),
        Message(5, "b", b"\xff\xfe{"),
        Message(7, "b", b"{}", metric="noise"),
    ])  # fmt: skip
    world.run()
    world.arrive([again, buffered])
    world.run()
    rows = world.tables.silver.read(world.spark).orderBy("entry_id").collect()
    assert [(r["reading_id"], r["value"], r["unit"], r["entry_id"]) for r in rows] == [
        ("a-1", 120.0, "mg/dL", 1),
        ("a--9000", 120.0, "mg/dL", 8),
    ]
    held = {r["entry_id"]: r for r in world.tables.quarantine.read(world.spark).collect()}
    assert {n: r["failed_rules"] for n, r in held.items()} == {
        3: ["glucose_range"],
        4: ["value_present"],
        5: ["undecodable", "reading_id_present", "event_time_present", "value_present"],
        7: ["unknown_topic", "reading_id_present", "event_time_present", "value_present"],
    }
    assert bytes(held[5]["payload"]) == b"\xff\xfe{"
    assert held[3]["reason"] == "expect_column_values_to_be_between on value"
    assert "UTF-8" in held[5]["reason"]


@pytest.mark.long
def test_h17_without_a_path_of_its_own_a_decoder_takes_id_and_time_from_the_topic_rule(world: World) -> None:
    """A preset's place in the payload, a user property with a capture beside it, and a rule that says nothing."""
    own = (
        TopicRule(
            name="lab", filter="lab/+room/+device", device="{device}", reading_id="{room}-{user:n}",
            reading_time="{json:$.at}",
        ),
        TopicRule(name="yard", filter="yard/+device", device="{device}"),
    )  # fmt: skip
    ingest = IngestSettings(rules=own, presets=("thethingsstack",))
    mapper, envelope = Mapper(ingest), Envelope(link="mqtt", protocol="5", mark=True)

    def message(entry: int, topic: str, body: dict[str, Any], *user: tuple[str, str]) -> Message:
        route = mapper.route(topic)
        assert isinstance(route, Route)
        fields = {
            "mqtt_topic": topic,
            "__messageProperties": envelope.of_topic(topic, route),
            "user_properties": user or None,
        }
        return Message(entry, route.device or "", json.dumps(body).encode(), fields=fields)

    def uplink(entry: int, number: int) -> Message:
        ids = [f"gs:uplink:{number}", "as:up:x"]
        body = {"correlation_ids": ids, "received_at": "2026-01-02T11:00:00Z", "t": 20 + number}
        return message(entry, "v3/farm/devices/probe/up", body)

    at = {"at": "2026-01-02T11:00:00Z", "t": 21}
    world.arrive([
        uplink(1, 1),
        uplink(2, 2),
        message(3, "lab/east/oven", at, ("n", "7"), ("n", "7")),
        message(4, "lab/west/oven", at, ("n", "7")),
        message(5, "lab/east/oven", at, ("n", "8"), ("n", "9")),
        message(6, "yard/gate", at),
    ])  # fmt: skip
    decoders = tuple(
        Decoder(filter=f, metric="temperature", value="$.t")
        for f in ("v3/+/devices/+/up", "lab/+/+", "yard/+")
    )
    world.run(decoders=decoders, rules=ingest.all_rules)
    world.arrive([uplink(7, 1), message(8, "lab/east/oven", at | {"t": 40}, ("n", "7"))])  # delivered again
    world.run(decoders=decoders, rules=ingest.all_rules)
    rows = world.tables.silver.read(world.spark).orderBy("entry_id").collect()
    assert [(r["entry_id"], r["device"], r["reading_id"], r["value"]) for r in rows] == [
        (1, "farm/probe", "gs:uplink:1", 21.0),
        (2, "farm/probe", "gs:uplink:2", 22.0),
        (3, "oven", "east-7", 21.0),
        (4, "oven", "west-7", 21.0),
    ]
    held = {r["entry_id"]: r for r in world.tables.quarantine.read(world.spark).collect()}
    assert {n: r["failed_rules"] for n, r in held.items()} == {
        5: ["reading_id_present"],  # two different ones: either could be meant
        6: ["reading_id_present", "event_time_present"],
    }


@pytest.mark.long
def test_h17_without_any_id_each_message_is_kept_and_those_that_repeat_one_are_counted(world: World) -> None:
    """In one batch and over batches; a batch that runs again counts the same."""
    decoders = (Decoder(filter="+/+/glucose", metric="glucose", value="$.glucose", id=NO_ID, time="$.ts"),)
    found: list[int] = []
    world.arrive([
        reading(1, "a", 1, 120), reading(2, "a", 1, 120), reading(3, "b", 1, 120), reading(4, "a", 1, 121),
        reading(5, "a", 1, 5000), reading(6, "a", 1, 5000),
    ])  # fmt: skip
    world.run(decoders=decoders, suspects=found.append)
    world.arrive([reading(7, "a", 1, 120), reading(8, "b", 2, 120), reading(9, "b", 1, 120)])
    world.run(decoders=decoders, suspects=found.append)
    world.forget_commits()
    world.run(decoders=decoders, suspects=found.append)
    assert world.ids("silver") == [f"1:{n}:0" for n in (1, 2, 3, 4, 7, 8, 9)]
    assert world.ids("quarantine") == ["1:5:0", "1:6:0"]
    assert found[:2] == [1, 2]
    assert found[2:] in ([2], [1, 2])  # the last batch, or both, ran again


def test_h20_a_clock_far_ahead_is_held_before_any_watermark(world: World) -> None:
    ahead = (ARRIVAL + timedelta(minutes=11)).timestamp()
    near = (ARRIVAL + timedelta(minutes=9)).timestamp()
    epoch = datetime(2010, 3, 24, tzinfo=timezone.utc).timestamp()
    world.arrive([
        reading(1, "a", 1, 100),
        reading(2, "a", 2, 100, minutes=(ahead - epoch) / 60),
        reading(3, "a", 3, 100, minutes=(near - epoch) / 60),
        reading(4, "a", 4, 100, minutes=(datetime(2099, 1, 1, tzinfo=timezone.utc).timestamp() - epoch) / 60),
    ])  # fmt: skip
    world.run()
    assert world.ids("silver") == ["a-1", "a-3"]
    held = world.tables.quarantine.read(world.spark).select("reading_id", "failed_rules").collect()
    assert sorted((r[0], tuple(r[1])) for r in held) == [("a-2", ("clock_skew",)), ("a-4", ("clock_skew",))]


def test_h18_a_batch_cut_after_each_step_ends_as_it_began(world: World) -> None:
    """One batch is cut after each step in turn, the rules edited from the first restart on."""
    world.arrive([reading(n, "a", n, 100 if n % 3 else 2000) for n in range(1, 10)])

    def cut_after(step: str) -> Callable[[str], None]:
        def cut(done: str) -> None:
            if done == step:
                raise Crash(step)

        return cut

    for step, suite in (("recipe", shipped()), ("silver", narrower()), ("quarantine", narrower())):
        with pytest.raises(Exception, match=step):
            world.run(suite, cut_after(step))
    world.arrive([reading(10, "a", 10, 100)])
    world.run(narrower())
    # the batch by the rules that it began with, the next one by the edited
    assert world.ids("silver") == [f"a-{n}" for n in range(1, 10) if n % 3]
    assert world.ids("quarantine") == ["a-10", "a-3", "a-6", "a-9"]


@pytest.mark.long
def test_what_the_decoders_say_is_not_built_anew_for_each_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive([reading(0, "a", 0, 100)])
    world.run()
    world.arrive([reading(1, "a", 1, 100)])
    asked = noted_calls(monkeypatch)
    world.run()
    assert world.ids("silver") == ["a-0", "a-1"]
    # Ten thousand calls into the JVM, were the columns of four decoders built for each batch.
    assert len(asked) < 1_500


def test_a_committed_batch_that_runs_again_writes_nothing(world: World) -> None:
    world.arrive([reading(1, "a", 1, 100), reading(2, "a", 2, 5000)])
    world.run()
    world.forget_commits()
    world.run()
    assert (world.ids("silver"), world.ids("quarantine")) == (["a-1"], ["a-2"])


@pytest.mark.chaos
@pytest.mark.long
def test_h18_a_driver_killed_between_the_tables_while_the_rules_are_edited(world: World) -> None:
    world.arrive([reading(n, "a", n, 100 if n % 2 else 2000) for n in range(1, 7)])
    code = "from tests.support.silver_driver import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, world.tables.root, "silver"],
        capture_output=True,
        text=True,
        timeout=patient(150),
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    assert (world.ids("silver"), world.ids("quarantine")) == (["a-1", "a-3", "a-5"], [])
    world.run(narrower())
    assert (world.ids("silver"), world.ids("quarantine")) == (["a-1", "a-3", "a-5"], ["a-2", "a-4", "a-6"])


@pytest.mark.long
def test_rows_that_a_suite_lets_through_without_a_part_of_their_key_are_each_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = SilverWorld(spark, tmp_path)
    silver.create_tables(spark, world.tables)
    nothing = parse_suite({"name": "none", "expectations": []}, "test")
    decoder = {"filter": "d/+", "metric": "t", "value": "$.t", "id": "$.id", "time": "$.ts"}
    batches = (
        [message(1, "d/1", {"id": "x", "t": 1})],  # a batch without any day
        [message(2, "d/1", {"ts": TIME, "t": 2}), message(3, "d/1", {"ts": TIME, "t": 3})],
    )
    for messages in batches:
        world.arrive(*messages)
        world.run([decoder], suite=nothing)
    assert world.silver("entry_id", "reading_id") == [(1, "x"), (2, None), (3, None)]

"""Rebuild, replay, deletion of a device and optimise on real Delta, killed at each step and run again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.errors import PulsebridgeError
from streaming import pipelines as dp
from streaming import writing
from streaming.upkeep import Upkeep
from streaming.writing import POSITION
from tests.support.upkeep_world import ARRIVAL, House, killed_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def one(device: str, id: str, v: float) -> dict[str, Any]:
    return {"device": device, "id": id, "v": v}


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables made under a least of 10, with a message that the flows have not taken yet."""
    root = tmp_path_factory.mktemp("upkeep") / "lakehouse"
    house = House(spark, root, 10)
    house.create()
    house.arrive(
        [one("a", "1", 50), one("b", "1", 5), one("b", "2", 60)],
        [one("a", "2", 5)],
        b"\xff not JSON",
        [one("a", "3", 12)],
        [one("c", "1", 12), one("a", "1", 99)],  # a-1 comes twice
        [one("a", "1", 97)],
        [one("b", "3", 70)],
        [],
        [one("d", "1", 80)],
    )
    house.take(0, 4, 0)
    house.take(4, 8, 1)
    house.do("rebuild", "means")
    house.do("rebuild", "newest")
    return root


def fresh(spark: SparkSession, prepared: Path, folder: Path, least: float) -> House:
    root = folder / "lakehouse"
    shutil.copytree(prepared, root)
    house = House(spark, root, least)
    house.job.drain = lambda: None  # type: ignore[method-assign]  # the flows are run by hand
    return house


@pytest.mark.thorough
def test_a_rebuild_validates_by_todays_rules_what_the_flow_has_taken(
    spark: SparkSession, prepared: Path, tmp_path: Path
) -> None:
    house = fresh(spark, prepared, tmp_path, least=20)
    assert house.found("plain") == [
        "a 1 50.0 0 0", "a 1 97.0 5 0", "a 1 99.0 4 1", "a 3 12.0 3 0", "b 2 60.0 0 2", "b 3 70.0 6 0", "c 1 12.0 4 0",
    ]  # fmt: skip
    house.do("rebuild", "plain")
    assert house.found("plain") == [
        "a 1 50.0 0 0", "a 1 97.0 5 0", "a 1 99.0 4 1", "b 2 60.0 0 2", "b 3 70.0 6 0",
    ]  # fmt: skip
    held = [row for row in house.found("quarantine") if row.startswith("plain")]
    assert held == [
        "plain not JSON None 2 None", "plain not JSON None 7 None",
        "plain too low 1 0 1", "plain too low 1 4 0", "plain too low 2 1 0", "plain too low 3 3 0",
    ]  # fmt: skip
    # The flow takes the rest, and runs the batch again that it may have been in.
    house.take(4, 8, 1)
    house.take(8, 9, 2)
    assert [row for row in house.found("plain") if row.startswith(("c", "d"))] == ["d 1 80.0 8 0"]
    assert [row for row in house.found("quarantine") if row.startswith("plain")] == held


def test_h18_a_batch_that_was_cut_before_a_rebuild_adds_nothing_that_the_rebuild_brought(
    spark: SparkSession, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = fresh(spark, prepared, tmp_path, least=20)
    house.arrive([one("e", "1", 90), one("e", "2", 1)], [one("f", "1", 2)], first=9)

    def cut(point: str) -> None:
        if point == "table.written":
            raise RuntimeError("cut here")

    monkeypatch.setattr(writing, "reach", cut)
    with pytest.raises(RuntimeError, match="cut here"):
        house.take(8, 11, 2)
    monkeypatch.undo()
    house.do("rebuild", "plain")
    for _ in range(2):
        house.take(8, 11, 2)
    assert [row for row in house.found("plain") if row[0] in "def"] == ["d 1 80.0 8 0", "e 1 90.0 9 0"]
    quarantined = [
        row for row in house.found("quarantine") if row.startswith("plain") and row.split()[-2] in ("9", "10")
    ]
    assert quarantined == ["plain too low 1 10 0", "plain too low 2 9 1"]


@pytest.mark.thorough
def test_a_rebuild_of_a_table_with_keys_keeps_a_key_once_and_what_follows_is_made_again(
    spark: SparkSession, prepared: Path, tmp_path: Path
) -> None:
    house = fresh(spark, prepared, tmp_path, least=55)
    assert house.found("newest") == ["a 3 12.0 3 0", "b 3 70.0 6 0", "c 1 12.0 4 0"]
    house.do("rebuild", "keyed")
    # a-1 of entry 0 fails now, the copy in entry 4 replaces it.
    assert house.found("keyed") == ["a 1 99.0 4 1", "b 2 60.0 0 2", "b 3 70.0 6 0"]
    assert house.found("newest") == ["a 1 99.0 4 1", "b 3 70.0 6 0"]
    house.take(4, 8, 1)
    assert house.found("keyed") == ["a 1 99.0 4 1", "b 2 60.0 0 2", "b 3 70.0 6 0"]


@pytest.mark.thorough
def test_a_table_without_rules_is_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    house = House(spark, tmp_path / "lakehouse", 0)
    with dp.declaring(house.job.pipeline):
        place = "'topic', __topic, 'partition', partition, 'ledger', ledger_id, 'entry', entry_id, 'index', batch_index"
        position = f"named_struct({place}, 'element', 0) AS _position"
        schema = f"device string, mqtt_topic string, _position {POSITION}"
        columns = "device", "upper(mqtt_topic) AS mqtt_topic", position
        dp.table(lambda: dp.messages().selectExpr(*columns), name="bare", schema=schema)
    house.create("bronze", "bare")
    house.arrive([], [], device="a")
    spark.sql(
        f"INSERT INTO {house.reader.table('bare').sql} SELECT device, 'old', {position} FROM {house.reader.table('bronze').sql}"
    )
    assert house.do("rebuild", "bare") == "bare: 2 messages give 2 rows, and 0 in quarantine"
    assert [tuple(row) for row in house.rows("bare").select("device", "mqtt_topic").collect()] == [("a", "A/B")] * 2


@pytest.mark.thorough
def test_a_rebuild_of_a_span_or_a_device_leaves_the_rest(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    house = fresh(spark, prepared, tmp_path, least=20)
    house.do("rebuild", "plain", until=ARRIVAL.replace(minute=4).isoformat())
    assert [row for row in house.found("plain") if " 12.0 " in row] == ["c 1 12.0 4 0"]
    house.do("rebuild", "plain", device="c")
    assert [row for row in house.found("plain") if " 12.0 " in row] == []


@pytest.mark.thorough
def test_a_replay_lets_in_once_what_is_valid_now(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    house = fresh(spark, prepared, tmp_path, least=0)
    house.do("replay", "plain", rule="undecodable", device="b")
    assert [row for row in house.found("plain") if " 5.0 " in row] == ["b 1 5.0 0 1"]
    for _ in range(2):
        house.do("replay", "plain")
        assert [row for row in house.found("plain") if " 5.0 " in row] == ["a 2 5.0 1 0", "b 1 5.0 0 1"]
        assert [row for row in house.found("quarantine") if row.startswith("plain")] == [
            "plain not JSON None 2 None", "plain not JSON None 7 None",
        ]  # fmt: skip
    house.take(0, 4, 0)
    assert len(house.found("plain")) == 9
    assert len(house.found("quarantine")) == 2 + 4


@pytest.mark.thorough
def test_a_device_goes_from_every_table(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    house = fresh(spark, prepared, tmp_path, least=10)
    house.arrive(b"broken", first=20, device="a")
    assert "plain 4" in house.do("forget", device="a", vacuum=True)
    for name in ("plain", "keyed", "newest", "means", "quarantine"):
        assert house.rows(name).where("device = 'a'").isEmpty()
    # A message goes whole when one of its rows was the device's.
    assert house.found("bronze") == ["2", "6", "7", "8"]
    assert house.found("plain") == ["b 2 60.0 0 2", "b 3 70.0 6 0", "c 1 12.0 4 0"]
    assert house.rows("_upkeep").where("arguments LIKE '%\"a\"%'").isEmpty()
    assert not any(b'"a"' in file.read_bytes() for file in (tmp_path / "lakehouse").glob("bronze/*.parquet"))
    assert "plain" in house.do("optimise")


@pytest.mark.thorough
def test_what_cannot_be_done_fails_in_one_line(spark: SparkSession, prepared: Path, tmp_path: Path) -> None:
    house = fresh(spark, prepared, tmp_path, least=10)
    before = house.everything()
    for table, text in (("nothing", "table 'nothing' does not exist"), ("bronze", "bronze has no column _position")):
        with pytest.raises(PulsebridgeError, match=text):
            house.do("rebuild", table)
    with pytest.raises(PulsebridgeError, match="recomputed"):
        house.do("rebuild", "means", device="a")
    assert house.everything() == before


STEPS = ("taken", "messages", "staged", "table", "quarantine", "newest", "done")
KILLS = [
    *((f"upkeep.{step}", "rebuild", "keyed", {}) for step in STEPS),
    *((f"upkeep.{step}", "replay", "plain", {"device": "a"}) for step in STEPS),
    ("upkeep.whole", "rebuild", "means", {}),
    ("upkeep.drained", "forget", "", {"device": "a"}),
    *((f"upkeep.deleted:{n}", "forget", "", {"device": "a"}) for n in range(1, 8)),
    *((f"upkeep.vacuumed:{n}", "forget", "", {"device": "a", "vacuum": True}) for n in (1, 4)),
]
ALWAYS = {("upkeep.quarantine", "replay")}
"""Each takes a Spark of its own: the others are run with the long tests."""
Tables = dict[str, list[str]]


def goes_on(house: House) -> Tables:
    """Let the flows take the rest; return all rows."""
    house.take(4, 8, 1)
    house.take(8, 9, 2)
    return house.everything()


@pytest.fixture(scope="module")
def uncut() -> dict[tuple[Any, ...], tuple[Tables, Tables]]:
    """What requests give that are not cut, after them and after the flows went on."""
    return {}


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("point", "kind", "table", "arguments"),
    [pytest.param(*kill, marks=[] if kill[:2] in ALWAYS else pytest.mark.long) for kill in KILLS],
)
def test_a_killed_request_is_completed_by_the_next_process(
    spark: SparkSession,
    prepared: Path,
    uncut: dict[tuple[Any, ...], tuple[Tables, Tables]],
    tmp_path: Path,
    point: str,
    kind: str,
    table: str,
    arguments: dict[str, Any],
) -> None:
    least = 0 if kind == "replay" else 55
    request = (kind, table, *arguments)
    if request not in uncut:
        whole = fresh(spark, prepared, tmp_path / "whole", least)
        whole.do(kind, table, **arguments)
        uncut[request] = whole.everything(), goes_on(whole)
    house = fresh(spark, prepared, tmp_path / "killed", least)
    killed_at(point, tmp_path / "killed" / "lakehouse", least, kind, table, arguments)
    house.finish()
    assert house.everything() == uncut[request][0]
    assert [r.state for r in Upkeep(house.job).log.read().requests.values()][-1] == "done"
    # And the flows go on as if nothing had been.
    assert goes_on(house) == uncut[request][1]

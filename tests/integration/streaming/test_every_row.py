"""Each row of bronze is in silver or in quarantine, once, with the names of the rules: counted by Python alone.

The tables are read without Spark, by the package deltalake.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from streaming.decoders.settings import as_recipe, load_decoders
from streaming.predicates import load_suite

from bridge.settings.loading import conf_path
from streaming import silver
from streaming.tables import BRONZE_COLUMNS
from tests.support.bronze_rows import ARRIVAL
from tests.support.silver_world import SilverWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS: Final = int(os.environ.get("PULSEBRIDGE_SILVER_ROWS", "20000"))
BATCHES: Final = 1 if ROWS < 100_000 else 10
BAD: Final = 0.02
NOTHING: Final = ["reading_id_present", "event_time_present", "value_present"]
KINDS: Final[dict[str, list[str]]] = {
    "cut short": ["undecodable", *NOTHING],
    "nobody's topic": ["unknown_topic", *NOTHING],
    "no id": ["reading_id_present"],
    "id too long": ["reading_id_length"],
    "no device": ["device_present"],
    "no time": ["bad_time", "event_time_present"],
    "clock ahead": ["clock_skew"],
    "before 1970": ["event_time_range"],
    "no number": ["value_present"],
    "implausible": ["glucose_range"],
}


class Row(NamedTuple):
    """A message and the kind of bad reading that it is, None for a good one."""

    kind: str | None
    device: str | None
    topic: str
    payload: bytes


def row(entry: int, draw: random.Random) -> Row:
    kind = draw.choice(tuple(KINDS)) if draw.random() < BAD else None
    device = None if kind == "no device" else f"d{draw.randrange(500)}"
    at = ARRIVAL - timedelta(seconds=draw.randrange(3 * 86_400))
    if kind == "clock ahead":
        at = ARRIVAL + timedelta(days=draw.randrange(1, 30_000))
    if kind == "before 1970":
        at -= timedelta(days=30_000)
    body: dict[str, Any] = {"id": f"r{entry}", "ts": at.isoformat(), "glucose": draw.randrange(10, 1000)}
    if kind == "no id":
        del body["id"]
    if kind == "id too long":
        body["id"] = f"{entry:0257d}"
    if kind == "no time":
        body["ts"] = draw.choice(["yesterday", 1_700_000_000, "12:30", ""])
    if kind == "no number":
        body["glucose"] = draw.choice(["high", None, {"mg": 100}])
    if kind == "implausible":
        body["glucose"] = draw.choice([-1, 9.99, 1000.5, 1e300])
    payload = json.dumps(body).encode()
    if kind == "cut short":
        payload = payload[: draw.randrange(1, len(payload) - 1)]
    metric = "noise" if kind == "nobody's topic" else "glucose"
    return Row(kind, device, f"wearables/{device}/{metric}", payload)


def arrive(world: SilverWorld, first: int, rows: list[Row]) -> None:
    """Append the rows to bronze, as one commit, by way of Arrow."""
    from pyspark.sql import functions as F

    count = len(rows)
    when = pa.array([ARRIVAL] * count, pa.timestamp("us", "UTC"))
    columns = {
        "__topic": pa.array(["persistent://public/t/wearables"] * count),
        "__publishTime": when,
        "arrival_time": when,
        "partition": pa.array([0] * count),
        "ledger_id": pa.array([1] * count),
        "entry_id": pa.array(range(first, first + count)),
        "batch_index": pa.array([0] * count),
        "mqtt_topic": pa.array([r.topic for r in rows]),
        "device": pa.array([r.device for r in rows], pa.string()),
        "payload": pa.array([r.payload for r in rows], pa.binary()),
    }
    types = {c.name: c.type for c in BRONZE_COLUMNS}
    frame = world.spark.createDataFrame(pa.table(columns))
    frame = frame.select(*(F.col(name).cast(types[name]) for name in columns))
    frame.write.format("delta").mode("append").save(world.tables.bronze.where)


def rows_of(table: str, columns: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a Delta table as another reader of Delta has them, which knows nothing of Spark."""
    found: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_dataset().to_table(columns=columns).to_pylist()
    return found


@pytest.mark.timeout(max(300, ROWS // 500))
def test_every_row_is_in_silver_or_in_quarantine_with_the_names_of_its_rules(
    spark: SparkSession, tmp_path: Path
) -> None:
    """``PULSEBRIDGE_SILVER_ROWS=1000000`` does it with a million rows, in ten batches."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    world = SilverWorld(spark, tmp_path)
    silver.create_tables(spark, world.tables)
    decoders = as_recipe(load_decoders(conf_path("rules.yaml")))
    suite = load_suite(conf_path("expectations/silver.json"))
    expected: dict[int, str] = {}
    for batch in range(BATCHES):
        first = batch * ROWS // BATCHES
        rows = [row(n, draw) for n in range(first, (batch + 1) * ROWS // BATCHES)]
        expected.update((first + n, r.kind) for n, r in enumerate(rows) if r.kind is not None)
        arrive(world, first, rows)
        world.run(decoders, suite=suite)
    good = Counter(r["entry_id"] for r in rows_of(world.tables.silver.where, ["entry_id"]))
    held = rows_of(world.tables.quarantine.where, ["entry_id", "failed_rules"])
    assert set(expected.values()) == set(KINDS)
    assert len(good) == sum(good.values()) == ROWS - len(expected)
    assert sorted(good.keys() | expected.keys()) == list(range(ROWS))
    assert sorted(r["entry_id"] for r in held) == sorted(expected)
    wrong = [r for r in held if r["failed_rules"] != KINDS[expected[r["entry_id"]]]]
    assert wrong == []
    by_kind = Counter(expected.values())
    assert sum(by_kind.values()) == len(held)

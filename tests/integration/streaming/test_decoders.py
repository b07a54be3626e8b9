"""Decoders on real Spark and Delta: a batch of many forms, what each becomes, and what does not decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.settings import StreamingSettings
from streaming import bronze, silver
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import parse_decoders
from streaming.predicates import parse_suite
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PRESENT = [
    {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": name},
        "meta": {"rule": f"{name}_present"},
    }
    for name in ("reading_id", "event_time", "value")
]
SUITE = parse_suite({"name": "present", "expectations": PRESENT}, "test")
TS = "2026-01-02T11:00:00Z"


class World:
    """Tables of one test, and batches of silver over what arrives."""

    def __init__(self, spark: SparkSession, root: Path, decoders: list[dict[str, Any]]) -> None:
        self.spark = spark
        self.tables = Tables.of(StreamingSettings(root=str(root / "lakehouse")))
        bronze.create_tables(spark, self.tables)
        silver.create_tables(spark, self.tables)
        self._recipe = silver.recipe_of(parse_decoders(decoders, "test"), SUITE, 600.0)

    def run(self, *messages: Message) -> None:
        bronze_rows.append(self.spark, self.tables, messages)
        checkpoint = Checkpoint(self.spark, self.tables.checkpoint("silver"))
        batches = silver.SilverBatches(self.tables, checkpoint, self._recipe)
        query = silver.query(self.spark, self.tables, batches).trigger(availableNow=True).start()
        query.awaitTermination()

    def silver(self, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.tables.silver.read(self.spark).orderBy("entry_id", "element").select(*columns).collect()
        return [tuple(row) for row in rows]

    def held(self) -> dict[tuple[int, int], Any]:
        rows = self.tables.quarantine.read(self.spark).collect()
        return {(row["entry_id"], row["element"]): row for row in rows}


def message(entry: int, form: str, payload: Any) -> Message:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Message(entry, "gw", body, fields={"mqtt_topic": f"gw/{form}"})


def test_each_element_of_an_array_is_a_reading_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    own = {"metric": "$.name", "value": "$.v", "id": "$.id", "time": "$.ts"}
    shared = {
        "metric": "t", "value": "$.v", "unit": "$$.unit", "id": "$$.id", "time": "$$.ts", "elements": "$.list",
        "max_elements": 3,
    }  # fmt: skip
    world = World(
        spark, tmp_path, [{"filter": "gw/own", "elements": "$", **own}, {"filter": "gw/shared", **shared}]
    )
    batch = {"id": "m1", "ts": TS, "unit": "K", "list": [{"v": 1}, {"v": "x"}, {"v": 3}]}
    world.run(
        message(1, "own", [{"id": f"r{n}", "ts": TS, "name": f"t{n}", "v": n} for n in range(2)]),
        message(2, "shared", batch),
        message(3, "shared", batch | {"list": 7}),
        message(4, "shared", batch | {"id": "m4", "list": []}),
        message(5, "shared", batch | {"list": [{"v": n} for n in range(4)]}),
        message(6, "own", b"[1"),
        message(7, "shared", batch),  # delivered again
    )
    found = world.silver("entry_id", "element", "reading_id", "metric", "value", "unit")
    assert found == [
        (1, 0, "r0", "t0", 0.0, None),
        (1, 1, "r1", "t1", 1.0, None),
        (2, 0, "m1#0", "t", 1.0, "K"),
        (2, 2, "m1#2", "t", 3.0, "K"),
    ]
    held = world.held()
    assert set(held) == {(2, 1), (7, 1), (3, 0), (5, 0), (6, 0)}
    assert bytes(held[2, 1]["payload"]) == b'{"v":"x"}'
    assert (held[2, 1]["failed_rules"], held[2, 1]["reading_id"]) == (["value_present"], "m1#1")
    assert bytes(held[6, 0]["payload"]) == b"[1"
    assert [held[n, 0]["reason"] for n in (3, 5, 6)] == [
        "there is no array at $.list",
        "more readings than max_elements, 3",
        "the payload is not UTF-8 JSON",
    ]

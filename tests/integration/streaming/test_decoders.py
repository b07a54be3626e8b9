"""Decoders on real Spark and Delta: a batch of many forms, what each becomes, and what does not decode."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
import zstandard

from bridge.settings import StreamingSettings
from streaming import bronze, silver
from streaming.checkpoints import Checkpoint
from streaming.decoders.settings import parse_decoders
from streaming.predicates import parse_suite
from streaming.tables import Tables
from tests.support import bronze_rows
from tests.support.bronze_rows import Message
from tests.support.reading_message import descriptor_set, encoded

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
    return Message(entry, f"gw-{form}", body, fields={"mqtt_topic": f"gw/{form}"})


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
        "the payload is not UTF-8 JSON, or is beyond Spark's limits: 1,000 levels, 1,000 digits of a number",
    ]


def test_a_batch_of_all_forms_and_what_does_not_decode(spark: SparkSession, tmp_path: Path) -> None:
    csv = {"format": "csv", "fields": ["id", "ts", "t"], "separator": ";"}
    forms: dict[str, dict[str, Any]] = {
        "gz": {"compression": "gzip", "max_bytes": 1000},
        "zst": {"compression": "zstd", "max_bytes": 1000, "elements": "$"},
        "csv": csv,
        "lines": csv | {"elements": "$", "compression": "gzip"},
        "cbor": {"format": "cbor"},
        "pb": {
            "format": "protobuf",
            "message": "t.Reading",
            "descriptor_set": base64.b64encode(descriptor_set()).decode(),
        },
        "py": {"format": "python", "function": "tests.support.reading_message:hexadecimal"},
        "raw": {"format": "raw", "value": "$", "id": "none"},
    }
    common = {"metric": "t", "value": "$.t", "id": "$.id", "time": "$.ts"}
    world = World(
        spark, tmp_path, [{"filter": f"gw/{name}", **common, **form} for name, form in forms.items()]
    )
    one = {"id": "r", "ts": TS, "t": 1.5}
    raw = json.dumps(one).encode()
    line = f"r;{TS};2.5".encode()
    good = {
        "gz": gzip.compress(raw), "zst": zstandard.compress(b"[" + raw + b"]"), "csv": line + b";new\n",
        "lines": gzip.compress(line + b"\r\n" + line.replace(b"r;", b"s;")), "cbor": cbor2.dumps(one),
        "pb": encoded("r", TS, 0.0), "py": b"ff",
    }  # fmt: skip
    bad = {
        "gz": gzip.compress(bytes(1001)), "zst": b"x", "csv": b"a;b\nc;d", "lines": gzip.compress(b";" * 30_000),
        "cbor": b"\x82\x01", "pb": b"\x0a\xff", "py": b"speed", "raw": b"\xff\xfe",
    }  # fmt: skip
    world.run(
        *(message(n, form, payload) for n, (form, payload) in enumerate(good.items(), 1)),
        *(message(n, form, payload) for n, (form, payload) in enumerate(bad.items(), 11)),
        message(20, "nobody", b"\xff"),
        message(21, "raw", b"21.5"),
    )
    found = {
        (row[0], row[1]): row[2:] for row in world.silver("mqtt_topic", "element", "reading_id", "value")
    }
    assert found == {
        ("gw/gz", 0): ("r", 1.5), ("gw/zst", 0): ("r", 1.5), ("gw/csv", 0): ("r", 2.5), ("gw/lines", 0): ("r", 2.5),
        ("gw/lines", 1): ("s", 2.5), ("gw/cbor", 0): ("r", 1.5), ("gw/pb", 0): ("r", 0.0), ("gw/py", 0): ("gw/py", 255.0),
    }  # fmt: skip
    held = world.held()
    assert {n for n, _ in held} == {*range(11, 19), 20, 21}
    assert [bytes(held[n, 0]["payload"]) for n in range(11, 19)] == list(bad.values())
    assert (held[21, 0]["value"], held[21, 0]["failed_rules"]) == (21.5, ["event_time_present"])
    reasons = {form: held[n, 0]["reason"] for n, form in enumerate(bad, 11)}
    for form, words in {
        "gz": "expands to more than max_bytes, 1000", "zst": "not zstd", "csv": "not one line of UTF-8 CSV",
        "lines": "far more fields", "cbor": "premature end", "pb": "protobuf: ValueError: premature end", "py": "python: ValueError",
        "raw": "event_time",
    }.items():  # fmt: skip
        assert words in reasons[form]
    assert held[11, 0]["failed_rules"][0] == "undecodable"


def test_h37_a_payload_beyond_a_limit_goes_to_quarantine_and_the_batch_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    forms: dict[str, dict[str, Any]] = {
        "json": {},
        "csv": {"format": "csv", "fields": ["id", "ts", "t"]},
        "cbor": {"format": "cbor"},
        "pb": {
            "format": "protobuf",
            "message": "t.Reading",
            "descriptor_set": base64.b64encode(descriptor_set()).decode(),
        },
        "py": {
            "format": "python",
            "function": "tests.support.reading_message:hexadecimal",
            "max_seconds": 0.2,
        },
        "raw": {"format": "raw", "value": "$", "id": "none"},
    }
    common = {"metric": "t", "value": "$.t", "id": "$.id", "time": "$.ts"}
    world = World(
        spark, tmp_path, [{"filter": f"gw/{name}", **common, **form} for name, form in forms.items()]
    )
    large = 2**20 + 1
    decimal = b"\xa1\x61t\xc4\x82\x01\xc2\x5a" + (10**6).to_bytes(4, "big") + b"\xff" * 10**6
    keys = [b"\xc2\x4a" + (k * (2**61 - 1) + 1).to_bytes(10, "big") + b"\x00" for k in range(1, 80_000)]
    levels, digits = "1,000 levels", "1,000 digits"
    hostile: list[tuple[str, bytes, str]] = [
        ("cbor", decimal, "more than 1000 digits"),
        ("cbor", b"\xba" + len(keys).to_bytes(4, "big") + b"".join(keys), "more than 256 keys"),
        ("pb", b"\x20\x01" * 400_000, "more values than max_values, 100000"),
        ("pb", b"\x0b" * 10_000, "max_depth, 64"),
        ("py", b"forever", "takes longer than max_seconds, 0.2"),
        ("py", b"\x00" * large, f"{large} bytes, max_bytes is 1048576"),
        ("json", b"[" * 100_000, levels),
        ("json", b'{"id":' * 100_000 + b"1" + b"}" * 100_000, levels),
        ("json", b'{"t":' + b"1" * 1_000_000 + b"}", digits),
        ("json", b'{"t":1,"t":2}', "not UTF-8 JSON"),
        ("json", b" " * large, f"{large} bytes, max_bytes is 1048576"),
        ("csv", b"1" * large, f"{large} bytes, max_bytes is 1048576"),
        ("raw", b"1" * large, f"{large} bytes, max_bytes is 1048576"),
    ]
    one = {"id": "r", "ts": TS, "t": 1.5}
    good: dict[str, bytes] = {
        "json": json.dumps(one).encode(), "csv": f"r,{TS},2.5".encode(), "cbor": cbor2.dumps(one),
        "pb": encoded("r", TS, 0.0), "py": b"ff",
    }  # fmt: skip
    world.run(
        *(message(n, form, payload) for n, (form, payload, _) in enumerate(hostile, 1)),
        *(message(n, form, payload) for n, (form, payload) in enumerate(good.items(), 101)),
    )
    assert {row[0]: row[1] for row in world.silver("mqtt_topic", "value")} == {
        "gw/json": 1.5, "gw/csv": 2.5, "gw/cbor": 1.5, "gw/pb": 0.0, "gw/py": 255.0,
    }  # fmt: skip
    held = world.held()
    assert {n for n, _ in held} == set(range(1, len(hostile) + 1))
    for n, (form, payload, words) in enumerate(hostile, 1):
        row = held[n, 0]
        assert (row["failed_rules"][0], bytes(row["payload"])) == ("undecodable", payload), form
        assert words in row["reason"], (form, row["reason"])


def test_h35_the_name_of_a_metric_has_the_one_limit_of_names(spark: SparkSession, tmp_path: Path) -> None:
    named = {"filter": "gw/own", "metric": "$.m", "value": "$.v", "id": "$.id", "time": "$.ts"}
    world = World(spark, tmp_path, [named])
    one = {"ts": TS, "v": 1.5}
    metrics = ["ü" * 512, "ü" * 513, "m" * 1_000_000]
    world.run(*(message(n, "own", one | {"id": f"r{n}", "m": metric}) for n, metric in enumerate(metrics)))
    assert world.silver("metric") == [("ü" * 512,)]
    held = {entry: (row["failed_rules"], row["reason"]) for (entry, _), row in world.held().items()}
    words = "the name of the metric has more bytes than max_name_bytes"
    assert held == {1: (["metric_too_long"], words), 2: (["metric_too_long"], words)}

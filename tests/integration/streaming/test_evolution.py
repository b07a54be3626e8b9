"""Unknown fields on real Spark and Delta: what is rescued, which columns silver gets, and what stops the query."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streaming.decoders.settings import parse_decoders

from streaming import silver
from streaming.evolution import RESCUED
from streaming.job import _SCHEMA_CHANGED, _cause
from streaming.readings import WORKING_COLUMNS
from streaming.tables import BRONZE_COLUMNS, QUARANTINE_COLUMNS, SILVER_COLUMNS, create
from tests.support import bronze_rows
from tests.support.bronze_rows import Message
from tests.support.silver_world import PRESENT, TIME, SilverWorld, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DECODER: dict[str, Any] = {"filter": "d/+", "metric": "t", "value": "$.t", "id": "$.id", "time": "$.ts"}


class Crash(Exception):
    """Stands for the end of a driver between two steps."""


def cut(at: str) -> Callable[[str], None]:
    def after(step: str) -> None:
        if step == at:
            raise Crash(at)

    return after


def reading(entry: int, topic: str = "d/1", **fields: Any) -> Message:
    return message(entry, topic, {"id": f"r{entry}", "ts": TIME, "t": 20.5} | fields)


# ---- what is rescued


def leftovers(document: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return what a tree does not know of an object: the plain way, in Python. Leaves are ``float``, ``int`` or None."""
    left = {}
    for name, value in document.items():
        below = known.get(name, "unknown")
        if isinstance(below, dict):
            inner = leftovers(value, below) if isinstance(value, dict) else value
            if inner not in ({}, None):
                left[name] = inner
        else:
            fits = below is None or value is None or isinstance(value, (bool, int, float))
            if below == "unknown" or not fits:
                left[name] = value
    return left


def documents(draw: random.Random) -> dict[str, Any]:
    """Return an object with names of all kinds, known and unknown, and values that fit and do not."""

    def value(depth: int) -> Any:
        kind = draw.randrange(9 if depth else 6)
        if kind < 6:
            return (None, True, draw.randrange(-99, 99), draw.randrange(999) + 0.25, "text", "")[kind]
        if kind == 6:
            return [value(depth - 1) for _ in range(draw.randrange(3))]
        names = ("b", "c", "d", "$$", "a b", "é'", "x.y")
        return {name: value(depth - 1) for name in draw.sample(names, draw.randrange(4))}

    names = ("a", "id", "ts", "t", "new", "$$", "Id", "__key", 'qu"ote', "sent")
    return {name: value(2) for name in draw.sample(names, draw.randrange(len(names)))}


def test_what_is_not_known_is_rescued_as_python_would_find_it(spark: SparkSession) -> None:
    """Objects, nested ones, and elements of an array with what is around it; nothing where all is known."""
    draw = random.Random(11)
    flat = [documents(draw) for _ in range(400)]
    gateways = [
        {"list": [documents(draw) for _ in range(draw.randrange(1, 4))], "gw": n, "at": TIME}
        if n % 5
        else {"list": [documents(draw)], "at": TIME}
        for n in range(60)
    ]
    own = {
        "metric": "m",
        "value": "$.a.b",
        "id": "$.id",
        "time": "$.ts",
        "sent": "$.sent",
        "ignored": ["$.t"],
    }
    known = {"a": {"b": float}, "id": None, "ts": None, "sent": int, "t": None}
    decoders = parse_decoders(
        [
            {"filter": "flat", **own},
            {"filter": "gw", **own, "elements": "$.list", "time": "$$.at"},
            {"filter": "raw", "metric": "m", "format": "raw", "value": "$", "id": "none", "time": "$"},
        ],
        "test",
    )
    messages = [
        *(message(n, "flat", body) for n, body in enumerate(flat)),
        *(message(1000 + n, "gw", body) for n, body in enumerate(gateways)),
        message(2000, "raw", b"5"), message(2001, "nobody", {"x": 1}), message(2002, "flat", b"{"),
        message(2003, "flat", b"7"), message(2004, "flat", {"sent": 2**62}),
    ]  # fmt: skip
    rows = silver.judged(bronze_rows.frame(spark, messages), silver.recipe_of(decoders, PRESENT, 600.0))
    found = {
        (r["entry_id"], r["element"]): None if r[RESCUED] is None else json.loads(r[RESCUED])
        for r in rows.select("entry_id", "element", RESCUED).collect()
    }
    expected: dict[tuple[int, int], Any] = {
        (n, 0): leftovers(body, known) or None for n, body in enumerate(flat)
    }
    in_list = {name: below for name, below in known.items() if name != "ts"}
    for n, body in enumerate(gateways):
        for place, element in enumerate(body["list"]):
            left = leftovers(element, in_list)
            if place == 0 and "gw" in body:
                left["$$"] = {"gw": body["gw"]}
            expected[1000 + n, place] = left or None
    expected |= dict.fromkeys([(2000, 0), (2001, 0), (2002, 0), (2003, 0)])
    expected[2004, 0] = {"sent": 2**62}  # no time that Python could read
    assert {at: (found[at], left) for at, left in expected.items() if found[at] != left} == {}
    assert set(found) == set(expected)


# ---- what becomes of the table


@pytest.mark.long
def test_a_field_that_is_named_like_what_a_row_carries_on_its_way_stays_a_field(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = SilverWorld(spark, tmp_path)
    silver.create_tables(spark, world.tables)
    fields = dict.fromkeys([*WORKING_COLUMNS, "Fault", "at", "kind"], "x")
    world.arrive(reading(1, **fields))
    world.run([DECODER], "add_columns", columns=20)
    world.arrive(reading(2, **fields))
    world.run([DECODER], "rescue")
    columns = world.tables.silver.read(spark).columns
    assert {name.lower() for name in columns}.isdisjoint(WORKING_COLUMNS)
    assert world.silver("reading_id", "at", "kind") == [("r1", "x", "x"), ("r2", "x", "x")]
    kept = {name: value for name, value in fields.items() if name not in ("at", "kind")}
    assert [json.loads(text) for (text,) in world.silver(RESCUED)] == [kept, kept]

    rows = silver.judged(
        world.tables.bronze.read(spark), silver.recipe_of(parse_decoders([DECODER], "test"), PRESENT, 600.0)
    )
    known = {c.name for c in (*BRONZE_COLUMNS, *QUARANTINE_COLUMNS, *SILVER_COLUMNS)}
    assert set(rows.columns) - known <= set(WORKING_COLUMNS)


def older_table(world: SilverWorld) -> None:
    """Make silver as it was before there was a column for rescued data, with a row and a column of its owner's."""
    before = tuple(c for c in SILVER_COLUMNS if c.name != RESCUED)
    create(world.spark, world.tables.silver, before, comment="before", statistics=("device",))
    table = world.tables.silver.sql
    world.spark.sql(f"ALTER TABLE {table} ADD COLUMNS (fw STRING, labels ARRAY<STRING>)")
    world.spark.sql(
        f"INSERT INTO {table} (reading_id, device, event_day, entry_id, element) "
        "VALUES ('old', 'd', DATE '2026-01-01', 0, 0)"
    )
    silver.create_tables(world.spark, world.tables)


@pytest.mark.long
def test_h18_columns_are_added_once_whatever_is_cut_and_edited_and_fail_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A table of before, cuts between the decision, the column and the rows, rules edited meanwhile; then ``fail``."""
    world = SilverWorld(spark, tmp_path)
    older_table(world)
    adding = [DECODER | {"schema_evolution": "add_columns"}, DECODER | {"filter": "other/+"}]
    world.arrive(
        reading(1, battery=90, fw="1.2", labels=["x"]),
        reading(2, battery=89.5, **{"not a name": 1, "Battery": 1, "device": "me"}),
        reading(3, "other/1", battery=1, rssi=-70),
        reading(4, ts="never", junk=1),
    )
    for step, decoders in (("recipe", adding), ("columns", [DECODER])):
        with pytest.raises(Exception, match=step):
            world.run(decoders, after=cut(step))
    world.run([DECODER])
    assert world.silver("reading_id", "Battery", "fw", RESCUED) == [
        ("old", None, None, None),
        ("r1", None, "1.2", '{"battery":90,"labels":["x"]}'),
        ("r2", 1.0, None, '{"battery":89.5,"device":"me","not a name":1}'),
        ("r3", None, None, '{"battery":1,"rssi":-70}'),
    ]
    types = {f.name: f.dataType.simpleString() for f in world.tables.silver.read(spark).schema.fields}
    assert "junk" not in types
    assert types["Battery"] == "double"

    strict = [DECODER | {"schema_evolution": "fail"}]
    world.arrive(reading(5, Battery="low"), reading(6, "d/2", rssi=-71, Battery=12))
    with pytest.raises(
        Exception, match=r"bridge.errors.TerminalError: the field 'rssi' on MQTT topic 'd/2'"
    ) as stopped:
        world.run(strict)
    assert _cause(stopped.value).terminal
    reader = world.tables.silver.read_stream(spark).writeStream.format("noop")
    stream = reader.option("checkpointLocation", str(tmp_path / "reader")).start()
    stream.processAllAvailable()
    world.run([DECODER | {"schema_evolution": "add_columns"}])
    assert world.silver("reading_id", "Battery", "rssi", RESCUED)[-2:] == [
        ("r5", None, None, '{"Battery":"low"}'),
        ("r6", 12.0, -71.0, None),
    ]
    counted = [(one.field, one.kind, one.count) for one in world.found[-1][0]]
    assert counted == [("Battery", "unfit", 1), ("rssi", "integer", 1)]
    assert len(world.silver("reading_id")) == 6
    # A job that reads silver as a stream starts again for that, and it is no failure of its.
    with pytest.raises(Exception, match=_SCHEMA_CHANGED) as changed:
        stream.processAllAvailable()
    assert _SCHEMA_CHANGED in _cause(changed.value).text

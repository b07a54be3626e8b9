"""Messages into typed rows on real Spark: columns, ids and times, what is rescued, and what no payload can do."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding
from streaming.decoders.times import AUTO_BOUNDS
from streaming.decoding import decoded
from tests.support.reading_message import descriptor_set, encoded
from tests.support.source_messages import ARRIVAL, SentMessage, frame, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sources.payloads.message import Message

pytestmark = pytest.mark.spark

UTC = timezone.utc
TYPED = "a double, b string, n bigint, o boolean, s struct<x double, y string, t struct<z bigint>>, l array<double>"


def rows_of(
    spark: SparkSession,
    messages: Sequence[SentMessage],
    *decodings: dict[str, Any],
    rules: Sequence[TopicRule] = (),
) -> list[Any]:
    """Return the rows in the order of positions, with ``event_time`` in µs: Spark gives times in the session's zone."""
    from pyspark.sql import functions as F

    found = decoded(frame(spark, messages), [Decoding(**{"filter": "gw/+", **one}) for one in decodings], rules)
    found = found.withColumn("event_time", F.unix_micros("event_time"))
    return sorted(found.collect(), key=lambda row: (row["_position"]["entry"], row["_position"]["element"]))


def at(row: Any) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row["event_time"])


@pytest.mark.parametrize(
    ("decoding", "parser"),
    [
        (
            {"fields": "a double, b string", "id": "$.i", "time": "$.t", "where": "a > 1"},
            "columnNameOfCorruptRecord,_bad",
        ),
        ({"fields": "a double, b string", "elements": "$.of"}, "columnNameOfCorruptRecord,_bad"),
        ({}, "map_entries(try_variant_get(_root"),
    ],
    ids=["object", "array", "long rows"],
)
def test_a_condition_behind_a_decoding_parses_no_payload_another_time(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], decoding: dict[str, Any], parser: str
) -> None:
    rows = decoded(frame(spark, sent({"a": 1})), [Decoding(filter="gw/+", **decoding)], ())
    # As alerts ask: the row is a good one, and of a device.
    rows.where("_fault IS NULL AND device IS NOT NULL AND event_time > arrival_time").explain(mode="extended")
    plan = capsys.readouterr().out.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    assert plan.count(parser) == 1, plan


def test_fields_captures_and_what_a_row_has_beside_them(spark: SparkSession) -> None:
    body = {"t": 21.5, "AM2301": {"Temperature": 20, "New": 1}, "Time": "2026-07-01T12:00:00", "id": 7}
    climate = {
        "filter": "tele/+device/+kind",
        "fields": "t double, AM2301 struct<Temperature double>",
        "columns": {"warmth": "AM2301.Temperature", "double_t": "t * 2", "of": "concat(kind, '/', device)"},
        "time": "$.Time",
        "time_zone": "Europe/Berlin",
        "id": "$.id",
    }
    messages = [
        *sent(body, topic="tele/a/SENSOR", device=None, more={"command_topic": "cmnd/a"}),
        SentMessage(1, json.dumps(body).encode(), "tele/a/SENSOR", "gateway"),
        SentMessage(2, json.dumps(body).encode(), "tele/a/SENSOR/more"),
        SentMessage(3, json.dumps(body).encode(), None, more={"mqtt_topic": None}),  # type: ignore[arg-type]
    ]
    first, second = rows_of(spark, messages, climate)
    assert list(first.asDict()) == [
        "device", "kind", "event_time", "arrival_time", "mqtt_topic", "command_topic", "warmth", "double_t", "of",
        "_id", "_rescued_data", "_position", "_payload", "_fault",
    ]  # fmt: skip
    assert (first["device"], first["kind"], first["command_topic"]) == ("a", "SENSOR", "cmnd/a")
    assert (first["warmth"], first["double_t"], first["_fault"]) == (20.0, 43.0, None)
    assert at(first) == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert first["_id"] == "7"
    assert json.loads(first["_rescued_data"]) == {"AM2301": {"New": 1}}
    assert first["_position"].asDict() == {
        "topic": "persistent://public/t/gw", "partition": 0, "ledger": 7, "entry": 0, "index": 0, "element": 0,
    }  # fmt: skip
    assert bytes(first["_payload"]) == json.dumps(body).encode()
    assert (second["device"], second["of"]) == ("gateway", "SENSOR/gateway")


def test_id_and_time_are_those_of_the_topic_rule_where_the_decoding_names_none(spark: SparkSession) -> None:
    rules = [
        TopicRule(name="r", filter="gw/+d", reading_id="{d}-{json:$.i}", reading_time="{json:$.seen}"),
        TopicRule(name="u", filter="gw/#", reading_id="{user:id}"),
    ]
    messages = [
        *sent({"t": 1, "seen": "2026-07-01T12:00:00Z", "i": 5}, {"t": 2, "seen": "yesterday", "i": ""}, {"t": 3}),
        SentMessage(3, b'{"t":4,"seen":0}', rule="u", user=[("id", "x"), ("id", "x")]),
        SentMessage(4, b'{"t":5}', rule="u", user=[("id", "x"), ("id", "y")]),
    ]
    rows = rows_of(spark, messages, {"fields": "t double"}, rules=rules)
    assert [row["_id"] for row in rows] == ["d1-5", "7:1:0#0", "7:2:0#0", "x", "7:4:0#0"]
    assert [at(row) for row in rows] == [datetime(2026, 7, 1, 12, tzinfo=UTC), *[ARRIVAL] * 4]
    assert [row["_fault"] for row in rows] == [
        None, "the time yesterday is not a number since 1970 or an ISO 8601 time with a date", None, None, None,
    ]  # fmt: skip


def test_each_element_of_an_array_is_a_row_with_its_index(spark: SparkSession) -> None:
    bodies = [
        {"g": 7, "list": [{"t": 1, "id": "a"}, {"t": "x", "id": "b"}, 4]}, {"list": []}, {"no": 1}, "xx",
        {"g": 8, "list": [{"t": n} for n in range(4)]},
    ]  # fmt: skip
    one = {"fields": "t double", "elements": "$.list", "id": "$.id", "time": "$$.g", "max_elements": 3}
    rows = rows_of(spark, sent(*bodies), one)
    assert [(row["_id"], row["t"], row["_rescued_data"]) for row in rows] == [
        ("a", 1.0, None), ("b", None, '{"t":"x"}'), ("7:0:0#2", None, None),
        ("7:2:0#0", None, None), ("7:3:0#0", None, None), ("7:4:0#0", None, None),
    ]  # fmt: skip
    assert [bytes(row["_payload"]) for row in rows[:3]] == [b'{"id":"a","t":1}', b'{"id":"b","t":"x"}', b"4"]
    assert [row["event_time"] for row in rows[:3]] == [7_000_000] * 3
    faults = [row["_fault"] for row in rows]
    assert faults[:2] == [None, None]
    assert "not a JSON object" in faults[2]
    assert faults[3:] == ["no array at $.list"] * 2 + ["more elements than max_elements, 3"]
    assert bytes(rows[5]["_payload"]) == json.dumps(bodies[4]).encode()


def test_the_first_decoding_whose_filter_matches_decides_and_one_table_has_the_columns_of_all(
    spark: SparkSession,
) -> None:
    decodings: list[dict[str, Any]] = [
        {"filter": "gw/own", "fields": "t double, extra string", "time": "$.at"},
        {"filter": "gw/csv", "format": "csv", "fields": "n string, t double"},
        {"filter": "gw/lines", "format": "csv", "fields": "n string, t double", "elements": "$"},
        {"filter": "gw/raw", "format": "raw", "fields": "t double"},
        {"filter": "gw/+where", "fields": "t double, n string", "where": "t > 1"},
    ]
    payloads: list[tuple[str, Any]] = [
        ("own", {"t": 1, "extra": "e", "at": 5, "u": 2}), ("csv", "a,1.5"), ("csv", "b,x,more\r\n"), ("csv", ""),
        ("csv", "a,1\nb,2"), ("csv", "," * 100), ("lines", "a,1\r\nb,2,3\n"), ("raw", "21.5"), ("raw", "on"),
        ("raw", b"\xff"), ("raw", "1e999"), ("x", {"t": 1}), ("y", {"t": 2}), ("z", "{"), ("own/not", {"t": 9}),
    ]  # fmt: skip
    messages = [sent(body, topic=f"gw/{name}", more={"entry_id": n})[0] for n, (name, body) in enumerate(payloads)]
    rows = rows_of(spark, messages, *decodings)
    found = [
        (
            row["_position"]["entry"],
            row["t"],
            row["n"],
            row["where"],
            row["_rescued_data"],
            row["_fault"] is None,
        )
        for row in rows
    ]
    assert found == [
        (0, 1.0, None, None, '{"u":2}', True), (1, 1.5, "a", None, None, True),
        (2, None, "b", None, '{"t":"x","field3":"more"}', True), (3, None, None, None, None, False),
        (4, None, None, None, None, False), (5, None, None, None, None, False),
        (6, 1.0, "a", None, None, True), (6, 2.0, "b", None, '{"field3":"3"}', True),
        (7, 21.5, None, None, None, True), (8, None, None, None, '{"t":"on"}', True),
        (9, None, None, None, None, False), (10, None, None, None, '{"t":"1e999"}', True),
        (12, 2.0, None, "y", None, True), (13, None, None, "z", None, False),
    ]  # fmt: skip
    assert rows[0]["event_time"] == 5_000_000


def several(payload: bytes, message: Message) -> Any:
    """A decoder of a user's own."""
    if payload == b"hello":
        return None
    named = {
        "topic": message.topic,
        "device": message.device,
        "unit": dict(message.user_properties).get("unit"),
    }
    arrived = message.arrival_time
    assert arrived is not None
    return [named | {"t": int(one), "year": arrived.year, **message.captures} for one in payload.split(b" ")]


def test_h37_python_decodes_in_bounds_and_what_fails_is_a_fault_of_that_payload_alone(
    spark: SparkSession,
) -> None:
    decodings: list[dict[str, Any]] = [
        {"filter": "gw/json", "fields": "t double"},
        {"filter": "gw/gz", "compression": "gzip", "fields": "t double", "max_size": "1000B"},
        {"filter": "gw/zstd", "compression": "zstd", "fields": "t double", "format": "csv"},
        {"filter": "gw/cbor", "format": "cbor", "fields": "t double, id string", "id": "$.id"},
        {"filter": "gw/pb", "format": "protobuf", "message": "t.Reading", "fields": "t double, ts string",
         "descriptor_set": base64.b64encode(descriptor_set()).decode(), "time": "ts"},
        {"filter": "gw/py/+x", "format": "python", "function": f"{__name__}:several",
         "fields": "t double, topic string, unit string, year int, x string", "columns":
         {"t": "t", "joined": "concat_ws(' ', topic, unit, year, fields.x)"}},
        {"filter": "gw/slow", "format": "python", "function": "tests.support.reading_message:hexadecimal",
         "fields": "t double", "max_time": "200ms"},
    ]  # fmt: skip
    nulls = {"type": "array", "items": "null"}
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "t", "type": "double"}, {"name": "l", "type": nulls}],
    }
    decodings.append({"filter": "gw/avro", "format": "avro", "avro_schema": json.dumps(record), "fields": "t double"})
    many = b"\x00" * 8 + b"\x80" * 6 + b"\x01\x00"  # an array of 2^41 elements that take no bytes
    decimal = b"\xa1\x61t\xc4\x82\x01\xc2\x5a" + (10**6).to_bytes(4, "big") + b"\xff" * 10**6
    payloads: list[tuple[str, bytes]] = [
        ("json", b'{"t":1}'), ("json", b" " * (2**20 + 1)), ("gz", gzip.compress(b'{"t":2}')), ("gz", gzip.compress(bytes(2000))),
        ("gz", b"xx"), ("zstd", zstandard.compress(b"3")), ("cbor", cbor2.dumps({"t": 4, "id": "i", "more": [1]})),
        ("cbor", decimal), ("pb", encoded("r", "2026-01-02T11:00:00Z", 5.0)), ("pb", b"\x0b" * 10_000),
        ("py/q", b"6 7"), ("py/q", b"hello"), ("py/q", b"eight"), ("slow", b"forever"), ("slow", b"ff"),
        ("avro", b"\x00" * 6 + b"\xf0\x3f" + b"\x02\x00"), ("avro", many),
    ]  # fmt: skip
    messages = [SentMessage(n, body, f"gw/{name}", user=[("unit", "km")]) for n, (name, body) in enumerate(payloads)]
    rows = rows_of(spark, messages, *decodings)
    good = [(row["_position"]["entry"], row["t"], row["_rescued_data"]) for row in rows if row["_fault"] is None]
    assert good == [
        (0, 1.0, None), (2, 2.0, None), (5, 3.0, None), (6, 4.0, '{"more":[1]}'), (8, 5.0, '{"id":"r"}'),
        (10, 6.0, '{"device":"d1"}'), (10, 7.0, '{"device":"d1"}'), (14, 255.0, '{"id":"gw/slow","ts":"2026-01-02T11:00:00Z"}'), (15, 1.0, '{"l":[null]}'),
    ]  # fmt: skip
    joined = {row["joined"] for row in rows if row["_position"]["entry"] == 10}
    assert joined == {"gw/py/q km 2026 q"}
    assert [row["_id"] for row in rows if row["_position"]["entry"] in (6, 10)] == [
        "i",
        "7:10:0#0",
        "7:10:0#1",
    ]
    words = {
        1: "1048577 bytes, max_size is 1048576", 3: "expands to more than max_size, 1000", 4: "not gzip",
        7: "more than 1000 digits", 9: "max_depth, 64", 12: "python: ValueError", 13: "takes longer than max_time, 0.2",
    }  # fmt: skip
    faults = {row["_position"]["entry"]: row["_fault"] for row in rows if row["_fault"] is not None}
    assert re.search("max_time, 1|max_memory, 512", faults.pop(16))
    assert faults.keys() == words.keys()
    assert all(text in faults[n] for n, text in words.items()), faults


HOSTILE: list[bytes] = [
    b"", b"  ", b"null", b"3", b'"text"', b"[]", b'[{"a":1}]', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1,"a":2}',
    b'{"s":{"x":1,"x":2}}', b'{"u":{"x":1,"x":2}}', b"\xff\xfe", b'{"a":1}garbage', b'{"a":1}{"a":2}', b'{"a":1},{"a":2}',
    b'{"a":1}]', b"{'a':1}", b'{"a":tru', b'{"a":01}', b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"id":' * 100_000 + b"1" + b"}" * 100_000, b'{"u":' + b"[" * 1001 + b"]" * 1001 + b"}",
    b'{"a":' + b"1" * 1_000_000 + b"}", b" " * (2**20 + 1), b'{"b":"' + b"x" * 5_000_000 + b'"}', b"\x00", b'{"a":1}\x00',
]  # fmt: skip


@pytest.mark.parametrize("fields", [TYPED, None], ids=["typed", "readings"])
def test_nothing_that_a_device_sends_raises(spark: SparkSession, fields: str | None) -> None:
    """Payloads that are a fault where fields are declared; in the long form some are text, or nothing."""
    taken = [
        b'{"b":"\\u0000z"}',
        b'{"a":1e400}',
        b'{"n":' + b"9" * 400 + b"}",
        b'{"b":"' + b"x" * 1_000_000 + b'"}',
    ]
    nothing: list[Any] = [None] if fields is None else []
    messages = sent(*HOSTILE, *taken)
    messages += [SentMessage(len(messages) + n, one) for n, one in enumerate(nothing)]
    messages += [SentMessage(1000, b'{"a":1}', f"gw/{'x' * 60_000}", "d" * 60_000)]
    rows = rows_of(spark, messages, {"fields": fields})
    if fields is None:
        values = [v for row in rows for v in (row["value"],) if v is not None]
        assert all(map(math.isfinite, values))
        return
    assert [row["_position"]["entry"] for row in rows if row["_fault"] is not None] == list(range(len(HOSTILE)))
    text, huge, large, long, last = rows[len(HOSTILE) :]
    assert (text["b"], text["_rescued_data"]) == ("\0z", None)
    assert (huge["a"], huge["_rescued_data"]) == (None, '{"a":"Infinity"}')
    assert (large["n"], large["_rescued_data"]) == (None, '{"n":"Infinity"}')
    assert len(long["b"]) == 1_000_000
    assert (last["a"], last["device"]) == (1.0, "d" * 60_000)


# --- what is rescued, against a model ---

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e15, 1e15) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from(["a", "b", "n", "o", "s", "l", "A", "g", "z", '"k" :', "x'y", "`"])
INNER = st.sampled_from(["x", "y", "t", "h", "w"])
documents = st.dictionaries(
    NAMES, values | st.dictionaries(INNER, values | st.dictionaries(st.sampled_from(["z", "q"]), values, max_size=2), max_size=4),
    max_size=5,
)  # fmt: skip
MODEL = {
    "a": "double", "b": "string", "n": "bigint", "o": "boolean", "l": "array",
    "s": {"x": "double", "y": "string", "t": {"z": "bigint"}, "h": None}, "g": None,
}  # fmt: skip


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fits(kind: str, value: object) -> bool:
    if kind == "double":
        return is_number(value)
    if kind == "bigint":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "array":
        return isinstance(value, list) and all(one is None or is_number(one) for one in value)
    return True


def left(document: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return what the model says is rescued."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            found[name] = value
        elif value is None or known[name] is None:
            continue
        elif isinstance(known[name], dict):
            inside = left(value, known[name]) if isinstance(value, dict) else value
            if inside or not isinstance(value, dict):
                found[name] = inside
        elif not fits(known[name], value):
            found[name] = value
    return found


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(bodies=st.lists(documents, min_size=40, max_size=120), spaced=st.booleans())
def test_what_is_unknown_or_does_not_fit_is_rescued_and_nothing_else(
    spark: SparkSession, bodies: list[dict[str, Any]], spaced: bool
) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    texts = [json.dumps(body, separators=separators, ensure_ascii=not spaced) for body in bodies]
    rows = rows_of(spark, sent(*texts), {"fields": TYPED, "ignored": ("g", "s.h")})
    for body, row in zip(bodies, rows, strict=True):
        assert row["_fault"] is None, body
        rescued = {} if row["_rescued_data"] is None else json.loads(row["_rescued_data"])
        assert rescued == left(body, MODEL), (body, row)
        for name in ("a", "n", "o"):
            given_value = body.get(name)
            assert row[name] == (given_value if given_value is not None and fits(MODEL[name], given_value) else None)


@pytest.mark.thorough
def test_arrays_and_maps_that_took_less_than_was_given_are_rescued_whole(spark: SparkSession) -> None:
    fields = "st array<struct<k int, w int>>, m map<string, double>, v variant"
    bodies = [
        {"st": [{"k": 1, "w": 2}], "m": {"p": 1.5}, "v": {"any": [1]}}, {"st": [{"k": 1, "new": 2}]},
        {"st": [{"k": "x"}]}, {"m": {"p": "x"}}, {"st": {"k": 1}}, {"m": [1]},
    ]  # fmt: skip
    rows = rows_of(spark, sent(*bodies), {"fields": fields, "columns": {"st": "st", "m": "m", "v": "to_json(v)"}})
    assert [row["_rescued_data"] for row in rows] == [
        None, '{"st":[{"k":1,"new":2}]}', '{"st":[{"k":"x"}]}', '{"m":{"p":"x"}}', '{"st":{"k":1}}', '{"m":[1]}',
    ]  # fmt: skip
    assert (rows[0]["m"], rows[0]["v"]) == ({"p": 1.5}, '{"any":[1]}')


# --- times ---

UNITS = {"s": Decimal(10**6), "ms": Decimal(10**3), "us": Decimal(1), "ns": Decimal("0.001")}
EXACT = Context(prec=80)


def time_of(number: str, unit: str) -> datetime | None:
    """Return the time that a number says, rounded down to µs; None outside of what Python knows."""
    value = Decimal(number)
    if unit == "auto":
        unit = next((name for name, bound in AUTO_BOUNDS if abs(value) < bound), "ns")
    value = EXACT.quantize(value, Decimal("1e-9"))
    micros = EXACT.multiply(value, UNITS[unit]).to_integral_value(ROUND_FLOOR)
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(micros))
    except OverflowError:
        return None


def numbers() -> Iterator[str]:
    """Numbers of all sizes, whole, with a point, with an exponent; and the bounds themselves."""
    draw = random.Random(7)
    for _ in range(400):
        digits = str(draw.randrange(10 ** draw.randrange(1, 20)))
        yield draw.choice(("", "-")) + digits
        yield f"{digits}.{draw.randrange(10**9):09d}"
    for _, bound in AUTO_BOUNDS:
        yield from (str(bound - 1), str(bound), str(-bound), f"{bound - 1}.999999999")
    for seconds in (253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801):
        yield from (f"{seconds}", f"{seconds}e3", f"{seconds}E+6")


TEXTS: dict[str, datetime | None] = {
    "2026-01-02T12:00:00+01:00": datetime(2026, 1, 2, 11, tzinfo=UTC),
    "2026-01-02 11:00:00.25Z": datetime(2026, 1, 2, 11, 0, 0, 250_000, tzinfo=UTC),
    "2026-02-17T07:49:09.935284891Z": datetime(2026, 2, 17, 7, 49, 9, 935_284, tzinfo=UTC),
    "2026-01-02T11:00:00": datetime(2026, 1, 2, 10, tzinfo=UTC),
    "2026-07-02T11:00": datetime(2026, 7, 2, 9, tzinfo=UTC),
    "2026-07-02": datetime(2026, 7, 1, 22, tzinfo=UTC),
    "true": None, "soon": None, "NaN": None, "12:30": None, "1 700": None, "9999-12-31T23:59:59-14:00": None,
    "2026-13-01": None, "2026-01-02T11:00:00 Nowhere/City": None,
}  # fmt: skip


def test_times_of_every_unit_are_read_exactly_and_local_ones_by_their_zone(spark: SparkSession) -> None:
    """JSON numbers and text; the session's own zone has no part in it."""
    units = (*UNITS, "auto")
    decodings = [{"filter": f"x/{unit}", "fields": "v int", "time": "$.t", "time_unit": unit} for unit in units]
    decodings.append(
        {
            "filter": "x/iso",
            "fields": "v int",
            "time": "$.t",
            "time_unit": "iso",
            "time_zone": "Europe/Berlin",
        }
    )
    decodings.append({"filter": "x/zone", "fields": "v int", "time": "$.t", "time_zone": "Europe/Berlin"})
    messages: list[SentMessage] = []
    expected: list[datetime | None] = []
    for n, number in enumerate(numbers()):
        text = f'"{number}"' if n % 2 else number
        messages.append(SentMessage(len(messages), f'{{"t":{text}}}'.encode(), f"x/{units[n % 5]}"))
        expected.append(time_of(number, units[n % 5]))
    for text, time in TEXTS.items():
        for unit in ("iso", "zone"):
            messages.append(SentMessage(len(messages), json.dumps({"t": text}).encode(), f"x/{unit}"))
            expected.append(time)
    messages.append(SentMessage(len(messages), b'{"t":1700000000}', "x/iso"))
    expected.append(None)
    rows = rows_of(spark, messages, *decodings)
    found = [None if row["_fault"] is not None else at(row) for row in rows]
    wrong = {
        (one.topic, one.payload): (time, known)
        for one, time, known in zip(messages, found, expected, strict=True)
        if time != known
    }
    assert wrong == {}
    assert rows[-1]["_fault"] == (
        "the time 1700000000 is not an ISO 8601 time with a date; time_unit sets how numbers are read"
    )


# --- declarations that Spark refuses ---


@pytest.mark.parametrize(
    ("decodings", "words"),
    [
        ([], "no decoding is given"),
        ([{"filter": "a/+", "fields": "t int"}, {"filter": "a/+x", "fields": "t int"}], "two decodings have the filter a/+"),
        ([{"filter": "a", "fields": "t int"}, {"filter": "b"}], "with fields and without"),
        ([{"filter": "a", "fields": "t nothing"}], "Spark rejects the decoding of a: "),
        ([{"filter": "a", "fields": "t int", "columns": {"x": "there_is_none + 1"}}], "there_is_none"),
        ([{"filter": "a", "fields": "device string"}], "column device exists already"),
        ([{"filter": "a", "fields": "t int"}, {"filter": "b", "fields": "t string"}], "column t is int and string"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_one_line(spark: SparkSession, decodings: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decoded(frame(spark, []), [Decoding(**one) for one in decodings])
    assert words in caught.value.what
    assert "\n" not in caught.value.what


def test_a_field_that_is_called_like_a_column_of_the_message_is_reached_by_fields(
    spark: SparkSession,
) -> None:
    one = {
        "fields": "device string, _id int",
        "columns": {"name": "fields.device", "own": "fields._id", "of": "device"},
    }
    (row,) = rows_of(spark, sent({"device": "inner", "_id": 5}), one)
    assert (row["name"], row["own"], row["of"], row["device"], row["_rescued_data"]) == (
        "inner",
        5,
        "d1",
        "d1",
        None,
    )

"""The neutral long form on real Spark: a row for each field of any payload, without any declaration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.settings import Settings
from bridge.settings.presets import declared_decoders
from bridge.settings.rules import TopicRule
from bridge.settings.tables import Decoding
from streaming.decoding import decoded
from streaming.reading import Reader
from streaming.readings import READINGS
from tests.support.source_messages import ARRIVAL, SentMessage, frame, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sources.payloads.message import Message

pytestmark = pytest.mark.spark


def rows_of(
    spark: SparkSession,
    messages: Sequence[SentMessage],
    decoding: Decoding = READINGS,
    rules: Sequence[TopicRule] = (),
) -> list[Any]:
    from pyspark.sql import functions as F

    found = decoded(frame(spark, messages), [decoding], rules).withColumn("event_time", F.unix_micros("event_time"))
    return sorted(found.collect(), key=lambda row: (row["_position"]["entry"], row["_position"]["element"]))


def short(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(row["_position"]["entry"], row["metric"], row["value"], row["text"]) for row in rows]


def test_each_field_is_a_row_with_a_number_or_a_text(spark: SparkSession) -> None:
    body = {
        "a": 1.5, "b": "x", "c": True, "n": None, "AM2301": {"Temperature": 20, "of": "21.5"}, "arr": [1, {"z": 2}],
        "l1": {"l2": {"l3": {"l4": 1, "deep": {"l5": 2}}}}, "big": 2**53 + 1, "none": {}, "false": False,
    }  # fmt: skip
    rows = rows_of(spark, sent(body, [{"a": 1}, {"b": 2, "c": {"d": "x"}}], [1, {"a": 2}], []))
    found = {metric: (value, text) for n, metric, value, text in short(rows) if n == 0}
    assert found == {
        "a": (1.5, None), "b": (None, "x"), "c": (1.0, "true"), "AM2301.Temperature": (20.0, None),
        "AM2301.of": (None, "21.5"), "arr": (None, '[1,{"z":2}]'), "l1.l2.l3.l4": (1.0, None),
        "l1.l2.l3.deep": (None, '{"l5":2}'), "big": (float(2**53), str(2**53 + 1)), "false": (0.0, "false"),
    }  # fmt: skip
    assert short(rows)[len(found) :] == [
        (1, "a", 1.0, None), (1, "b", 2.0, None), (1, "c.d", None, "x"), (2, "d1", None, '[1,{"a":2}]'),
    ]  # fmt: skip
    assert len({row["_id"] for row in rows}) == len(rows)
    assert {row["event_time"] for row in rows} == {int(ARRIVAL.timestamp() * 10**6)}
    assert {(row["device"], row["mqtt_topic"], row["_fault"], row["_rescued_data"]) for row in rows} == {
        ("d1", "gw/d1", None, None)
    }


def test_a_plain_payload_is_one_row_named_by_its_route_or_its_topic(spark: SparkSession) -> None:
    payloads: list[Any] = [
        "21.5", " 7\n", "on", '"quoted"', "true", "-1e3", "1e400", "NaN", "1 2", "1,2", "[INFO] begins", "21.5 C", "0x10",
        "", " ", "null", '{"a":', '{"a":1}{"b":2}', '[{"a":1}', b"\xff", '{"a":1,"a":2}',
    ]  # fmt: skip
    rows = rows_of(spark, sent(*payloads, topic="homie/d1/sensor/temperature"))
    assert short(rows) == [
        (n, "temperature", *found)
        for n, found in enumerate(
            [(21.5, None), (7.0, None), (None, "on"), (None, "quoted"), (1.0, "true"), (-1000.0, None), (None, "Infinity"),
             (None, "NaN"), (None, "1 2"), (None, "1,2"), (None, "[INFO] begins"), (None, "21.5 C"), (None, "0x10")]
        )
    ] + [(n, None, None, None) for n in range(16, 21)]  # fmt: skip
    faults = [row["_fault"] for row in rows]
    assert faults[:13] == [None] * 13
    assert all("begins like JSON and is not JSON" in faults[n] for n in (13, 14, 15, 17))
    assert faults[16] == "the payload is not UTF-8"


def test_routes_name_metric_id_and_time_and_the_topic_is_the_id_of_a_device_without_a_name(
    spark: SparkSession,
) -> None:
    rules = [
        TopicRule(name="plain", filter="gw/+metric/value"),
        TopicRule(name="timed", filter="gw/+d", reading_id="{json:$.id}", reading_time="{json:$.last.seen}"),
    ]
    messages = [
        SentMessage(0, b"5", "gw/warmth/value", None, "plain"),
        SentMessage(1, b'{"id":"i","last":{"seen":1700000000},"t":1}', "gw/x", "d", "timed"),
        SentMessage(2, b'{"last":{"seen":"soon"}}', "gw/x", "d", "timed"),
        SentMessage(3, b"6", "$SYS/broker/load"),
    ]
    rows = rows_of(spark, messages, rules=rules)
    assert [(row["device"], row["metric"], row["_id"]) for row in rows] == [
        ("gw/warmth/value", "warmth", "7:0:0#0"), ("d", "id", "i#0"), ("d", "last.seen", "i#1"), ("d", "t", "i#2"),
        ("d", "last.seen", "7:2:0#0"),
    ]  # fmt: skip
    assert {row["event_time"] for row in rows if row["_id"].startswith("i#")} == {1_700_000_000_000_000}
    assert [row["_fault"] is None for row in rows] == [True] * 4 + [False]
    own = Decoding(filter="gw/+", id="$.id", time="$.last.seen", max_elements=2)
    found = rows_of(spark, messages[1:2], own)
    assert [(row["metric"], row["_fault"]) for row in found] == [(None, "more fields than max_elements, 2")]


def test_other_forms_give_the_same_rows(spark: SparkSession) -> None:
    lines = Decoding(filter="gw/+", format="csv", names=("when", "t"), elements="$", time="$.when", time_unit="s")
    rows = rows_of(spark, sent("10,1.5\n20,on\n"), lines)
    assert short(rows) == [
        (0, "t", 1.5, None),
        (0, "when", 10.0, None),
        (0, "t", None, "on"),
        (0, "when", 20.0, None),
    ]
    assert [row["event_time"] // 10**6 for row in rows] == [10, 10, 20, 20]
    elements = Decoding(filter="gw/+", elements="$.list", time="$$.at")
    found = rows_of(spark, sent({"at": 30, "list": [{"a": 1, "b": 2}, {"a": 3}]}), elements)
    assert [(metric, value) for _, metric, value, _ in short(found)] == [("a", 1.0), ("b", 2.0), ("a", 3.0)]
    assert len({row["_id"] for row in found}) == 3
    assert {datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=row["event_time"]) for row in found} == {
        datetime(1970, 1, 1, 0, 0, 30, tzinfo=timezone.utc)
    }


def own_decoder(payload: bytes, message: Message) -> Any:
    """A decoder of a user's own: any number of metrics, also of fields outside the payload."""
    if payload == b"hello":
        return None
    assert message.arrival_time is not None
    return [
        {"n": n, message.captures["unit"]: float(one), "year": message.arrival_time.year}
        for n, one in enumerate(payload.split())
    ]


def test_settings_say_what_is_no_reading_how_others_are_read_and_in_which_zone(spark: SparkSession) -> None:
    own = [
        {"filter": "gw/logs/#", "format": "none"},
        {"filter": "py/+unit", "format": "python", "function": f"{__name__}:own_decoder"},
        {"filter": "local/#", "time": "$.Time", "time_zone": "America/New_York"},
    ]  # fmt: skip
    settings = Settings.model_validate(
        {"ingest": {"presets": ["zigbee2mqtt"]}, "streaming": {"decoders": own, "time_zone": "Europe/Berlin"}}
    )
    body = {"Time": "2026-01-01T12:00:00"}
    payloads: list[tuple[str, Any]] = [
        ("gw/logs/x", {"a": 1}), ("py/kWh", b"1.5 2"), ("py/kWh", b"hello"), ("py/kWh", b"x"), ("local/d", body),
        ("gw/d", body), ("zigbee2mqtt/bridge/state", {"state": "online"}), ("zigbee2mqtt/lamp", {"state": "ON"}),
    ]  # fmt: skip
    messages = [sent(one, topic=topic, more={"entry_id": n})[0] for n, (topic, one) in enumerate(payloads)]
    rules = [TopicRule(name="r", filter="gw/+d", reading_time="{json:$.Time}")]
    settings = settings.model_copy(update={"ingest": settings.ingest.model_copy(update={"routes": tuple(rules)})})
    reader = Reader(spark, settings, stored=frame(spark, messages))
    found = reader.decoded(declared_decoders(settings)).selectExpr("*", "unix_micros(event_time) AS us").collect()
    rows = sorted(found, key=lambda row: (row["_position"]["entry"], row["_position"]["element"]))
    assert short(rows) == [
        (1, "kWh", 1.5, None), (1, "n", 0.0, None), (1, "year", 2026.0, None), (1, "kWh", 2.0, None), (1, "n", 1.0, None),
        (1, "year", 2026.0, None), (3, None, None, None), (4, "Time", None, body["Time"]), (5, "Time", None, body["Time"]),
        (7, "state", None, "ON"),
    ]  # fmt: skip
    assert [row["_fault"] for row in rows if row["_fault"]] == [
        "python: ValueError: could not convert string to float: b'x'"
    ]
    hours = {row["_position"]["entry"]: row["us"] // 3_600_000_000 % 24 for row in rows}
    assert (hours[4], hours[5], hours[7]) == (17, 11, ARRIVAL.hour)


def test_a_local_time_without_a_declared_zone_is_no_time_and_no_fault(spark: SparkSession) -> None:
    texts = ["2026-01-01T12:00:00", "2026-01-01", "2026-01-01T10:00:00Z", "1700000000", "soon"]
    rows = rows_of(spark, sent(*({"t": text} for text in texts)), Decoding(filter="gw/+", time="$.t"))
    now = int(ARRIVAL.timestamp())
    assert [row["event_time"] // 10**6 for row in rows] == [now, now, 1_767_261_600, 1_700_000_000, now]
    assert [row["_fault"] is None for row in rows] == [True] * 4 + [False]


leaves = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e12, 1e12) | st.text(max_size=4)
names = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=3)
documents = st.dictionaries(
    names,
    st.recursive(leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=6),
    min_size=1,
    max_size=4,
)


def flat(document: dict[str, Any], above: str = "", level: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict) and level < 4:
            yield from flat(value, f"{above}{name}.", level + 1)
        elif value is not None:
            yield f"{above}{name}", value


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(bodies=st.lists(documents, min_size=40, max_size=100))
def test_the_rows_of_any_document_are_its_leaves(spark: SparkSession, bodies: list[dict[str, Any]]) -> None:
    found: dict[int, dict[str, Any]] = {n: {} for n in range(len(bodies))}
    for row in rows_of(spark, sent(*bodies)):
        assert row["_fault"] is None
        found[row["_position"]["entry"]][row["metric"]] = (row["value"], row["text"])
    for n, body in enumerate(bodies):
        for metric, value in flat(body):
            number, text = found[n].pop(metric)
            if isinstance(value, bool):
                assert (number, text) == (float(value), str(value).lower())
            elif isinstance(value, (int, float)):
                assert (number, text) == (float(value), None)
            else:
                assert number is None
                assert (json.loads(text) if isinstance(value, dict) else text) == value
        assert found[n] == {}, re.sub(r"\s", " ", str(body))

"""The stateful processor on Spark's own tester of state: what it keeps, its one timer, and the rows that it gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="this Spark has no tester of state")

from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from streaming.alert_processor import OUTPUT, STATE, AlertProcessor
from streaming.alert_rules import AlertRule

MINUTE = 60_000
LOW = AlertRule(name="low", metric="glucose", kind="below", limit=70, clear=80)
QUIET = AlertRule(name="quiet", kind="silence", after="10m")


def row(name: str, value: float | None, minute: float, topic: str | None = "devices/d/commands") -> Row:
    return Row(
        reading_id=name,
        event_us=round(minute * MINUTE * 1000),
        arrived_us=round(minute * MINUTE * 1000),
        unit="mg/dL",
        command_topic=topic,
        position=None,
        seen=[{"series": "glucose", "metric": "glucose", "value": value}],
        found=[],
    )


def processing(*rules: AlertRule, forget_minutes: int = 1000) -> Any:
    processor = AlertProcessor(rules, forget_minutes * MINUTE * 1000)
    return TwsTester(processor, timeMode="eventTime", eventTimeExtractor=lambda row: 2**62)


def causes(rows: list[Row]) -> list[tuple[str, str]]:
    return [(f"{r.rule}/{r.reading_id}", r.state) for r in rows]


def test_alerts_have_their_columns_and_state_lasts_from_batch_to_batch() -> None:
    tested = processing(LOW)
    (found,) = tested.test("d", [row("a", 90.0, 1), row("b", 60.0, 2)])
    assert list(found.__fields__) == [name for name, _ in OUTPUT]
    assert (found.to_device, found.command_topic, found.payload) == ("d", "devices/d/commands", None)
    assert (found.expires_s, found.event_us) == (3600.0, 2 * MINUTE * 1000)
    assert tested.test("d", [row("c", 75.0, 3), row("d", 60.0, 4)]) == []
    assert causes(tested.test("e", [row("x", 60.0, 5), row("y", 60.0, 6, None)])) == [("low/x", "raised")]
    assert causes(tested.test("d", [row("e", 80.0, 7), row("f", 60.0, 8)])) == [("low/f", "raised")]
    assert json.loads(tested.peekValueState(STATE, "d")[0])["newest"]["glucose"][1] == "f"


def test_a_silent_device_is_reported_by_its_timer_and_has_one_timer_only() -> None:
    tested = processing(QUIET)
    tested.test("d", [row("a", 1.0, 100)])
    for minute in (101, 104, 108):
        assert tested.test("d", [row(f"a{minute}", 1.0, minute)]) == []
    timers = tested.handle._timers
    assert list(timers.listTimers("d")) == [110 * MINUTE], "a reading moves no timer"
    assert tested.setWatermark(111 * MINUTE) == []
    assert list(timers.listTimers("d")) == [118 * MINUTE]
    tested.test("other", [row("o", 1.0, 119)])
    assert causes(tested.setWatermark(118 * MINUTE)) == [("quiet/a108", "raised")]
    assert causes(tested.setWatermark(130 * MINUTE)) == [("quiet/o", "raised")]
    assert causes(tested.test("d", [row("back", 1.0, 131)])) == [("quiet/back", "cleared")]
    assert list(timers.listTimers("d")) == [141 * MINUTE]


def test_the_alert_of_a_device_that_takes_no_commands_has_no_topic() -> None:
    tested = processing(QUIET)
    tested.test("d", [row("a", 1.0, 100, None)])
    (found,) = tested.setWatermark(200 * MINUTE)
    assert (found.rule, found.state, found.command_topic) == ("quiet", "raised", None)


def test_the_state_of_a_device_that_is_long_gone_is_deleted_with_its_timer() -> None:
    tested = processing(LOW, forget_minutes=60)
    tested.test("d", [row("a", 60.0, 100)])
    assert list(tested.handle._timers.listTimers("d")) == [160 * MINUTE]
    tested.setWatermark(160 * MINUTE)
    assert tested.peekValueState(STATE, "d") is None
    assert list(tested.handle._timers.listTimers("d")) == []
    assert causes(tested.test("d", [row("b", 60.0, 500)])) == [("low/b", "raised")], "as a new device"


def test_a_condition_in_sql_is_reported_when_it_changes_and_its_command_goes_to_the_device_from_sql() -> None:
    damp = AlertRule(name="damp", kind="sql", table="climate", condition="c", every="change", notify_cleared=True)
    tested = processing(damp)

    def seen(name: str, holds: bool | None, minute: float) -> list[tuple[str, str, bytes]]:
        found = {
            "rule": "damp", "series": "", "matches": holds, "message": "m", "payload": name.encode(),
            "to_device": "fan", "command_topic": "fan/set",
        }  # fmt: skip
        whole = {"series": "", "metric": None, "value": None}
        rows = [Row(**{**row(name, None, minute).asDict(), "seen": [whole], "found": [found]})]
        return [(r.state, r.to_device, r.payload) for r in tested.test("d", rows)]

    assert seen("a", False, 1) == []
    assert seen("b", True, 2) == [("raised", "fan", b"b")]
    assert seen("c", True, 3) == []
    assert seen("late", False, 2.5) == []
    assert seen("unknown", None, 4) == []
    assert seen("d", False, 5) == [("cleared", "fan", b"d")]


def test_the_texts_of_a_rule_fill_its_command() -> None:
    rule = LOW.model_copy(
        update={
            "to": "fan-{device}",
            "command_topic": "{metric}/set",
            "payload": '{"on": "{state}", "v": {value}}',
        }
    )
    (found,) = processing(rule).test("d", [row("a", 60.0, 1)])
    assert (found.to_device, found.command_topic) == ("fan-d", "glucose/set")
    assert found.payload == b'{"on": "raised", "v": 60}'
    (found,) = processing(LOW.model_copy(update={"to": "none"})).test("d", [row("a", 60.0, 1)])
    assert (found.to_device, found.command_topic) == (None, "devices/d/commands")

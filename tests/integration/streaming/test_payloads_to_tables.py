"""What devices publish at a real MQTT broker ends in tables: without any declaration, by presets, and by one's own module."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from bridge.settings import Settings
from streaming.job import Job
from streaming.loading import pipeline_of
from tests.support.delta_rows import delta_rows
from tests.support.ingest import device, running_ingest, wait_for
from tests.support.stack import mqtt_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import PulsarSettings
    from pulsebridge.local.stack import LocalStack

pytestmark = [pytest.mark.spark, pytest.mark.stack]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Way:
    """A broker, ingest, Pulsar and the job with some settings."""

    def __init__(
        self, stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, root: Path, **more: Any
    ) -> None:
        self.spark, self.root = spark, root / "lakehouse"
        given = {"streaming": {}, **more}
        given["streaming"] = {"root": str(self.root), **given["streaming"]}
        self.settings = Settings.model_validate(given).model_copy(
            update={"mqtt": mqtt_settings(stack), "pulsar": namespaces}
        )

    def publish(self, messages: Sequence[tuple[str, bytes]], **stored: int) -> None:
        """Publish messages in their order, and wait until these topics of Pulsar have so many."""
        with running_ingest(self.settings), device(self.settings.mqtt, "dev") as dev:
            for topic, payload in messages:
                dev.publish(topic, payload)
            assert dev.flush()
            for name, count in stored.items():
                wait_for(self.settings.pulsar, count, name)

    def run(self) -> None:
        """Run the job to the end of what is there."""
        job = Job(self.spark, self.settings, pipeline_of(self.settings))
        job.prepare()
        job.run(Event(), available_now=True)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows in the order of their messages and elements."""
        place = ("ledger", "entry", "index", "element")
        return sorted(delta_rows(self.root / table), key=lambda row: [row["_position"][name] for name in place])


def test_as_shipped_any_payload_of_any_device_ends_in_readings(
    stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    way = Way(stack, namespaces, spark, tmp_path)
    name = f"n{uuid.uuid4().hex[:8]}"
    payloads: list[Any] = [
        {"humidity": 78.0, "ok": True}, {"humidity": 48.2, "at": {"lat": 1.5, "lon": "east"}}, [{"a": 1}, {"a": 2}], 21.5,
        "on", {"id": "own", "ts": "2020-01-01T00:00:00Z", "v": 1}, {"temperature": None, "list": [1, 2]},
    ]  # fmt: skip
    way.publish([(f"{name}/d{n}/m", json.dumps(body).encode()) for n, body in enumerate(payloads)], **{name: 7})
    way.run()
    rows = [row for row in way.rows("readings") if row["mqtt_topic"].startswith(name)]
    found = [(row["mqtt_topic"].split("/")[1], row["metric"], row["value"], row["text"]) for row in rows]
    assert sorted(found, key=repr) == sorted(
        [
            ("d0", "humidity", 78.0, None), ("d0", "ok", 1.0, "true"), ("d1", "humidity", 48.2, None),
            ("d1", "at.lat", 1.5, None), ("d1", "at.lon", None, "east"), ("d2", "a", 1.0, None), ("d2", "a", 2.0, None),
            ("d3", "m", 21.5, None), ("d4", "m", None, "on"), ("d5", "id", None, "own"),
            ("d5", "ts", None, "2020-01-01T00:00:00Z"), ("d5", "v", 1.0, None), ("d6", "list", None, "[1,2]"),
        ],
        key=repr,
    )  # fmt: skip
    assert all(row["event_time"] == row["arrival_time"] for row in rows)
    places = {"{ledger}:{entry}:{index}#{element}".format(**row["_position"]) for row in rows}
    assert {row["_id"] for row in rows} == places
    assert len(places) == len(rows)
    assert delta_rows(way.root / "quarantine") == []


MODULE = '''
from streaming import pipelines as dp


def meter(payload, message):
    """Hexadecimal pairs of register and count; `hello` is not a reading."""
    if payload == b"hello":
        return None
    return [
        {"register": pair[:2], "count": int(pair[2:], 16), "at": message.captures["plant"], "of": message.topic,
         "since": (message.arrival_time.year, message.device)}
        for pair in payload.decode().split()
    ]


@dp.table
def meters():
    return dp.messages(
        "meters/+plant/+device", format="python", function=meter,
        fields="register string, count bigint, at string",
    )
'''


@pytest.mark.thorough
def test_walk_b_typed_tables_by_examples_presets_and_a_decoder_of_ones_own(
    stack: LocalStack, namespaces: PulsarSettings, spark: SparkSession, tmp_path: Path
) -> None:
    assert len((EXAMPLES / "climate.py").read_text("utf-8").splitlines()) <= 40
    (tmp_path / "own_meters.py").write_text(MODULE, "utf-8")
    decoder = {"filter": "meters/+plant/+device", "format": "python", "function": "own_meters:meter"}
    way = Way(
        stack, namespaces, spark, tmp_path,
        ingest={"presets": ["zigbee2mqtt", "tasmota"], "routes": [
            {"name": "meters", "filter": "meters/+plant/+device", "topic": "meters", "device": "{device}"}]},
        streaming={"modules": [str(EXAMPLES / "climate.py"), str(tmp_path / "own_meters.py")], "decoders": [decoder],
                   "built_in": ["readings"], "time_zone": "Europe/Berlin"},
    )  # fmt: skip
    climate = {"battery": 86, "humidity": 55.43, "linkquality": 97, "temperature": 22.75, "voltage": 2985}
    sensor = {
        "Time": "2026-03-02T18:25:03", "AM2301": {"Temperature": 22.6, "Humidity": 32.4, "DewPoint": 5.0}, "TempUnit": "C",
    }  # fmt: skip
    way.publish([
        ("zigbee2mqtt/bedroom", json.dumps(climate | {"last_seen": "2026-01-02T10:00:00+01:00"}).encode()),
        ("zigbee2mqtt/bridge/state", b'{"state":"online"}'), ("tele/th16/SENSOR", json.dumps(sensor).encode()),
        ("meters/north/m1", b"0110 02ff"), ("meters/north/m1", b"hello"), ("meters/north/m1", b"zz"),
    ], **{"zigbee2mqtt": 1, "zigbee2mqtt-bridge": 1, "tasmota": 1, "meters": 3})  # fmt: skip
    way.run()

    (row,) = way.rows("climate")
    assert (row["device"], row["temperature"], row["humidity"], row["battery"]) == (
        "bedroom",
        22.75,
        55.43,
        86,
    )
    assert (json.loads(row["_rescued_data"]), row["event_time"].isoformat()[:19]) == (
        {"voltage": 2985}, "2026-01-02T09:00:00",
    )  # fmt: skip
    (row,) = way.rows("am2301")
    assert (row["device"], row["temperature"], row["humidity"], row["unit"]) == ("th16", 22.6, 32.4, "C")
    assert json.loads(row["_rescued_data"]) == {"AM2301": {"DewPoint": 5.0}}
    assert row["event_time"].isoformat()[:19] == "2026-03-02T17:25:03"
    (row,) = way.rows("tasmota_sensor")
    assert (row["temperature"], row["dew_point"], row["event_time"].isoformat()[:19]) == (
        22.6, 5.0, "2026-03-02T17:25:03",
    )  # fmt: skip
    assert [(row["register"], row["count"], row["plant"], row["at"]) for row in way.rows("meters")] == [
        ("01", 16, "north", "north"), ("02", 255, "north", "north"),
    ]  # fmt: skip

    readings = way.rows("readings")
    assert {row["metric"] for row in readings if row["device"] == "m1"} == {
        "register",
        "count",
        "at",
        "of",
        "since",
    }
    assert len([row for row in readings if row["device"] == "m1"]) == 10
    assert [row["value"] for row in readings if row["metric"] == "AM2301.Temperature"] == [22.6]
    assert not [row for row in readings if row["mqtt_topic"].startswith("zigbee2mqtt/bridge")]
    bad = delta_rows(way.root / "quarantine")
    assert sorted((row["table"], row["failed_rules"], bytes(row["payload"])) for row in bad) == [
        ("meters", ["undecodable"], b"zz"), ("readings", ["undecodable"], b"zz"),
    ]  # fmt: skip
    assert all("invalid literal for int" in row["reason"] for row in bad)

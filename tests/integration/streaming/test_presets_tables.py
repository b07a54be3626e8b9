"""The tables of the presets on payloads as the documentation of those projects shows them, on real Spark."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from bridge.settings import Settings
from bridge.settings.presets import load_preset
from pulsebridge.topics.proposing import propose
from pulsebridge.topics.tree import TopicTree
from streaming.reading import Reader
from tests.support.source_messages import ARRIVAL, SentMessage, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def rows_of(
    spark: SparkSession, preset: str, table: str, *given: tuple[str, str | None, Any], zone: str | None = None
) -> list[Any]:
    """Return the rows of what was published: topic, device as the preset's rule names it, payload."""
    from pyspark.sql import functions as F

    declaration = next(one for one in load_preset(preset).tables if one.name == table)
    messages = [
        SentMessage(n, (body if isinstance(body, str) else json.dumps(body)).encode(), topic, device)
        for n, (topic, device, body) in enumerate(given)
    ]
    settings = Settings.model_validate({"ingest": {"presets": [preset]}, "streaming": {"time_zone": zone}})
    found = Reader(spark, settings, stored=frame(spark, messages)).decoded(declaration.decoding)
    assert set(declaration.cluster_by) | set(declaration.keys) <= set(found.columns)
    found = found.withColumn("event_time", F.unix_micros("event_time"))
    return sorted(found.collect(), key=lambda row: row["_position"]["entry"])


def at(row: Any) -> datetime:
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=row["event_time"])


def test_zigbee2mqtt(spark: SparkSession) -> None:
    climate = {
        "battery": 86,
        "humidity": 55.43,
        "linkquality": 97,
        "pressure": 1000.6,
        "temperature": 22.75,
        "voltage": 2985,
    }
    seen = climate | {"last_seen": "2026-01-02T10:00:00+01:00", "power_outage_count": 3}
    rows = rows_of(
        spark, "zigbee2mqtt", "zigbee_climate",
        ("zigbee2mqtt/0x00158d00036c1821", "0x00158d00036c1821", climate), ("zigbee2mqtt/bedroom", "bedroom", seen),
        ("zigbee2mqtt/lamp", "lamp", {"state": "ON", "brightness": 254, "color": {"x": 0.3, "y": 0.4}}),
        ("zigbee2mqtt/bedroom", "bedroom", seen | {"last_seen": 1767348000000, "battery": "86.00"}),
        ("zigbee2mqtt/bedroom/availability", "bedroom", {"state": "online"}),
    )  # fmt: skip
    assert [row["device"] for row in rows] == ["0x00158d00036c1821", "bedroom", "bedroom"]
    first = rows[0]
    assert (first["temperature"], first["humidity"], first["pressure"]) == (22.75, 55.43, 1000.6)
    assert (first["battery"], first["voltage"], first["linkquality"], first["_rescued_data"]) == (
        86.0,
        2985.0,
        97,
        None,
    )
    assert at(first) == ARRIVAL
    assert [row["_rescued_data"] for row in rows[1:]] == [
        '{"power_outage_count":3}', '{"battery":"86.00","power_outage_count":3}',
    ]  # fmt: skip
    assert at(rows[1]) == datetime(2026, 1, 2, 9, tzinfo=timezone.utc)
    assert at(rows[2]) == datetime(2026, 1, 2, 10, tzinfo=timezone.utc)


def test_tasmota(spark: SparkSession) -> None:
    am2301 = {
        "Time": "2018-03-02T18:25:03",
        "AM2301": {"Temperature": 22.6, "Humidity": 32.4},
        "TempUnit": "C",
    }
    energy = {
        "TotalStartTime": "2020-01-01T00:00:00",
        "Total": 12.3,
        "Today": 0.1,
        "Power": 20,
        "Voltage": 230,
        "Current": 0.1,
    }
    other = {
        "Time": "2021-06-13T06:59:52",
        "ANALOG": {"A0": 5},
        "DHT11": {"Temperature": 23.0, "DewPoint": 7.5},
        "ENERGY": energy,
    }
    first, second = rows_of(
        spark, "tasmota", "tasmota_sensor", ("tele/TH16/SENSOR", "TH16", am2301), ("tele/plug/SENSOR", "plug", other),
        ("tele/TH16/LWT", "TH16", "Online"), zone="UTC",
    )  # fmt: skip
    assert (first["device"], first["temperature"], first["humidity"], first["temp_unit"]) == (
        "TH16",
        22.6,
        32.4,
        "C",
    )
    assert (first["_rescued_data"], at(first)) == (None, datetime(2018, 3, 2, 18, 25, 3, tzinfo=timezone.utc))
    assert (second["temperature"], second["dew_point"], second["power"], second["energy_total"]) == (
        23.0,
        7.5,
        20.0,
        12.3,
    )
    assert second["_rescued_data"] == '{"ANALOG":{"A0":5}}'
    (local,) = rows_of(spark, "tasmota", "tasmota_sensor", ("tele/TH16/SENSOR", "TH16", am2301), zone="Europe/Berlin")
    assert at(local) == datetime(2018, 3, 2, 17, 25, 3, tzinfo=timezone.utc)
    (unknown,) = rows_of(spark, "tasmota", "tasmota_sensor", ("tele/TH16/SENSOR", "TH16", am2301))
    assert (at(unknown), unknown["_fault"]) == (ARRIVAL, None)
    wifi = {"AP": 1, "SSId": "net", "BSSId": "E6:8D:8C:4B:BE:F7", "Channel": 3, "Mode": "11n", "RSSI": 44, "Signal": -78,
            "LinkCount": 1, "Downtime": "0T00:00:05"}  # fmt: skip
    state = {"Time": "2024-02-24T22:20:38", "Uptime": "0T00:10:11", "UptimeSec": 611, "Heap": 24, "SleepMode": "Dynamic",
             "Sleep": 50, "LoadAvg": 19, "MqttCount": 1, "POWER": "OFF", "Wifi": wifi}  # fmt: skip
    (row,) = rows_of(spark, "tasmota", "tasmota_state", ("tele/tasmota_9CF9D1/STATE", "tasmota_9CF9D1", state))
    assert (row["power"], row["uptime_s"], row["rssi"], row["signal"], row["ssid"]) == (
        "OFF",
        611,
        44,
        -78,
        "net",
    )
    assert (row["_rescued_data"], row["_fault"]) == (None, None)


@pytest.mark.parametrize(
    ("preset", "base", "table"), [("homie", "homie/5", "homie_values"), ("homie4", "homie", "homie4_values")]
)
def test_homie(spark: SparkSession, preset: str, base: str, table: str) -> None:
    rows = rows_of(
        spark, preset, table, (f"{base}/super-car/engine/temperature", "super-car", "21.5"),
        (f"{base}/super-car/lights/power", "super-car", "true"), (f"{base}/super-car/lights/color", "super-car", "rgb,100,0,0"),
        (f"{base}/super-car/engine/$name", "super-car", "Engine"), (f"{base}/super-car/$state", "super-car", "ready"),
    )  # fmt: skip
    found = [(row["device"], row["node"], row["property"], row["text"], row["number"], row["truth"]) for row in rows]
    assert found == [
        ("super-car", "engine", "temperature", "21.5", 21.5, None), ("super-car", "lights", "power", "true", None, True),
        ("super-car", "lights", "color", "rgb,100,0,0", None, None),
    ]  # fmt: skip


def test_chirpstack(spark: SparkSession) -> None:
    uplink = {
        "deduplicationId": "3ac7e3c4-4401-4b8d-9386-a5c902f9202d", "time": "2022-07-18T09:34:15.775023242+00:00",
        "deviceInfo": {"tenantId": "52f14cd4", "tenantName": "ChirpStack", "applicationId": "17c82e96", "applicationName": "App",
                       "deviceProfileId": "14855bf7", "deviceProfileName": "profile", "deviceName": "sensor",
                       "devEui": "0101010101010101", "tags": {"room": "5"}},
        "devAddr": "00189440", "dr": 1, "fPort": 1, "fCnt": 7, "confirmed": False, "data": "qg==",
        "object": {"temperature": 21.5}, "adr": True, "new": 1,
        "rxInfo": [{"gatewayId": "0016c001f153a14c", "uplinkId": 4217106255, "rssi": -36, "snr": 10.5}],
        "txInfo": {"frequency": 867100000},
    }  # fmt: skip
    topic = "application/17c82e96/device/0101010101010101/event"
    first, second = rows_of(
        spark, "chirpstack", "chirpstack_uplink", (f"{topic}/up", "0101010101010101", uplink),
        (f"{topic}/join", "0101010101010101", {"deduplicationId": "x"}), (f"{topic}/up", "0101010101010101", uplink),
    )  # fmt: skip
    assert (first["device"], first["application"], first["device_name"]) == (
        "0101010101010101",
        "17c82e96",
        "sensor",
    )
    assert (first["f_port"], first["rssi"], first["snr"], first["tags"]) == (1, -36, 10.5, {"room": "5"})
    assert json.loads(first["object"]) == {"temperature": 21.5}
    assert first["_id"] == second["_id"] == uplink["deduplicationId"]
    assert (first["_rescued_data"], first["_fault"]) == ('{"new":1}', None)
    assert at(first) == datetime(2022, 7, 18, 9, 34, 15, 775_023, tzinfo=timezone.utc)


def test_the_things_stack(spark: SparkSession) -> None:
    uplink = {
        "end_device_ids": {"device_id": "dev1", "application_ids": {"application_id": "app1"}, "dev_eui": "0004A30B001C0530",
                           "join_eui": "800000000000000C", "dev_addr": "00BCB929"},
        "correlation_ids": ["as:up:01E0WZGT6Y7657CPFPE5WEYDSQ", "gs:conn:01E0WDEC6T7T05MFKGQ5BMWRGV"],
        "received_at": "2020-02-12T15:15:45.787Z",
        "uplink_message": {
            "session_key_id": "AXA50tHUTKMJfCl4OA==", "f_cnt": 1, "f_port": 1, "frm_payload": "gkHe",
            "decoded_payload": {"temperature": 1.0, "luminosity": 0.64},
            "rx_metadata": [{"gateway_ids": {"gateway_id": "gtw1", "eui": "9C5C8E00001A05C4"}, "rssi": -35, "snr": 5}],
            "settings": {"data_rate": {"lora": {"bandwidth": 125000, "spreading_factor": 7}}, "frequency": "868300000"},
            "received_at": "2020-02-12T15:15:45.787Z", "consumed_airtime": "0.056576s",
        },
        "simulated": True,
    }  # fmt: skip
    (row,) = rows_of(
        spark, "thethingsstack", "thethingsstack_uplink", ("v3/app1@t1/devices/dev1/up", "app1@t1/dev1", uplink),
        ("v3/app1@t1/devices/dev1/join", "app1@t1/dev1", {"received_at": "2020-02-12T15:15:45.787Z"}),
    )  # fmt: skip
    assert (row["device"], row["application"], row["id"], row["f_cnt"]) == (
        "app1@t1/dev1",
        "app1@t1",
        "dev1",
        1,
    )
    assert json.loads(row["decoded_payload"]) == {"temperature": 1.0, "luminosity": 0.64}
    assert (row["rssi"], row["snr"], row["consumed_airtime"]) == (-35, 5.0, "0.056576s")
    assert row["_id"] == "as:up:01E0WZGT6Y7657CPFPE5WEYDSQ"
    assert (row["_rescued_data"], row["_fault"]) == (None, None)
    assert at(row) == datetime(2020, 2, 12, 15, 15, 45, 787_000, tzinfo=timezone.utc)


def test_the_table_that_discovery_proposes_takes_all_that_it_saw(spark: SparkSession) -> None:
    words = (
        "interval",
        "order",
        "struct",
        "timestamp",
        "array",
        "map",
        "select",
        "value",
        "partition",
        "null",
        "time",
        "payload",
    )
    bodies: list[dict[str, Any]] = [
        {word: n for n, word in enumerate(words)}, {"a b": 1, "a`b": {"x": 1.5}, "ünit": "C", "1st": True, "_id": 7, "device": "d"},
        {"s": {"in": 1, "y": [{"k": 1}, {"k": 2.5}]}, "odd": {"x y": [1]}, "mixed": 1}, {"mixed": {"deep": [1]}, "list": [[1], [2]]},
        {"ts": "2026-01-01T00:00:00Z", "at": {"lat": 1}, "none": None, "empty": {}},
    ]  # fmt: skip
    tree = TopicTree()
    for n, body in enumerate(bodies * 2):
        tree.add(f"plant/press-{n}/m{n % 2}", json.dumps(body).encode())
    (table,) = propose(tree, {}).tables
    messages = [SentMessage(n, json.dumps(body).encode(), f"plant/p/m{n}") for n, body in enumerate(bodies)]
    rows = Reader(spark, Settings(), stored=frame(spark, messages)).decoded(table.decoding).collect()
    rows.sort(key=lambda row: row["_position"]["entry"])
    assert [(row["_fault"], row["_rescued_data"]) for row in rows[:4]] == [(None, None)] * 4
    assert (rows[0]["interval"], rows[1]["field_a_b"], rows[1]["payload_device"], rows[1]["field_id"]) == (
        0,
        1,
        "d",
        7,
    )
    assert (rows[2]["s"]["in"], rows[2]["s"]["y"][1]["k"], rows[3]["mixed"]) == (1, 2.5, '{"deep":[1]}')

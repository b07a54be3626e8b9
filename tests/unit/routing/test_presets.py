"""The presets, on topics and payloads as the documentation of those projects shows them."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from bridge.routing.mapper import LeftOut, Mapper, Route
from bridge.routing.message_fields import MessageField, read_fields
from bridge.routing.patterns import meet
from bridge.routing.rules import mapping_problems, subscriptions
from bridge.routing.templates import Filter
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.presets import load_preset, preset_names
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.topics.explaining import explanation_of, explanation_text

ALL = preset_names()

CHIRPSTACK_UP = {
    "deduplicationId": "3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
    "time": "2022-07-18T09:34:15.775023242+00:00",
    "deviceInfo": {"devEui": "0101010101010101", "deviceName": "Test device"},
    "fPort": 1,
    "data": "qg==",
}
THINGS_UP = {
    "end_device_ids": {"device_id": "dev1", "application_ids": {"application_id": "app1"}},
    "correlation_ids": ["as:up:01E0WZGT6Y7657CPFPE5WEYDSQ", "gs:uplink:01E0WZGSZWT07NE5TS2APTV1Z9"],
    "received_at": "2020-02-12T15:15:45.787Z",
    "uplink_message": {"f_port": 1, "frm_payload": "gkHe"},
}

# preset, MQTT topic, Pulsar topic, device, command topic
SAMPLES: list[tuple[str, str, str, str | None, str | None]] = [
    ("zigbee2mqtt", "zigbee2mqtt/0x00158d00018255df", "zigbee2mqtt", "0x00158d00018255df", "zigbee2mqtt/0x00158d00018255df/set"),
    ("zigbee2mqtt", "zigbee2mqtt/my_bulb/availability", "zigbee2mqtt", "my_bulb", "zigbee2mqtt/my_bulb/set"),
    ("zigbee2mqtt", "zigbee2mqtt/bridge/state", "zigbee2mqtt-bridge", None, None),
    ("zigbee2mqtt", "zigbee2mqtt/bridge/response/device/remove", "zigbee2mqtt-bridge", None, None),
    ("tasmota", "tele/tasmota_switch/SENSOR", "tasmota", "tasmota_switch", "cmnd/tasmota_switch/Backlog"),
    ("tasmota", "tele/tasmota_switch/LWT", "tasmota", "tasmota_switch", "cmnd/tasmota_switch/Backlog"),
    ("tasmota", "stat/tasmota_switch/RESULT", "tasmota", "tasmota_switch", "cmnd/tasmota_switch/Backlog"),
    ("tasmota", "tasmota/discovery/6001943D5E26/config", "tasmota-discovery", None, None),
    ("homie", "homie/5/device123/$state", "homie", "device123", None),
    ("homie", "homie/5/device123/mythermostat/temperature", "homie", "device123", "homie/5/device123/mythermostat/temperature/set"),
    ("homie", "homie/5/light/dimmer/level/$target", "homie", "light", "homie/5/light/dimmer/level/set"),
    ("homie", "homie/5/device123/$log/warn", "homie", "device123", None),
    ("homie", "homie/5/sensor/$alert/battery", "homie", "sensor", None),
    ("homie", "homie/5/$broadcast/alert", "homie-broadcast", None, None),
    ("homie", "homie/5/$broadcast/security/alert", "homie-broadcast", None, None),
    ("homie4", "homie/$broadcast/alert", "homie4-broadcast", None, None),
    ("homie4", "homie/super-car/$homie", "homie4", "super-car", None),
    ("homie4", "homie/super-car/engine/$properties", "homie4", "super-car", None),
    ("homie4", "homie/super-car/engine/temperature", "homie4", "super-car", "homie/super-car/engine/temperature/set"),
    ("chirpstack", "application/0d9f6a4b-5a1e/device/0101010101010101/event/up", "chirpstack", "0101010101010101", "application/0d9f6a4b-5a1e/device/0101010101010101/command/down"),
    ("chirpstack", "application/0d9f6a4b-5a1e/device/0101010101010101/event/join", "chirpstack", "0101010101010101", "application/0d9f6a4b-5a1e/device/0101010101010101/command/down"),
    ("thethingsstack", "v3/app1@ttn/devices/dev1/up", "thethingsstack", "app1@ttn/dev1", "v3/app1@ttn/devices/dev1/down/push"),
    ("thethingsstack", "v3/app1/devices/dev1/join", "thethingsstack", "app1/dev1", "v3/app1/devices/dev1/down/push"),
    ("thethingsstack", "v3/app1@ttn/devices/dev1/down/ack", "thethingsstack", "app1@ttn/dev1", None),
    ("thethingsstack", "v3/app1@ttn/devices/dev1/location/solved", "thethingsstack", "app1@ttn/dev1", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/NBIRTH/Raspberry Pi", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/NDATA/Raspberry Pi", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/NDEATH/Raspberry Pi", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/DBIRTH/Raspberry Pi/Pibrella", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/DDATA/Raspberry Pi/Pibrella", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
    ("sparkplug", "spBv1.0/Sparkplug B Devices/DDEATH/Raspberry Pi/Pibrella", "sparkplug", "Sparkplug B Devices/Raspberry Pi", None),
]  # fmt: skip

# what people and applications send to the devices
COMMANDS = [
    ("zigbee2mqtt", "zigbee2mqtt/my_bulb/set"),
    ("zigbee2mqtt", "zigbee2mqtt/my_bulb/set/state"),
    ("zigbee2mqtt", "zigbee2mqtt/my_bulb/get"),
    ("zigbee2mqtt", "zigbee2mqtt/bridge/request/permit_join"),
    ("tasmota", "cmnd/tasmota_switch/POWER"),
    ("homie", "homie/5/device123/mythermostat/setpoint/set"),
    ("homie4", "homie/kitchen-light/light/power/set"),
    ("chirpstack", "application/0d9f6a4b-5a1e/device/0101010101010101/command/down"),
    ("thethingsstack", "v3/app1@ttn/devices/dev1/down/push"),
    ("thethingsstack", "v3/app1@ttn/devices/dev1/down/replace"),
    ("sparkplug", "spBv1.0/STATE/host"),
]


def received(preset: str, topic: str) -> bool:
    filters = subscriptions(IngestSettings(presets=(preset,)))
    return any(Filter.parse(f).match(topic.split("/")) is not None for f in filters)


@pytest.mark.parametrize(("preset", "topic", "local", "device", "command"), SAMPLES)
def test_topics_of_the_documentation(
    preset: str, topic: str, local: str, device: str | None, command: str | None
) -> None:
    route = Mapper(Settings(ingest=IngestSettings(presets=(preset,)))).route(topic)
    assert isinstance(route, Route)
    assert (route.topic, route.device, route.command_topic) == (PulsarSettings().readings_topic(local), device, command)
    assert route.key == (device or topic)
    assert received(preset, topic)


@pytest.mark.parametrize(("preset", "topic"), COMMANDS)
def test_h8_commands_of_the_documentation_are_not_subscribed_to(preset: str, topic: str) -> None:
    assert not received(preset, topic)


def test_h8_command_topics_of_presets_are_left_out_even_where_they_are_received() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(presets=ALL, filters=("#",), allow_loopback=True)))
    for topic in ("zigbee2mqtt/my_bulb/set", "cmnd/tasmota_switch/Backlog", "v3/app1/devices/dev1/down/push"):
        assert isinstance(mapper.route(topic), LeftOut)


def test_presets_pass_the_checks_alone_and_beside_each_other() -> None:
    for count in (1, 2, len(ALL)):
        for names in combinations(ALL, count):
            loopback = {"homie", "homie4"} <= set(names)
            assert mapping_problems(IngestSettings(presets=names, allow_loopback=loopback)) == [], names


def test_h8_homie_4_and_5_share_topics_and_the_error_names_the_rule() -> None:
    # homie/5/a/b/set: a value of the Homie 5 device a, or a command to the Homie 4 device 5
    problems = mapping_problems(IngestSettings(presets=("homie", "homie4")))
    assert any("matches command topics of rule homie4" in p for p in problems)


@pytest.mark.parametrize("preset", ALL)
def test_subscriptions_of_a_preset_bring_no_message_twice(preset: str) -> None:
    filters = [Filter.parse(text) for text in subscriptions(IngestSettings(presets=(preset,)))]
    for one, other in combinations(filters, 2):
        assert not any(meet(a, b) for a in one.patterns for b in other.patterns), (one.mqtt, other.mqtt)


def test_every_preset_has_samples_and_recognises_them() -> None:
    assert {sample[0] for sample in SAMPLES} == set(ALL)
    for name in ALL:
        signs = [Filter.parse(sign) for sign in load_preset(name).signs]
        topics = [topic.split("/") for preset, topic, *_ in SAMPLES if preset == name]
        assert any(sign.match(levels) is not None for sign in signs for levels in topics)
        others = [topic.split("/") for preset, topic, *_ in SAMPLES if preset != name]
        assert not any(sign.match(levels) is not None for sign in signs for levels in others)


def test_the_setting_names_every_preset() -> None:
    described = IngestSettings.description_of("presets")
    assert all(name in described for name in ALL)


def test_a_rule_of_one_s_own_replaces_the_preset_s() -> None:
    own = TopicRule(name="tasmota-status", filter="stat/+device/RESULT", topic="results", device="{device}")
    ingest = IngestSettings(routes=(own,), presets=("tasmota",))
    assert [rule.name for rule in ingest.all_routes] == [
        "tasmota-status",
        "tasmota-telemetry",
        "tasmota-discovery",
    ]
    assert ingest.all_routes[0] is own
    assert [ingest.preset_of(rule.name) for rule in ingest.all_routes] == [None, "tasmota", "tasmota"]


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="unknown preset 'zigbee'; known: chirpstack, homie"):
        IngestSettings(presets=("zigbee",))


def test_problems_with_a_preset_s_rules_name_the_preset() -> None:
    clash = TopicRule(name="mine", filter="mine/+device", topic="chirpstack", device="{device}")
    (problem,) = mapping_problems(IngestSettings(routes=(clash,), presets=("chirpstack",)))
    assert "mine and chirpstack could write" in problem
    loop = mapping_problems(IngestSettings(presets=("tasmota",), filters=("cmnd/#",)))
    assert any("ingest would receive commands" in p for p in loop)


def test_explain_names_the_preset_and_where_a_reading_says_its_id() -> None:
    settings = Settings(ingest=IngestSettings(presets=("chirpstack",)))
    explanation = explanation_of(settings, "application/1/device/0101010101010101/event/up")
    assert explanation["preset"] == "chirpstack"
    text = explanation_text(explanation)
    assert "preset         chirpstack" in text
    assert "reading id     {json:$.deduplicationId}" in text


@pytest.mark.parametrize(
    ("preset", "rule", "payload", "found"),
    [
        ("chirpstack", "chirpstack", CHIRPSTACK_UP, [CHIRPSTACK_UP["deduplicationId"], CHIRPSTACK_UP["time"]]),
        ("thethingsstack", "thethingsstack", THINGS_UP, ["as:up:01E0WZGT6Y7657CPFPE5WEYDSQ", THINGS_UP["received_at"]]),
        ("tasmota", "tasmota-telemetry", {"Time": "2017-02-16T10:13:52", "DS18B20": {"Temperature": 20.6}}, ["2017-02-16T10:13:52"]),
    ],
)  # fmt: skip
def test_ids_and_times_are_where_the_documentation_shows_them(
    preset: str, rule: str, payload: Any, found: list[Any]
) -> None:
    (one,) = [r for r in load_preset(preset).routes if r.name == rule]
    places = [text.strip("{}") for text in (one.reading_id, one.reading_time) if text is not None]
    fields = [MessageField.parse(*place.split(":", 1)) for place in places]
    assert list(read_fields(fields, json.dumps(payload).encode(), ()).values()) == found


def test_the_field_of_an_id_must_be_in_the_message() -> None:
    rule = TopicRule(name="r", filter="a/+device", reading_id="{device}")
    (problem,) = mapping_problems(IngestSettings(routes=(rule,)))
    assert "reading_id '{device}': name a field of each message" in problem

"""Devices, keys and command topics from the message itself: user properties and fields of a JSON payload."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.routing.mapper import Mapper, NoRoute, PerMessage, Route
from bridge.routing.message_fields import MessageField, MissingField, read_fields
from bridge.routing.rules import mapping_problems
from bridge.settings import Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.topics.explaining import explanation_of, explanation_text

UP = b'{"deviceInfo": {"devEui": "0102", "tags": [{"id": 7}]}}'
TOPIC = PulsarSettings().readings_topic("up")


def rule(**changes: Any) -> TopicRule:
    fields = {"name": "gw", "filter": "gw/+gateway/up", "topic": "up", "device": "{json:$.deviceInfo.devEui}"}
    return TopicRule(**(fields | changes))


def of(mapper: Mapper, topic: str, payload: bytes = b"", user: tuple[tuple[str, str], ...] = ()) -> Route | NoRoute:
    way = mapper.route(topic)
    assert isinstance(way, PerMessage), way
    return way.of(payload, user)


def test_the_device_is_where_the_payload_says() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(rule(command_topic="gw/{gateway}/down/{device}"),))))
    assert of(mapper, "gw/7/up", UP) == Route("gw", TOPIC, "0102", "0102", "gw/7/down/0102")
    assert of(mapper, "gw/7/up", b'{"deviceInfo":{"devEui":12}}') == Route("gw", TOPIC, "12", "12", "gw/7/down/12")


def test_the_device_is_what_a_user_property_says() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(rule(device="{gateway}/{user:device-id}"),))))
    assert of(mapper, "gw/7/up", user=(("a", "b"), ("device-id", "w-1"))) == Route("gw", TOPIC, "7/w-1", "7/w-1", None)
    twice = (("device-id", "w-1"), ("device-id", "w-1"))
    assert isinstance(of(mapper, "gw/7/up", user=twice), Route)


def test_rules_without_fields_have_their_route_from_the_topic_alone() -> None:
    plain = TopicRule(name="plain", filter="plain/+device", topic="plain", device="{device}")
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(rule(), plain))))
    assert isinstance(mapper.route("plain/w-1"), Route)
    assert isinstance(mapper.route("gw/7/up"), PerMessage)


@pytest.mark.parametrize(
    ("payload", "user", "why"),
    [
        (b"", (), "is not JSON"),
        (b"\xff\xfe", (), "is not JSON"),
        (b"[" * 100_000, (), "is not JSON"),
        (b"1" * 10_000, (), "is not JSON"),
        (b"{}", (), "$.deviceInfo.devEui is missing"),
        (b'{"deviceInfo": []}', (), "is missing"),
        (b'{"deviceInfo": "devEui"}', (), "neither text nor a whole number"),
        (b'{"deviceInfo": {"devEui": ""}}', (), "is empty"),
        (b'{"deviceInfo": {"devEui": null}}', (), "neither text nor a whole number"),
        (b'{"deviceInfo": {"devEui": true}}', (), "neither text nor a whole number"),
        (b'{"deviceInfo": {"devEui": 1.5}}', (), "neither text nor a whole number"),
        (b'{"deviceInfo": {"devEui": "\\ud800"}}', (), "not Unicode text"),
    ],
)
def test_a_message_without_its_device_says_why(payload: bytes, user: Any, why: str) -> None:
    refused = of(Mapper(Settings(ingest=IngestSettings(routes=(rule(),)))), "gw/7/up", payload, user)
    assert isinstance(refused, NoRoute)
    assert why in refused.reason
    assert refused.topic == TOPIC


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ((), "has no user property 'device-id'"),
        ((("device-id", "a"), ("device-id", "b")), "has 2 different values"),
        ((("device-id", ""),), "is empty"),
        ((("device-id", "\udcff"),), "not Unicode text"),
    ],
)
def test_a_user_property_that_is_missing_or_ambiguous_is_no_device(user: Any, why: str) -> None:
    refused = of(
        Mapper(Settings(ingest=IngestSettings(routes=(rule(device="{user:device-id}"),)))), "gw/7/up", UP, user
    )
    assert isinstance(refused, NoRoute)
    assert why in refused.reason


@pytest.mark.parametrize("name", ["a/b", "+", "#", "a\0"])
def test_h8_a_device_that_is_no_level_has_no_command_topic(name: str) -> None:
    payload = json.dumps({"deviceInfo": {"devEui": name}}).encode()
    with_commands = Mapper(Settings(ingest=IngestSettings(routes=(rule(command_topic="down/{device}"),))))
    refused = of(with_commands, "gw/7/up", payload)
    assert isinstance(refused, NoRoute)
    assert "is not valid in a level" in refused.reason
    assert isinstance(of(Mapper(Settings(ingest=IngestSettings(routes=(rule(),)))), "gw/7/up", payload), Route)


def test_h8_commands_of_devices_in_payloads_are_seen_by_the_loop_check() -> None:
    (problem,) = mapping_problems(IngestSettings(routes=(rule(command_topic="gw/{device}/up"),)))
    assert "ingest would receive commands" in problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "{json:deviceInfo}"}, "not a JSON path"),
        ({"device": "{json:$}"}, "not a JSON path"),
        ({"device": "{json:$.a..b}"}, "not a JSON path"),
        ({"device": "{json:$.a[*]}"}, "not a JSON path"),
        ({"device": "{user:}"}, "is not in every topic"),
        ({"device": "{user!r:x}"}, "must not have a format"),
        ({"device": "{json:$.a}/{json:$.b}"}, "is ambiguous"),
        ({"device": "{json:$.a}-{gateway}"}, "is ambiguous"),
        ({"topic": "{json:$.a}"}, "not a Pulsar topic"),
        ({"namespace": "public/{json:$.a}"}, "not one of pulsar.namespaces"),
    ],
)
def test_a_rule_with_a_wrong_field_is_refused(changes: dict[str, str], words: str) -> None:
    (problem,) = mapping_problems(IngestSettings(routes=(rule(**changes),)))
    assert words in problem


def test_two_rules_whose_devices_could_be_one_are_refused() -> None:
    other = TopicRule(name="other", filter="other/+device", topic="up", device="{device}")
    (problem,) = mapping_problems(IngestSettings(routes=(rule(), other)))
    assert "under one key" in problem
    assert mapping_problems(IngestSettings(routes=(rule(), other.model_copy(update={"shared": True})))) == []


def test_a_payload_over_pulsar_s_limit_is_not_searched() -> None:
    mapper = Mapper(Settings(ingest=IngestSettings(routes=(rule(),), limits={"message_size": "128KiB"})))
    refused = of(mapper, "gw/7/up", b" " * 200_000 + UP)
    assert isinstance(refused, NoRoute)
    assert "not searched" in refused.reason


def test_explain_says_that_each_message_decides_and_shows_one() -> None:
    settings_ = Settings(ingest=IngestSettings(routes=(rule(command_topic="gw/{gateway}/down/{device}"),)))
    explanation = explanation_of(settings_, "gw/7/up")
    assert explanation["outcome"] == "written, with key and device from each message"
    assert explanation["key"] == explanation["device"] == "{json:$.deviceInfo.devEui}"
    assert "partition" not in explanation
    one = explanation_of(settings_, "gw/7/up", UP)
    assert (one["key"], one["command_topic"]) == ("0102", "gw/7/down/0102")
    assert "key            0102" in explanation_text(one)
    none = explanation_of(settings_, "gw/7/up", b"{}")
    assert none["outcome"] == "dead letter"
    assert "is missing" in none["why"]


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$.a.b", ("a", "b")),
        ("$['a.b'][0]", ("a.b", 0)),
        ('$["a b"].c', ("a b", "c")),
        ("$.tags[2].id", ("tags", 2, "id")),
    ],
)
def test_json_paths(path: str, steps: tuple[str | int, ...]) -> None:
    assert MessageField.parse("json", path).steps == steps


names = st.text(min_size=1, max_size=5)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=30) | documents.map(lambda d: json.dumps(d).encode()),
    st.lists(st.tuples(names, st.text(max_size=5)), max_size=4),
    st.sampled_from(["$.a", "$[0]", "$.a[0]", "$[0].b"]),
)
def test_any_message_has_a_text_or_a_reason(payload: bytes, user: list[tuple[str, str]], path: str) -> None:
    fields = [MessageField.parse("json", path), MessageField.parse("user", "a")]
    found = {}
    with suppress(MissingField):
        found = read_fields(fields, payload, user)
        assert len(found) == 2
    assert all(found.values())
    assert all(value.encode() for value in found.values())

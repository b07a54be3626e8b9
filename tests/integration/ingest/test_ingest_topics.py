"""MQTT topics with every character that MQTT allows, on real brokers: stored and told unchanged, or a dead letter."""

from __future__ import annotations

import pytest

from bridge import contract
from bridge.local.stack import LocalStack
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from tests.support.ingest import Stored, dead_letters, ingest_settings, running_ingest, stored
from tests.support.raw_mqtt import RawMqtt
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

TAILS = [
    "/",
    "//x/",
    "///",
    "/a b",
    "/ ",
    "/%2F%00%",
    "/é/日本/😀",
    "/a.b",
    "/a/b",
    "/.",
    "/..",
    "/../../public/default/x",
    "/a-partition-1",
    "/-partition-0",
    "/__change_events",
    "/$SYS/x",
    "/a\\b",
    "/a*b/>",
    "/a;b=c&d?e",
    "/{device}",
    '/"quoted"',
    "/persistent:",
    "/e\u0301",
    "/\u00e9",
]
CONTROLS = ["/\x01\x1f", "/\t\n", "/\x7f\x85", "/\ufeff", "/\uffff\U0010ffff"]
LONGEST = 65_535


def published(stack: LocalStack, topics: list[str]) -> list[str]:
    """Publish each topic on a connection of its own, and return those that the broker confirmed."""
    confirmed = []
    for number, topic in enumerate(topics):
        with RawMqtt(
            stack.mqtt_host, stack.mqtt_port, f"raw-{topics[0]}-{number}"[:60], clean=True, timeout=10
        ) as raw:
            try:
                raw.publish(topic, f"{number}".encode(), 1)
            except (ConnectionError, TimeoutError):
                continue  # a broker may refuse what the specification only advises against (MQTT-1.5.4)
        confirmed.append(topic)
    return confirmed


def told(messages: list[Stored]) -> list[str]:
    return [m.properties[contract.P_TOPIC] for m in messages]


def test_every_topic_is_stored_and_told_unchanged(broker: LocalStack, namespaces: PulsarSettings) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    settings = ingest_settings(mqtt, namespaces, filters=(f"{root}/#",))
    longest = [f"{root}/".ljust(LONGEST, "x"), f"{root}/" + "/" * 150, f"{root}/" + "é" * 32_000]
    topics = [root, *(f"{root}{tail}" for tail in TAILS + CONTROLS), *longest]
    with running_ingest(settings):
        confirmed = published(broker, topics)
        found = poll_for(
            lambda: got if len(got := stored(namespaces, root)) >= len(confirmed) else None, 60, "all topics"
        )
    assert {f"{root}{tail}" for tail in TAILS} <= set(confirmed)
    assert sorted(told(found)) == sorted(confirmed)
    assert {m.properties[contract.P_TOPIC]: m.payload.decode() for m in found} == {
        topic: f"{topics.index(topic)}" for topic in confirmed
    }
    assert [m.key for m in found] == told(found)
    assert dead_letters(namespaces) == []


def test_what_cannot_be_a_name_is_a_dead_letter_with_its_topic(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    rules = (
        TopicRule(name="named", filter=f"{root}/+name/+device", topic="r-{name}", device="{device}"),
        TopicRule(
            name="space", filter=f"{root}/in/+site/+device", namespace="public/{site}", device="{device}"
        ),
    )
    settings = ingest_settings(mqtt, namespaces, rules=rules)
    good = [f"{root}/é/1", f"{root}//1", f"{root}/../1", f"{root}/-partition-7/1"]
    bad = {
        f"{root}/{'x' * 60_000}/1": "characters, at most 240",
        f"{root}/x/": "no text for its key or device",
        f"{root}/in/{namespaces.system_namespace}/1": "is not one of pulsar.namespaces",
        f"{root}/in/../1": "is not one of pulsar.namespaces",
    }
    with running_ingest(settings):
        assert published(broker, [*good, *bad]) == [*good, *bad]
        dead = poll_for(
            lambda: got if len(got := dead_letters(namespaces)) >= len(bad) else None, 60, "dead letters"
        )
        locals_ = ["r-=C3=A9", "r-=.", "r-=2E=2E", "r-=2Dpartition-7"]
        found = [
            poll_for(lambda local=local: stored(namespaces, local), 60, local)  # type: ignore[misc]
            for local in locals_
        ]
    assert [told(messages) for messages in found] == [[topic] for topic in good]
    assert sorted(told(dead)) == sorted(bad)
    for message in dead:
        assert bad[message.properties[contract.P_TOPIC]] in message.properties[contract.P_DEAD_REASON]

"""MQTT topics with every character that MQTT allows, on real brokers: stored unchanged, or a dead letter."""

from __future__ import annotations

import json

import pytest

from bridge import contract
from bridge.mqtt.types import PublishProperties
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import Stored, by_key, dead_letters, device, ingest_settings, running_ingest, stored
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
        with RawMqtt(stack.mqtt_host, stack.mqtt_port, f"raw-{topics[0]}-{number}"[:60], clean=True, timeout=10) as raw:
            try:
                raw.publish(topic, f"{number}".encode(), 1)
            except (ConnectionError, TimeoutError):
                continue  # a broker may refuse what the specification only advises against (MQTT-1.5.4)
        confirmed.append(topic)
    return confirmed


def topics_of(messages: list[Stored]) -> list[str]:
    return [m.properties[contract.P_TOPIC] for m in messages]


def test_every_topic_is_stored_and_returned_unchanged(broker: LocalStack, namespaces: PulsarSettings) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    rule = TopicRule(name="any", filter=f"{root}/#", topic=root, key="one")  # a name has 1 KiB, a topic 64
    settings = ingest_settings(mqtt, namespaces, routes=(rule,))
    longest = [f"{root}/".ljust(LONGEST, "x"), f"{root}/" + "/" * 150, f"{root}/" + "é" * 32_000]
    topics = [root, *(f"{root}{tail}" for tail in TAILS + CONTROLS), *longest]
    with running_ingest(settings):
        confirmed = published(broker, topics)
        found = poll_for(
            lambda: got if len(got := stored(namespaces, root)) >= len(confirmed) else None, 60, "all topics"
        )
    assert {f"{root}{tail}" for tail in TAILS} <= set(confirmed)
    assert sorted(topics_of(found)) == sorted(confirmed)
    assert {m.properties[contract.P_TOPIC]: m.payload.decode() for m in found} == {
        topic: f"{topics.index(topic)}" for topic in confirmed
    }
    assert dead_letters(namespaces) == []


def test_what_cannot_be_a_name_is_a_dead_letter_with_its_topic(broker: LocalStack, namespaces: PulsarSettings) -> None:
    mqtt = mqtt_settings(broker)
    root = mqtt.client_id
    rules = (
        TopicRule(name="named", filter=f"{root}/+name/+device", topic="r-{name}", device="{device}"),
        TopicRule(name="space", filter=f"{root}/in/+site/+device", namespace="public/{site}", device="{device}"),
    )
    settings = ingest_settings(mqtt, namespaces, routes=rules)
    good = [f"{root}/é/1", f"{root}//1", f"{root}/../1", f"{root}/-partition-7/1"]
    bad = {
        f"{root}/{'x' * 60_000}/1": "characters, the limit is 240",
        f"{root}/x/": "no text for its key or device",
        f"{root}/in/{namespaces.system_namespace}/1": "is not one of pulsar.namespaces",
        f"{root}/in/../1": "is not one of pulsar.namespaces",
    }
    with running_ingest(settings):
        assert published(broker, [*good, *bad]) == [*good, *bad]
        dead = poll_for(lambda: got if len(got := dead_letters(namespaces)) >= len(bad) else None, 60, "dead letters")
        locals_ = ["r-=C3=A9", "r-=.", "r-=2E=2E", "r-=2Dpartition-7"]
        found = [
            poll_for(lambda local=local: stored(namespaces, local), 60, local)  # type: ignore[misc]
            for local in locals_
        ]
    assert [topics_of(messages) for messages in found] == [[topic] for topic in good]
    assert sorted(topics_of(dead)) == sorted(bad)
    for message in dead:
        assert bad[message.properties[contract.P_TOPIC]] in message.properties[contract.P_DEAD_REASON]


def test_devices_of_a_gateway_are_identified_by_fields_of_each_message(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    further = f"{namespaces.namespace}-gateways"
    pulsar = namespaces.model_copy(update={"namespaces": (f"public/{further}",)})
    rules = (
        TopicRule(name="json", filter=f"{root}/up/json", topic="up", device="{json:$.device.id}"),
        TopicRule(
            name="user",
            filter=f"{root}/up/user",
            topic="up",
            namespace=f"public/{further}",
            device="{user:device-id}",
            command_topic=f"{root}/down/{{device}}",
        ),
    )
    with running_ingest(ingest_settings(mqtt, pulsar, routes=rules)), device(mqtt, "gateway") as gateway:
        for number in range(20):
            gateway.publish(f"{root}/up/json", b'{"device": {"id": "w-%d"}, "n": %d}' % (number % 4, number))
            user = (("device-id", f"u-{number % 4}"),)
            gateway.publish(f"{root}/up/user", b"%d" % number, properties=PublishProperties(user=user))
            assert gateway.flush()
        gateway.publish(f"{root}/up/json", b"no JSON")
        gateway.publish(f"{root}/up/user", b"no property")
        by_json = poll_for(lambda: got if len(got := stored(pulsar, "up")) >= 20 else None, 60, "JSON")
        there = pulsar.readings_topic("up", f"public/{further}")
        by_user = poll_for(lambda: got if len(got := stored(pulsar, there)) >= 20 else None, 60, "user")
        dead = poll_for(lambda: got if len(got := dead_letters(pulsar)) >= 2 else None, 60, "dead letters")
    with PulsarAdmin(pulsar) as admin:  # the further namespace is provisioned like the usual one
        held = [admin.request("GET", f"/namespaces/{name}/retention") for name in pulsar.all_namespaces]
    assert len(held) == 3
    assert all(retention == held[0] and retention["retentionTimeInMinutes"] for retention in held)
    assert {m.key for m in by_json} == {f"w-{n}" for n in range(4)}
    for name, messages in by_key(list(by_user)).items():
        numbers = [int(n) for n in messages]
        assert numbers == sorted(numbers)
        assert {n % 4 for n in numbers} == {int(name[2:])}
    assert {m.properties[contract.P_COMMAND_TOPIC] for m in by_user} == {f"{root}/down/u-{n}" for n in range(4)}
    reasons = {m.payload: m.properties[contract.P_DEAD_REASON] for m in dead}
    assert "the payload is not JSON" in reasons[b"no JSON"]
    assert "has no user property 'device-id'" in reasons[b"no property"]


def test_h5_properties_over_pulsar_s_limit_are_a_dead_letter_with_their_heads(
    mosquitto: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(mosquitto)  # Artemis drops the connection at a packet of this kind
    root = mqtt.client_id
    user = tuple((f"n{number}", "v" * 60_000) for number in range(100))
    with (
        running_ingest(ingest_settings(mqtt, namespaces, filters=(f"{root}/#",))),
        device(mqtt, "dev") as dev,
    ):
        dev.publish(f"{root}/x", b"much to say", properties=PublishProperties(user=user))
        dev.publish(f"{root}/x", b"little to say")
        (dead,) = poll_for(lambda: dead_letters(namespaces), 60, "the dead letter")
        (good,) = poll_for(lambda: stored(namespaces, root), 60, "the message after it")
    assert (dead.payload, good.payload) == (b"much to say", b"little to say")
    assert "bytes, the limit is" in dead.properties[contract.P_DEAD_REASON]
    assert json.loads(dead.properties[contract.P_DEAD_CUT])[contract.P_USER][0] > 6_000_000

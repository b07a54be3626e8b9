"""Producers of idle partitions are closed, and the next message opens them again (H10)."""

from __future__ import annotations

from functools import partial

import pytest
from prometheus_client import REGISTRY

from bridge.contract import partition_name
from bridge.errors import RefusedError
from bridge.intake import producer_opener
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.mqtt import MqttSettings
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.fleet import Fleet
from tests.support.ingest import device, ingest_settings, running_ingest, stored
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

TOPICS = 12


def rule_of(root: str) -> TopicRule:
    """Each device has a Pulsar topic of its own."""
    return TopicRule(name="own", filter=f"{root}/+device/+metric", topic="{device}", device="{device}")


def opened(mqtt: MqttSettings) -> float | None:
    return REGISTRY.get_sample_value("pulsebridge_ingest_producers", {"link": mqtt.client_id})


def publishers(namespaces: PulsarSettings, topics: list[str]) -> int:
    """Return how many producers Pulsar itself knows, -1 while a topic is not made yet."""
    with PulsarAdmin(namespaces) as admin:
        partitions = [partition_name(namespaces.readings_topic(topic), 0) for topic in topics]
        try:
            return sum(len(admin.stats(partition)["publishers"]) for partition in partitions)
        except RefusedError:
            return -1


def written(namespaces: PulsarSettings, topics: list[str], last: bytes) -> bool:
    """Whether every topic is there and ends with this message."""
    return publishers(namespaces, topics) >= 0 and all(
        [m.payload for m in stored(namespaces, topic)][-1:] == [last] for topic in topics
    )


@pytest.mark.parametrize(
    ("bound", "left"), [({"limits": {"producers": 4}}, 4), ({"limits": {"producer_idle": "500ms"}}, 0)]
)
def test_h10_more_topics_than_producers_may_be_open(
    stack: LocalStack, bound: dict[str, float], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_opener, "REST_S", 0.5)
    namespaces = provisioned(stack, partitions=1)
    mqtt = mqtt_settings(stack)
    topics = [f"d{number}" for number in range(TOPICS)]
    settings = ingest_settings(mqtt, namespaces, routes=(rule_of(mqtt.client_id),), **bound)
    with running_ingest(settings), device(mqtt, "dev") as dev:
        for turn in (b"first", b"second"):
            for topic in topics:
                dev.publish(f"{mqtt.client_id}/{topic}/x", turn)
            assert dev.flush()
            poll_for(partial(written, namespaces, topics, turn), 60, "all messages in Pulsar", every=0.3)
            poll_for(lambda: publishers(namespaces, topics) == opened(mqtt) == left, 60, "idle ones to close")
    assert all([m.payload for m in stored(namespaces, t)] == [b"first", b"second"] for t in topics)


def test_h10_producers_that_come_and_go_under_load_lose_and_mix_nothing(stack: LocalStack) -> None:
    """Each device is silent for longer than its producer stays open, again and again."""
    namespaces = provisioned(stack, partitions=1)
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_of(mqtt.client_id),), limits={"producer_idle": "20ms"})
    with running_ingest(settings):
        with Fleet(mqtt.host, mqtt.port, mqtt.client_id, devices=TOPICS, rate=60) as fleet:
            poll_for(lambda: min(fleet.confirmed) > 20 and opened(mqtt) != TOPICS, 60, "producers to come and go")
            fleet.stop()
        for number, count in enumerate(fleet.confirmed):
            name = f"d{number:03d}"
            wanted = [f"{name}#{n}" for n in range(count)]

            def found(name: str = name) -> list[str]:
                return list(dict.fromkeys(m.payload.decode() for m in stored(namespaces, name)))

            poll_for(lambda found=found, wanted=wanted: found()[: len(wanted)] == wanted, 30, name)  # type: ignore[misc]

"""Names that devices invent, on real servers: they cost a dead letter, and nothing of what belongs to others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from bridge import contract
from bridge.intake.provisioning import provision
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.rules import TopicRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import (
    dead_letters,
    device,
    ingest_process,
    ingest_settings,
    rule_for,
    running_ingest,
    stored,
    wait_for,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

MiB = 1024 * 1024


def test_h35_a_device_name_of_a_megabyte_is_a_dead_letter_and_blocks_no_other_device(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    gateway = TopicRule(name="gateway", filter=f"{root}/up", topic="gateway", device="{json:$.device}")
    settings = ingest_settings(mqtt, namespaces, routes=(gateway, rule_for(root)))
    poison = [json.dumps({"device": chr(97 + n) * (MiB * (n + 1))}).encode() for n in range(4)]
    with ingest_process(settings, tmp_path) as process, device(mqtt, "dev") as dev:
        for payload in poison:
            dev.publish(f"{root}/up", payload)
            dev.publish(f"{root}/w-1/glucose", b"honest")
        assert dev.flush()
        wait_for(namespaces, len(poison))
        dev.publish(f"{root}/up", b'{"device": "w-2"}')
        (good,) = wait_for(namespaces, 1, "gateway")
        dead = poll_for(
            lambda: found if len(found := dead_letters(namespaces)) >= len(poison) else None,
            60,
            "dead letters",
        )
        assert psutil.Process(process.pid).memory_info().rss < 600 * MiB
    assert good.key == "w-2"
    assert sorted(len(m.payload) for m in dead) == sorted(map(len, poison))
    for message in dead:
        assert "max_name_bytes is 1024" in message.properties[contract.P_DEAD_REASON]
        assert len(message.key) < 2000
        assert sum(map(len, message.properties.values())) < 10_000


def test_h46_a_device_that_invents_topics_takes_none_of_another_route_or_device(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    rules = (
        TopicRule(
            name="channels",
            filter=f"{root}/c/+device/+channel",
            topic="c-{device}-{channel}",
            device="{device}",
        ),
        TopicRule(name="sites", filter=f"{root}/s/+site/+device", topic="s-{site}", device="{device}"),
    )
    settings = ingest_settings(
        mqtt,
        namespaces,
        routes=rules,
        limits={"topics": 3, "topics_per_device": 2, "topic_idle": "2s", "producer_idle": "500ms"},
    )
    with running_ingest(settings) as service, device(mqtt, "dev") as dev:
        for number in range(20):
            dev.publish(f"{root}/c/hostile/{number}", b"invented")
        dead = poll_for(lambda: found if len(found := dead_letters(namespaces)) >= 18 else None, 60, "refusals")
        dev.publish(f"{root}/c/honest/1", b"own")
        wait_for(namespaces, 1, "c-honest-1")
        dev.publish(f"{root}/s/one/honest", b"other route")
        wait_for(namespaces, 1, "s-one")
        # Unused partition producers are closed, so that others can open.
        poll_for(lambda: service.partitions() == {}, 60, "idle topics to be released", every=0.2)

        def late() -> bool:
            dev.publish(f"{root}/c/late/1", b"late")
            return bool(stored(namespaces, "c-late-1"))

        poll_for(late, 60, "a topic in the place of one that is released", every=0.5)
    reasons = {m.properties[contract.P_DEAD_REASON] for m in dead}
    assert any("the device has 2 Pulsar topics of route channels" in one for one in reasons)


class Whole(NamedTuple):
    payload: bytes
    key: str = "k"
    properties: dict[str, str] = {}
    event_ms: int = 0


def test_h35_a_refusal_within_the_batch_of_a_chunking_producer_is_its_receipt(
    namespaces: PulsarSettings,
) -> None:
    large = Whole(b"too large", properties={"p": "x" * (6 * MiB)})
    topic = namespaces.readings_topic("whole")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        provision(admin)
        admin.create_partitioned(topic, 1)
    with PulsarClient(namespaces) as client:
        producer = client.chunking_producer(contract.partition_name(topic, 0), max_pending=10)
        receipts: list[object] = []
        producer.send([Whole(b"first"), large, Whole(b"last")], receipts.append)
        poll_for(lambda: receipts, 30, "the receipt")
        producer.send([Whole(b"next"), Whole(b"next")], receipts.append)
        poll_for(lambda: len(receipts) > 1, 30, "the next receipt")
        producer.close()
    assert receipts[0] is not None
    assert receipts[1:] == [None]

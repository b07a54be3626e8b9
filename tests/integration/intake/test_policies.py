"""What Pulsar does by itself with unread messages, and what ingest reports about it, on a real Pulsar."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from bridge.contract import DEAD_LETTERS_TOPIC, partition_name
from bridge.errors import TerminalError
from bridge.intake.provisioning import PolicyWatch, provision, verify_policies
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import (
    by_key,
    dead_letters,
    device,
    ingest_settings,
    publish_ids,
    rule_for,
    running_ingest,
    stored,
    wait_for,
)
from tests.support.reading_back import quiet
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def write(settings: PulsarSettings, partition: str, count: int, size: int = 10) -> None:
    client = pulsar.Client(settings.service_url, logger=quiet())
    producer = client.create_producer(partition, batching_enabled=False)
    for _ in range(count):
        producer.send(b"x" * size)
    client.close()


def test_h11_a_topic_created_on_the_fly_keeps_messages_without_a_subscription(stack: LocalStack) -> None:
    """With Pulsar's own defaults such messages are gone at the next ledger; in our namespaces they stay."""
    ours = provisioned(stack, partitions=1)
    with PulsarAdmin(ours, timeout_s=30) as admin:
        bare = ours.model_copy(update={"namespace": f"{ours.namespace}-bare"})
        admin.request("PUT", f"/namespaces/{bare.tenant}/{bare.namespace}")
        for settings in (bare, ours):
            topic = settings.readings_topic("new")
            admin.create_partitioned(topic, 1)
            write(settings, partition_name(topic, 0), 10)
            admin.request("PUT", f"/{rest_path(partition_name(topic, 0))}/unload")
            write(settings, partition_name(topic, 0), 1)

        def dropped() -> bool:
            for settings in (bare, ours):  # what Pulsar does by itself now and then
                path = rest_path(partition_name(settings.readings_topic("new"), 0))
                admin.request("POST", f"/{path}/trim", accept=(404, 405, 409, 412))
            return len(stored(bare, "new")) <= 1

        poll_for(dropped, 60, "the hazard: Pulsar to drop messages without a subscription", every=0.5)
        assert len(stored(ours, "new")) == 11
        admin.request("DELETE", f"/namespaces/{bare.tenant}/{bare.namespace}?force=true", accept=(405, 409, 412))


@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        ("messageTTL", 60, "message-ttl"),
        ("subscriptionExpirationTime", 5, "subscription-expiration-time"),
        (
            "backlogQuota?backlogQuotaType=destination_storage",
            {"limitSize": 10_000_000, "limitTime": -1, "policy": "consumer_backlog_eviction"},
            "set-backlog-quota",
        ),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "set-retention"),
    ],
)
def test_h13_a_policy_that_deletes_unread_messages_is_an_error_with_its_command(
    stack: LocalStack, namespaces: PulsarSettings, path: str, body: Any, command: str
) -> None:
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        verify_policies(admin)
        admin.request("POST", f"/namespaces/{namespaces.tenant}/{namespaces.namespace}/{path}", body=body)
        with pytest.raises(TerminalError, match=f"pulsar-admin namespaces .*{command}"):
            verify_policies(admin)
        strict = namespaces.model_copy(update={"provision": "verify"})
        with PulsarAdmin(strict, timeout_s=30) as verifying, pytest.raises(TerminalError, match=command):
            provision(verifying)
        found = PolicyWatch(admin, dict).look()  # while it runs: a WARNING, for a stop would lose nothing less
        assert any(command in line for line in found)
        provision(admin)  # with pulsar.provision: create the start fixes it
        verify_policies(admin)


def test_h13_a_topic_s_own_policy_stops_the_start_with_the_command_that_fixes_it(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    topic = namespaces.readings_topic("fleet")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 2)
        admin.request("POST", f"/{rest_path(topic)}/messageTTL?messageTTL=60")
        poll_for(lambda: admin.request("GET", f"/{rest_path(topic)}/messageTTL") == 60, 30, "the topic's TTL")
        with pytest.raises(TerminalError, match=f"topicPolicies remove-message-ttl {topic}"):
            start(settings)
        admin.request("DELETE", f"/{rest_path(topic)}/messageTTL")
        poll_for(lambda: not admin.request("GET", f"/{rest_path(topic)}/messageTTL"), 30, "its end")
        start(settings)


def start(settings: Any) -> None:
    with running_ingest(settings):
        pass


def test_h13_half_of_a_quota_raises_the_alert_before_it_blocks_the_producers(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    topic = namespaces.readings_topic("fleet")
    quota = {"limitSize": 10_000, "limitTime": -1, "policy": "producer_request_hold"}
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
        admin.do(subscription_step(partition_name(topic, 0), "a-week-old"))
        path = f"/namespaces/{namespaces.tenant}/{namespaces.namespace}/backlogQuota"
        admin.request("POST", f"{path}?backlogQuotaType=destination_storage", body=quota)
        watch = PolicyWatch(admin, lambda: {topic: 1})
        write(namespaces, partition_name(topic, 0), 3, size=1000)
        assert watch.look() == []
        write(namespaces, partition_name(topic, 0), 3, size=1000)
        (line,) = poll_for(watch.look, 30, "the alarm")
        assert "uses half of its quota of 10000 bytes" in line
        assert "a-week-old has the largest backlog" in line
        verify_policies(admin)  # a quota that blocks the producers loses nothing


def test_h4_a_topic_deleted_behind_our_back_is_named(stack: LocalStack) -> None:
    """Where Pulsar makes topics by itself, producers go on in partitions that belong to no topic."""
    namespaces = provisioned(stack, auto_topics="leave")
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    topic = namespaces.readings_topic("fleet")
    with (
        running_ingest(settings) as service,
        device(mqtt, "dev", window=1) as dev,
        PulsarAdmin(namespaces, timeout_s=30) as admin,
    ):
        dev.publish(f"{mqtt.client_id}/w-1/x", b"before")
        wait_for(namespaces, 1)
        admin.request("DELETE", f"/{rest_path(topic)}/partitions?force=true")
        dev.publish(f"{mqtt.client_id}/w-1/x", b"after")
        assert dev.flush(30)
        poll_for(lambda: service.in_flight == 0, 30, "Pulsar to take it all the same")
        assert admin.partition_count(topic) == 0  # the hazard: acknowledged, and in no topic that has a name
        (line,) = [one for one in PolicyWatch(admin, service.partitions).look() if "was deleted" in one]
        assert "with its subscriptions and their messages" in line


@pytest.mark.parametrize("partitions", [3, 0])
def test_h11_a_topic_deleted_under_load_is_re_created_and_keeps_all_messages_acknowledged_since(
    stack: LocalStack, namespaces: PulsarSettings, partitions: int
) -> None:
    """Made as it was: with the partitions that it had, not those of the settings, or with none."""
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id),))
    topic = namespaces.readings_topic("fleet")
    path = rest_path(topic)
    topics = [f"{mqtt.client_id}/w-{n}/x" for n in range(8)]
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        if partitions:
            admin.create_partitioned(topic, partitions)
        else:
            admin.request("PUT", f"/{path}")
        with running_ingest(settings), device(mqtt, "dev", window=1) as dev:
            publish_ids(dev, topics, 400, [])
            poll_for(lambda: len(stored(namespaces, "fleet")) >= 50, 30, "some of the load in Pulsar")
            admin.request("DELETE", f"/{path}{'/partitions' if partitions else ''}?force=true")
            late = [f"late#{number}" for number in range(400)]
            for number, name in enumerate(late):
                dev.publish(topics[number % 8], name.encode())

            def found() -> list[str]:
                return [m.payload.decode() for m in stored(namespaces, "fleet")]

            poll_for(lambda: set(late) <= set(found()), 60, "all that came after the deletion", every=0.5)
        assert admin.exists(topic)
        assert admin.partition_count(topic) == partitions
        by_device = by_key(stored(namespaces, "fleet"))
    for number in range(8):
        kept = [name for name in dict.fromkeys(by_device[f"w-{number}"]) if name in late]
        assert kept == late[number::8]


@pytest.mark.thorough
def test_h11_a_deleted_dead_letter_topic_is_re_created_before_any_message_is_acknowledged(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(stack)
    settings = ingest_settings(mqtt, namespaces, routes=(rule_for(mqtt.client_id, device="{json:$.id}"),))
    path = rest_path(namespaces.system_topic(DEAD_LETTERS_TOPIC))
    with PulsarAdmin(namespaces, timeout_s=30) as admin, running_ingest(settings), device(mqtt, "dev") as dev:
        dev.publish(f"{mqtt.client_id}/w-1/x", b"before")
        poll_for(lambda: len(dead_letters(namespaces)) == 1, 30, "the first dead letter")
        admin.request("DELETE", f"/{path}/partitions?force=true")
        dev.publish(f"{mqtt.client_id}/w-1/x", b"after")
        poll_for(lambda: [m.payload for m in dead_letters(namespaces)] == [b"after"], 60, "the next one", every=0.5)
        assert admin.partition_count(namespaces.system_topic(DEAD_LETTERS_TOPIC)) == namespaces.command_partitions

"""Topics of push that are deleted while it runs."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
)
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.provisioning import provision_commands
from bridge.pulsar.provisioning_plan import CURSOR_RETENTION
from bridge.push.worker import TopicWatch
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    receipts,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.mark.thorough
def test_h11_topics_deleted_under_push_are_re_created_and_no_command_comes_twice(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Made as they were, with the partitions that they had; what the cursors knew is written down again."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    more = push_settings(namespaces, settings.mqtt, command_partitions=3)
    first = [command(settings, f"d{n % 4}", n) for n in range(12)]
    later = [command(settings, "d0", n) for n in range(12, 20)]
    last = command(settings, "d1", 20)
    held = {COMMANDS_TOPIC: {PUSH_SUBSCRIPTION}, CURSORS_TOPIC: {CURSOR_RETENTION}, RECEIPTS_TOPIC: set()}
    topics = {settings.pulsar.system_topic(local): names for local, names in held.items()}
    topics[settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)] = set()

    def there(topic: str, names: set[str]) -> bool:
        if admin.partition_count(topic) == 0:
            return False
        return names <= set(admin.request("GET", f"/{rest_path(topic)}-partition-0/subscriptions"))

    with Devices(settings) as devices, PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        with push_in_thread(more):
            write_commands(settings, first)
            devices.await_all(first)
            all_acknowledged(settings)
            for topic in topics:
                admin.request("DELETE", f"/{rest_path(topic)}/partitions?force=true")
            for topic, names in topics.items():
                poll_for(lambda t=topic, n=names: there(t, n), 30, f"{topic} again", every=0.3)  # type: ignore[misc]
                assert admin.partition_count(topic) == 1
            write_commands(settings, [*first, *later])
            devices.await_all(later)
            all_acknowledged(settings)
        with push_in_thread(settings):
            write_commands(settings, [*first, last])
            devices.await_all([last])
            all_acknowledged(settings)
        assert devices.check([*first, *later, last]) == 0
    states = {name: [r.state for r in rows] for name, rows in receipts(settings).items()}
    assert all(states[one.command_id] == ["duplicate", "duplicate"] for one in first)
    assert all(states[one.command_id] == ["delivered"] for one in (*later, last))


@pytest.mark.thorough
def test_h11_a_topic_deleted_before_it_was_written_to_does_not_end_push(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    commands = [command(settings, "d", n) for n in range(3)]
    topic = settings.pulsar.system_topic(RECEIPTS_TOPIC)
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        poll_for(lambda: metrics.counters["takeovers"]._value.get() == 1, 30, "the partition to be ours")
        with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
            admin.request("DELETE", f"/{rest_path(topic)}/partitions?force=true")
        write_commands(settings, commands)
        devices.await_all(commands)
        all_acknowledged(settings)
        assert devices.check(commands) == 0
    assert {c.command_id for c in commands} == set(receipts(settings))


def test_h11_cursors_re_created_by_others_are_noticed_and_a_denied_creation_is_reported(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = namespaces.model_copy(update={"provision": "verify"})
    forgotten: list[bool] = []
    with PulsarAdmin(namespaces, timeout_s=30) as admin, PulsarAdmin(settings, timeout_s=30) as ours:
        provision_commands(admin)
        watch = TopicWatch(ours, 0, lambda: forgotten.append(True))

        def looked() -> list[str]:
            with capture_logs() as lines:
                watch.look()
            assert all(line["shown"] == 1 for line in lines), "the log leaves out what repeats within a minute"
            return [" ".join(line["run"]) for line in lines]

        assert looked() == looked() == []
        admin.request("DELETE", f"/{rest_path(namespaces.system_topic(CURSORS_TOPIC))}/partitions?force=true")
        provision_commands(admin)
        assert looked() == looked() == []
        assert forgotten == [True]
        receipts_topic = namespaces.system_topic(RECEIPTS_TOPIC)
        admin.request("DELETE", f"/{rest_path(receipts_topic)}/partitions?force=true")
        (line,) = looked()
        assert f"create-partitioned-topic {receipts_topic} --partitions" in line
        assert looked() == [line]
        provision_commands(admin)
        assert looked() == []
    assert forgotten == [True]


def test_partitions_that_are_added_to_the_commands_are_named_with_what_to_do(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    commands = namespaces.system_topic(COMMANDS_TOPIC)
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        provision_commands(admin)
        watch = TopicWatch(admin, 0, lambda: None)
        watch.look()
        before = admin.partition_count(commands)
        for topic in (commands, namespaces.system_topic(RECEIPTS_TOPIC)):
            admin.request("POST", f"/{rest_path(topic)}/partitions", body=before + 2)
        with capture_logs() as lines:
            watch.look()
            watch.look()
    (line,) = lines
    assert (line["topic"], line["before"], line["partitions"]) == (commands, before, before + 2)
    assert "`pulsebridge commands move`" in line["event"]

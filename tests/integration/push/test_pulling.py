"""Parked commands are read again by their positions, whatever the order in which devices wake."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bridge.contract import COMMANDS_TOPIC, PARKED_TOPIC, partition_name
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.pulsar import position_reader
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient, message_id
from bridge.pulsar.messages import position_of
from bridge.pulsar.position_reader import PositionReader
from bridge.pulsar.provisioning_plan import PARKED_RETENTION, rest_path
from bridge.pulsar.topic_end import end_of, ledgers_of
from bridge.push.actions import Copy
from bridge.push.puller import Puller
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.clock import set_clock
from tests.support.command_writer import write_many
from tests.support.push import command, provision, push_settings, read_topic, write_commands
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def test_devices_that_wake_together_share_a_reader_and_get_their_own(
    stack: LocalStack, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether to read on or to create a reader depends on the recent cost of both; with a stopped clock it reads on.
    set_clock(monkeypatch, position_reader)
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    write_many(settings, (command(settings, f"d{n // 10}", n % 10) for n in range(1000)))
    stored = read_topic(settings, COMMANDS_TOPIC)
    positions = {(m.partition_key(), m.data()): position_of(m.message_id()) for m in stored}
    with PulsarClient(settings.pulsar) as client:
        reading = PositionReader(client, partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0), 0)
        for numbers in (range(8), range(8, 10)):  # each device its first ones, then each its last ones
            for device in range(100):
                for number in numbers:
                    wanted = (f"d{device}", f"{number}".encode())
                    message = reading.read(positions[wanted])
                    assert message is not None
                    assert (message.key, message.payload) == wanted
        assert reading.opened == 1
        anyhow = random.sample(sorted(positions), 30)
        for wanted in anyhow:
            message = reading.read(positions[wanted])
            assert message is not None
            assert (message.key, message.payload) == wanted
        reading.close()


def test_h25_commands_trimmed_at_the_end_of_a_topic_are_lost_and_no_device_waits_for_them(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    path, namespace = (
        f"/{rest_path(partition)}",
        f"/namespaces/{namespaces.tenant}/{namespaces.system_namespace}",
    )
    write_many(settings, (command(settings, "d", n) for n in range(10)))
    last = position_of(read_topic(settings, COMMANDS_TOPIC)[-1].message_id())
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, PulsarClient(settings.pulsar) as client:
        for subscription in admin.internal_stats(partition)["cursors"]:
            admin.request("DELETE", f"{path}/subscription/{subscription}?force=true")
        admin.request("POST", f"{namespace}/retention", body={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        admin.request("PUT", f"{path}/unload")

        def trimmed() -> bool:
            admin.request("POST", f"{path}/trim")
            return last.ledger not in {one["ledgerId"] for one in admin.internal_stats(partition)["ledgers"]}

        poll_for(trimmed, 60, "the commands are trimmed", every=0.5)
        before = ledgers_of(settings.pulsar, partition)
        assert before is not None
        assert not before.has(last)
        reading = PositionReader(client, partition, 0)
        assert reading.read(last) is None
        write_many(settings, [command(settings, "d", 10)])
        assert reading.read(last) is None, "only a later one is there"
        (later,) = read_topic(settings, COMMANDS_TOPIC)
        found = reading.read(position_of(later.message_id()))
        assert found is not None
        assert found.payload == later.data()
        reading.close()


def test_h24_what_is_there_is_found_though_the_broker_says_that_there_is_nothing(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """A broker that has just restarted now and then gives no end of a partition that it has loaded."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    nothing = message_id(0, -1, -1, -1)
    assert end_of(settings.pulsar, partition, nothing) == BEFORE_ALL
    write_many(settings, (command(settings, "d", n) for n in range(10)))
    last = position_of(read_topic(settings, COMMANDS_TOPIC)[-1].message_id())
    assert end_of(settings.pulsar, partition, nothing)[:2] == last[:2]
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        admin.request("PUT", f"/{rest_path(partition)}/unload")
        poll_for(lambda: admin.internal_stats(partition)["ledgers"], 30, "the partition is loaded again")
    assert end_of(settings.pulsar, partition, nothing)[:2] == last[:2]
    ledgers = ledgers_of(settings.pulsar, partition)
    assert ledgers is not None
    assert ledgers.has(last)
    assert not ledgers.has(last._replace(entry=last.entry + 1))


def test_h25_the_retention_subscription_is_reset_backwards_and_never_forward(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """A former owner may have moved it forward; or it is further back because of another device."""
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    moved = partition_name(settings.pulsar.system_topic(PARKED_TOPIC), 0)
    for number in range(10):
        write_commands(settings, [command(settings, "d", number)])  # each an entry of its own
    places = [position_of(m.message_id()) for m in read_topic(settings, COMMANDS_TOPIC)]
    failures: list[Exception] = []
    with PulsarClient(settings.pulsar) as client:

        def first_held() -> CommandPosition:
            consumer: Any = client.consumer(partition, PARKED_RETENTION, queue=1)
            found = position_of(consumer.receive(10_000).message_id())
            consumer.close()
            return found

        def put(number: int, *, back: bool) -> CommandPosition:
            posted: list[object] = []
            puller = Puller(client, partition, moved, 0, posted.append, failures.append, max_bytes=1000)
            puller.retain_from(places[number], back=back)
            puller.begin(Copy(0, ()))
            poll_for(lambda: posted, 30, "what was ordered behind it")
            puller.close()
            return first_held()

        assert put(8, back=False) == places[8]
        assert put(3, back=True) == places[3]
        assert put(6, back=True) == places[3]
        assert put(6, back=False) == places[6]
    assert not failures

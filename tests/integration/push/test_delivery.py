from __future__ import annotations

import time
from pathlib import Path

import pulsar
import pytest

from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    DEAD_LETTERS_TOPIC,
    P_DEAD_REASON,
    PUSH_SUBSCRIPTION,
    Position,
    partition_name,
)
from bridge.contract.commands import CommandPosition
from bridge.contract.cursors import OWNER_KEY, OwnerRecord
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.compaction import follow_compaction
from bridge.pulsar.provisioning import partitions_ready
from bridge.pulsar.provisioning_plan import CURSOR_RETENTION, compact_step, topic_need
from bridge.push.cursor import Cursor
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    read_topic,
    receipts,
    user,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    return push_settings(namespaces, mqtt_settings(stack))


def test_commands_reach_their_devices_in_order_with_a_receipt_each(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=4)
    provision(settings)
    commands = [
        command(settings, f"d{n % 10}", n, emitted_at_us=1000 + n, expires_at_ms=int(time.time() + 600) * 1000)
        for n in range(200)
    ]
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        write_commands(settings, commands)
        devices.await_all(commands)
        all_acknowledged(settings)
        assert devices.check(commands) == 0
        first = devices.got["d0"][0]
        assert first.payload == b"0"
        properties = user(first)
        assert (properties["pulsebridge-origin"], properties["command-id"]) == ("push", "d0-0")
        assert properties["position"].startswith("0.")
        assert "repeat" not in properties
        assert first.properties is not None
        assert first.properties.expiry_s is not None
        assert 500 < first.properties.expiry_s <= 600
        got = receipts(settings)
        assert {c.command_id for c in commands} == set(got)
        for n, one in enumerate(commands):
            (receipt,) = got[one.command_id]
            assert (receipt.state, receipt.device, receipt.attempts) == ("delivered", one.device, 1)
            assert receipt.emitted_at_us == 1000 + n
            assert 0 < receipt.pushed_at_us <= receipt.confirmed_at_us
        assert metrics.counters["pushed"]._value.get() == 200


def test_h21_a_replayed_batch_gives_no_second_command_also_after_a_restart(settings: Settings) -> None:
    provision(settings)
    commands = [command(settings, "d", n) for n in range(20)]
    last = command(settings, "d", 99)
    with Devices(settings) as devices:
        # What is there before the takeover counts as sent, if another takeover had begun and failed.
        with push_in_thread(settings) as metrics:
            poll_for(lambda: metrics.counters["takeovers"]._value.get() == 1, 60, "the ownership")
            write_commands(settings, [*commands, *commands])
            devices.await_all(commands)
            all_acknowledged(settings)
        with push_in_thread(settings) as metrics:
            poll_for(lambda: metrics.counters["takeovers"]._value.get() == 1, 60, "the ownership")
            write_commands(settings, [*reversed(commands), last])
            devices.await_all([last])
            all_acknowledged(settings)
        assert devices.ids("d") == [c.command_id for c in [*commands, last]]
        assert all("repeat" not in user(message) for message in devices.got["d"])
    states = {command_id: [r.state for r in rows] for command_id, rows in receipts(settings).items()}
    for one in commands:
        assert sorted(states[one.command_id]) == ["delivered", "duplicate", "duplicate"]


@pytest.mark.long
def test_h21_a_thousand_commands_of_one_device_written_again_in_another_order_reach_it_once(
    settings: Settings,
) -> None:
    """As a new checkpoint writes them, and a task that is tried again: most were forgotten if few are remembered."""
    provision(settings)
    commands = [command(settings, "d", n) for n in range(1000)]
    last = command(settings, "d", 1001)
    with Devices(settings) as devices:
        with push_in_thread(settings):
            write_commands(settings, commands)
            devices.await_all(commands)
            all_acknowledged(settings)
        with push_in_thread(settings):
            write_commands(settings, [*commands[500:], *reversed(commands[:500]), *commands, last])
            devices.await_all([last])
            all_acknowledged(settings)
        assert devices.ids("d") == [c.command_id for c in [*commands, last]]


def test_expired_and_invalid_commands_are_not_pushed_and_get_their_receipts(settings: Settings) -> None:
    provision(settings)
    late = command(settings, "d", 1, expires_at_ms=1000)
    good = command(settings, "d", 2)
    topic = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    client = pulsar.Client(settings.pulsar.service_url)
    producer = client.create_producer(topic)
    producer.send(b"no properties", partition_key="d")
    producer.send(
        b"wildcard",
        partition_key="d",
        properties={"pb.v": "1", "command.id": "bad-1", "command.device": "d", "command.mqtt_topic": "a/#"},
    )
    client.close()
    with Devices(settings) as devices, push_in_thread(settings):
        write_commands(settings, [late, good])
        devices.await_all([good])
        all_acknowledged(settings)
        assert devices.ids("d") == ["d-2"]
    states = {command_id: [r.state for r in rows] for command_id, rows in receipts(settings).items()}
    assert states == {"d-1": ["expired"], "d-2": ["delivered"], "bad-1": ["rejected"]}
    letters = {m.data(): m.properties()[P_DEAD_REASON] for m in read_topic(settings, DEAD_LETTERS_TOPIC)}
    assert "pb.v" in letters[b"no properties"]
    assert "mqtt_topic" in letters[b"wildcard"]


def test_one_signal_ends_it_cleanly(settings: Settings, tmp_path: Path) -> None:
    provision(settings)
    commands = [command(settings, f"d{n % 5}", n) for n in range(500)]
    with Devices(settings) as devices, PushProcess(settings, tmp_path).owns() as process:
        write_commands(settings, commands)
        poll_for(lambda: len(devices.got) == 5, 30, "pushing is under way")
        assert process.terminate() == 0, process.log
        assert "push ended" in process.log
        with push_in_thread(settings):
            devices.await_all(commands)
            all_acknowledged(settings)
        assert devices.check(commands) == 0  # a clean end leaves nothing unclear
        # nor is anything marked that needs no mark
        assert not [m for got in devices.got.values() for m in got if "repeat" in user(m)]


def test_h24_cursors_are_compacted_and_held(settings: Settings) -> None:
    assert provision(settings) == 1
    assert provision(settings) == 1  # any number of times
    name = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        assert partitions_ready(admin, topic_need(admin.settings, COMMANDS_TOPIC)) == 1
        assert CURSOR_RETENTION in admin.stats(name)["subscriptions"]
        poll_for(
            lambda: "__compaction" in admin.internal_stats(name)["cursors"],
            30,
            "the first compaction has run",
        )
    commands = [command(settings, f"d{n % 3}", n) for n in range(90)]  # so many that ids are stored apart
    with Devices(settings) as devices:
        with push_in_thread(settings):
            write_commands(settings, commands)
            devices.await_all(commands)
            all_acknowledged(settings)
        with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, PulsarClient(settings.pulsar) as client:
            last = {m.partition_key(): m.message_id() for m in read_topic(settings, CURSORS_TOPIC)}
            oldest = min((one.ledger_id(), one.entry_id()) for one in last.values())
            assert oldest[1] > 10  # the ids that are stored apart
            poll_for(
                lambda: _hold_moves(settings, admin, client, name) == (oldest[0], oldest[1] - 1), 60,
                "the hold stands before the oldest record that is the last of its key",
            )  # fmt: skip
            poll_for(lambda: not _compacts(admin, name), 60, "the end of the compaction")
            before = admin.stats(name)["compaction"]
            assert before["lastCompactionSucceedTimestamp"] > 0
            provision(settings)  # does not compact again what has a million records, while push reads them
            assert not _compacts(admin, name)
            assert admin.stats(name)["compaction"] == before
        with push_in_thread(settings):  # and is read back
            again = [*commands, command(settings, "d0", 100)]
            write_commands(settings, again)
            devices.await_all(again)
            all_acknowledged(settings)
        assert devices.check(again) == 0
        assert sum(len(got) for got in devices.got.values()) == 91


def _compacts(admin: PulsarAdmin, partition: str) -> bool:
    return admin.request("GET", f"/{rest_path(partition)}/compaction")["status"] == "RUNNING"


def _hold_moves(settings: Settings, admin: PulsarAdmin, client: PulsarClient, partition: str) -> tuple[int, int]:
    admin.do(compact_step(partition))
    follow_compaction(client, partition, CURSOR_RETENTION)
    held = Position.parse(admin.internal_stats(partition)["cursors"][CURSOR_RETENTION]["markDeletePosition"])
    return held[0], held[1]


def test_h23_an_owner_that_was_replaced_stops_and_acknowledges_nothing(settings: Settings) -> None:
    provision(settings)
    cursors = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    first, second = command(settings, "d", 1), command(settings, "d", 2)
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        write_commands(settings, [first])
        devices.await_all([first])
        all_acknowledged(settings)
        # The successor's first two steps: it fences the owner, and takes the session at the broker.
        client = pulsar.Client(settings.pulsar.service_url)
        successor = client.create_producer(cursors, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
        write_commands(settings, [second])
        devices.await_all([second])  # Pulsar's client does not tell the former owner
        with DeviceClient(settings.mqtt, f"{settings.push.client_id}-0") as session:
            poll_for(lambda: metrics.counters["partitions_lost"]._value.get() == 1, 30, "the former owner gave up")
            consumer = client.subscribe(settings.pulsar.system_topic(COMMANDS_TOPIC), PUSH_SUBSCRIPTION)
            assert consumer.receive(10_000).partition_key() == "d"  # the subscription is free, nothing was acked
            assert session.connections == 1  # and the session was not taken back
        assert "d-2" not in receipts(settings)
        consumer.close()
        successor.close()
        client.close()
        all_acknowledged(settings)
        assert devices.check([first, second]) == 1
    assert [r.state for r in receipts(settings)["d-2"]] == ["delivered"]


def test_h23_an_owner_that_returns_after_its_successor_left_restarts(settings: Settings) -> None:
    provision(settings)
    cursors = partition_name(settings.pulsar.system_topic(CURSORS_TOPIC), 0)
    first, seventh, eighth = (command(settings, "d", n) for n in (1, 7, 8))
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        write_commands(settings, [first])
        devices.await_all([first])
        all_acknowledged(settings)
        client = pulsar.Client(settings.pulsar.service_url)
        successor = client.create_producer(cursors, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
        delivered = Cursor(256)
        delivered.settle(CommandPosition(0, 0, -1), "d-7", delivered=True)
        successor.send(OwnerRecord("successor", 1).encode(), partition_key=OWNER_KEY)
        successor.send(delivered.encode(), partition_key="d")
        with DeviceClient(settings.mqtt, f"{settings.push.client_id}-0"):
            successor.close()  # from here on the former owner's producer is granted access again
            client.close()
            poll_for(
                lambda: metrics.counters["partitions_lost"]._value.get() == 1,
                30,
                "the former owner noticed its successor",
            )
        # It has read what the successor delivered, and has not forgotten what it had delivered itself.
        write_commands(settings, [seventh, first, eighth])
        devices.await_all([eighth])
        all_acknowledged(settings)
        assert devices.ids("d") == ["d-1", "d-8"]
    states = {command_id: [r.state for r in rows] for command_id, rows in receipts(settings).items()}
    assert states == {"d-1": ["delivered", "duplicate"], "d-7": ["duplicate"], "d-8": ["delivered"]}

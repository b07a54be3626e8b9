"""Records that no release of Pulsebridge can read, in every compacted topic that push reads."""

from __future__ import annotations

import pulsar
import pytest

from bridge.contract import (
    CURSORS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    INSTANCES_TOPIC,
    PRESENCE_TOPIC,
    partition_name,
)
from bridge.contract.cursors import OWNER_KEY, TERM_KEY, ids_key
from bridge.contract.segments import segment_key
from bridge.protocols.board import read_board
from bridge.pulsar.client import PulsarClient
from bridge.settings import PulsarSettings, Settings
from bridge.unreadable import left_out
from pulsebridge.local.stack import LocalStack
from tests.support.groups import group_command, write_group_commands, write_members
from tests.support.push import (
    Devices,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    user,
    write_commands,
)
from tests.support.reading_back import quiet
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

POISON: list[tuple[str, str, bytes]] = [
    (CURSORS_TOPIC, "d", b'{"v":2,"ids":"","position":[1e999,0,0]}'),
    (CURSORS_TOPIC, ids_key("e"), b'{"v":2,"ids":"AAAAAAAAAAAA","days":[9999999999999,1]}'),
    (CURSORS_TOPIC, segment_key("e", "x", 1), b'{"v":1,"parked":[99999999999999999999,0,0,0,0]}'),
    (CURSORS_TOPIC, TERM_KEY, b'{"v":9,"term":1}'),
    (CURSORS_TOPIC, OWNER_KEY, b'{"v":1,"owner":"x","serial":1e999}'),
    (PRESENCE_TOPIC, "d", b'{"v":1,"seen_us":1e999}'),
    (GROUP_MEMBERS_TOPIC, '["presses","e"]', b"[" * 100_000),
    (GROUP_ROSTER_TOPIC, '["progress"]', b'{"v":1,"o":"x","done":[1e999,0,0],"at":[0,0,0],"after":""}'),
    (GROUP_ROSTER_TOPIC, '["open",1,2,-1]', b'{"v":1,"o":"x","command_id":7,"size":1e999}'),
    (INSTANCES_TOPIC, "i", b'{"v":1,"written_ms":1e999}'),
]


def poison(settings: Settings) -> None:
    client = pulsar.Client(settings.pulsar.service_url, logger=quiet())
    for local, key, payload in POISON:
        name = partition_name(settings.pulsar.system_topic(local), 0)
        producer = client.create_producer(name)
        producer.send(payload, partition_key=key)
        producer.close()
    client.close()


def test_h44_a_takeover_goes_on_without_the_records_that_cannot_be_read(
    stack: LocalStack, namespaces: PulsarSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    provision(settings)
    first = [command(settings, name, 1) for name in "de"]
    second = [command(settings, name, 2) for name in "de"]
    with Devices(settings) as devices:
        with push_in_thread(settings):
            write_commands(settings, first)
            devices.await_all(first)
            all_acknowledged(settings)
        write_members(settings, "presses", ["d"])
        poison(settings)
        before = left_out()
        write_commands(settings, second)
        with push_in_thread(settings) as metrics:
            devices.await_all(second)
            write_group_commands(settings, [group_command(settings, 1)])
            poll_for(lambda: len(devices.got["d"]) >= 3, 60, "the command to the group")
            all_acknowledged(settings)
            # Of the one among the instances `pulsebridge status` knows too.
            poll_for(lambda: left_out() - before >= len(POISON) - 1, 60, "all are counted")
            assert metrics.counters["takeovers"]._value.get() == 1
        with PulsarClient(settings.pulsar) as client:
            read_board(client)
        assert left_out() - before >= len(POISON)
        assert user(devices.got["d"][1]).get("repeat") == "1", "what it has had is not known any more"
        again = [command(settings, name, 3) for name in "de"]
        with push_in_thread(settings):
            write_commands(settings, again)
            devices.await_all(again)
            all_acknowledged(settings)
    assert "a record cannot be read and is left out" in capsys.readouterr().out

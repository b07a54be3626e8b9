"""Commands that an MQTT broker answers by closing the connection, or not at all: what else is to be pushed goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from bridge.contract import DEAD_LETTERS_TOPIC, P_DEAD_REASON
from bridge.contract.commands import Command
from bridge.settings import MqttSettings, PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.mqtt_packets import Delivered
from tests.support.push import (
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    read_topic,
    receipts,
    write_commands,
)
from tests.support.raw_broker import CLOSE, SILENT, RawBroker
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def settings_for(broker: RawBroker, namespaces: PulsarSettings, **changes: object) -> Settings:
    mqtt = MqttSettings(port=broker.port, client_id="poison", protocol="5", reconnect_max="500ms")
    return push_settings(namespaces, mqtt, **changes)


def came(broker: RawBroker) -> Callable[[Command], bool]:
    return lambda one: one.command_id in {dict(found.user).get("command-id") for found in broker.taken}


def closes_at_large_ones(one: Delivered) -> int:
    return CLOSE if len(one.payload) > 1000 else 0


def rejected(settings: Settings, one: Command) -> str:
    """Return why a command was given up; its dead letter says the same."""
    (receipt,) = receipts(settings)[one.command_id]
    assert receipt.state == "rejected"
    letters = [letter.properties()[P_DEAD_REASON] for letter in read_topic(settings, DEAD_LETTERS_TOPIC)]
    assert letters == [receipt.reason]
    return receipt.reason


def test_one_command_at_which_the_broker_closes_the_connection_blocks_no_other_device(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    with RawBroker(closes_at_large_ones) as broker:
        settings = settings_for(broker, namespaces)
        provision(settings)
        large = replace(command(settings, "large", 0), payload=bytes(1001))
        small = [command(settings, device, number) for number in (1, 2) for device in ("small", "large")]
        write_commands(settings, [large, *small])
        with push_in_thread(settings):
            poll_for(lambda: all(map(came(broker), small)), 60, "all but one at the broker")
            all_acknowledged(settings)
        assert rejected(settings, large).startswith("the MQTT broker closed the connection 3 times")


def test_a_command_above_the_limit_of_the_broker_is_not_sent_to_it(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    with RawBroker(closes_at_large_ones, b"\x27" + (1000).to_bytes(4, "big")) as broker:
        settings = settings_for(broker, namespaces)
        provision(settings)
        large = replace(command(settings, "large", 0), payload=bytes(1001))
        small = command(settings, "large", 1)
        write_commands(settings, [large, small])
        with push_in_thread(settings):
            poll_for(lambda: came(broker)(small), 60, "the next command of that device")
            all_acknowledged(settings)
        assert "at most 1000 (Maximum Packet Size)" in rejected(settings, large)
        assert broker.connections == 1


def test_a_command_that_is_never_confirmed_delays_its_device_for_a_while_and_no_other(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    def answer(one: Delivered) -> int:
        return SILENT if one.payload == b"0" else 0

    with RawBroker(answer) as broker:
        settings = settings_for(broker, namespaces, puback_timeout="2s")
        provision(settings)
        silent, following = command(settings, "silent", 0), command(settings, "silent", 1)
        write_commands(settings, [silent, following])
        others: list[Command] = []
        numbers = count(10)

        def another() -> bool:
            """Write a command for another device, and wait until the broker has it."""
            others.append(command(settings, "other", next(numbers)))
            write_commands(settings, others[-1:])
            poll_for(lambda: came(broker)(others[-1]), 30, "the other device's command")
            return came(broker)(following)

        with push_in_thread(settings):
            poll_for(another, 90, "the next command of that device", every=0.3)
            all_acknowledged(settings)
        assert "did not confirm it within 2 s, 3 times" in rejected(settings, silent)
        marks = [dict(one.user).get("repeat") for one in broker.came if one.payload == b"0"]
        assert marks == [None, "1", "1"]

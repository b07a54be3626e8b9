"""``confirm: device``: commands settled by a device's own answer, with a broker that reports absence and without."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from bridge.contract import DEAD_LETTERS_TOPIC, P_DEAD_REASON
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
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


def test_h26_a_device_that_does_not_answer_gets_a_repeat_and_delays_no_other_device(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(
        namespaces,
        mqtt_settings(broker),
        confirm="device",
        answers={"timeout": "500ms"},
        retry={"max_wait": "500ms"},
        limits={"window": 2},
    )
    provision(settings)
    quick = [command(settings, f"d{n % 3}", n) for n in range(60)]
    slow = [command(settings, f"s{n % 5}", n) for n in range(10)]
    from_copy = {"s0": 2}  # each of the others answers every time; s0 only the second copy of its first command

    def answering(device: str, count: int) -> bool:
        return count >= from_copy.get(device, 1)

    with Devices(settings, answering) as devices, push_in_thread(settings) as metrics:
        write_commands(settings, [*slow, *quick])
        devices.await_all([*quick, *slow])
        all_acknowledged(settings)
        # On a busy machine others may answer too late for their first copy as well.
        assert devices.check([*quick, *slow]) >= 1
        assert [("repeat" in user(m)) for m in devices.got["s0"]][:2] == [False, True]
        assert metrics.counters["answers"]._value.get() == 70
    got = receipts(settings)
    for one in [*quick, *slow]:
        (receipt,) = got[one.command_id]
        assert (receipt.state, receipt.answer) == ("answered", b"done " + one.payload)
        assert 0 < receipt.pushed_at_us <= receipt.answered_at_us
    assert got["s0-0"][0].attempts >= 2


def test_silent_devices_that_fill_the_window_delay_no_other_device(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(broker), confirm="device", limits={"window": 2}, drain="500ms")
    provision(settings)
    silent = [command(settings, f"s{n}", n) for n in range(20)]
    live = [command(settings, f"d{n % 3}", n) for n in range(30)]
    with Devices(settings, lambda device, _count: device.startswith("d")) as devices:
        with push_in_thread(settings):
            write_commands(settings, [*silent, *live])
            devices.await_all([*silent, *live])
            poll_for(lambda: len(receipts(settings)) == 30, 30, "every live device has answered")
        assert not [one for one in silent if one.command_id in receipts(settings)]
        # Nothing is lost: the next owner sends it again, and marks it.
        devices.got.clear()
        with push_in_thread(settings):
            devices.await_all(silent)
        assert {user(got[0]).get("repeat") for got in devices.got.values()} == {"1"}


def test_what_a_device_cannot_do_is_tried_again_and_then_given_up(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(
        namespaces,
        mqtt_settings(stack),
        confirm="device",
        retry={"attempts": 2, "min_wait": "50ms"},
        answers={"stored_size": "4B"},
    )
    provision(settings)
    bad, good = command(settings, "d", 1), command(settings, "d", 2)
    with Devices(settings, lambda _device, count: count == 3) as devices, push_in_thread(settings):
        write_commands(settings, [bad, good])
        for number in (1, 2):
            poll_for(lambda at=number: len(devices.got["d"]) >= at, 30, "the command came")
            devices.answer(devices.got["d"][number - 1], b"jammed", ("failed", "1"))
        devices.await_all([good])
        all_acknowledged(settings)
        assert devices.ids("d") == ["d-1", "d-1", "d-2"]
    (rejected,), (answered,) = receipts(settings)["d-1"], receipts(settings)["d-2"]
    assert (rejected.state, rejected.attempts) == ("rejected", 2)
    assert (answered.state, answered.answer, answered.answer_length) == ("answered", b"done", 6)
    (letter,) = read_topic(settings, DEAD_LETTERS_TOPIC)
    assert letter.data() == b"1"
    assert "the device says that it failed" in letter.properties()[P_DEAD_REASON]


def test_h30_large_commands_of_a_device_that_fails_do_not_keep_those_of_others_back(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(
        namespaces,
        mqtt_settings(stack),
        confirm="device",
        limits={"pending_size": "8MiB"},
        answers={"timeout": "2s"},
        retry={"max_wait": "500ms"},
        offline={"probe_min": "1s", "probe_max": "1s"},
    )
    provision(settings)
    large = [replace(command(settings, "stuck", n), payload=bytes([n]) * 1_000_000) for n in range(10)]
    other = command(settings, "other", 1)
    fixed, refused = threading.Event(), 0
    with (
        Devices(settings, lambda device, _count: device == "other" or fixed.is_set()) as devices,
        push_in_thread(settings),
    ):
        write_commands(settings, [*large, other])

        def the_other_has_its_command() -> bool:
            nonlocal refused
            for message in devices.got["stuck"][refused:]:
                devices.answer(message, b"no room", ("failed", "1"))
                refused += 1
            return bool(devices.got["other"])

        poll_for(the_other_has_its_command, 60, "the command of the other device")
        fixed.set()
        devices.await_all(large)
        all_acknowledged(settings)
        devices.check([*large, other])


@pytest.mark.parametrize("protocol", ["3.1.1", "3.1"])
def test_a_device_without_properties_reads_the_position_in_the_topic_and_answers(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    mqtt = mqtt_settings(broker, protocol=protocol)
    settings = push_settings(
        namespaces,
        mqtt,
        confirm="device",
        position_in="topic",
        answers={"timeout": "500ms"},
        retry={"min_wait": "50ms"},
    )
    provision(settings)
    commands = [command(settings, "d", n, expires_at_ms=int(time.time() + 600) * 1000) for n in range(3)]
    topics: list[str] = []

    def on_message(message: Message) -> None:
        topics.append(message.topic)
        levels = message.topic.split("/commands/")[1]
        if len(topics) > 1:  # the first copy is not answered
            device.publish(f"{settings.push.answers.topic}/{levels.removesuffix('/repeat')}", message.payload)

    device = DeviceClient(mqtt, f"{mqtt.client_id[:12]}-dev", on_message=on_message)
    with device, push_in_thread(settings):
        device.subscribe(f"{settings.push.client_id}/d/commands/#")
        write_commands(settings, commands)
        all_acknowledged(settings)
    repeats = [topic.endswith("/repeat") for topic in topics]
    assert repeats[:2] == [False, True]
    assert repeats.count(False) == 3, "the first copy of each"
    found = receipts(settings)
    assert [(found[c.command_id][0].state, found[c.command_id][0].answer) for c in commands] == [
        ("answered", b"0"),
        ("answered", b"1"),
        ("answered", b"2"),
    ]

"""What ingest sees of devices wakes those that push has parked; so does an answer that comes late."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.contract import PRESENCE_TOPIC
from bridge.contract.presence import PresenceRecord
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning_plan import PRESENCE_RETENTION
from bridge.settings import PulsarSettings, Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import ingest_process, rule_for, running_ingest
from tests.support.merging import merged
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
    says,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def both(stack: LocalStack, namespaces: PulsarSettings, **changes: object) -> Settings:
    """Settings for ingest and push; no probe finds a device within a minute."""
    mqtt = mqtt_settings(stack)
    push = {
        "confirm": "device",
        "answers": {"timeout": "300ms"},
        "retry": {"max_wait": "200ms"},
        "offline": {"probe_min": "1m"},
    }
    settings = push_settings(namespaces, mqtt, **merged(push, changes))
    ingest = IngestSettings(routes=(rule_for(f"{mqtt.client_id}-readings"),))
    return settings.model_copy(update={"ingest": ingest})


def publish(settings: Settings, device: str) -> None:
    with DeviceClient(settings.mqtt, f"{settings.mqtt.client_id}-{device}") as client:
        client.publish(f"{settings.mqtt.client_id}-readings/{device}/temperature", b"20")
        assert client.flush()


def signs(settings: Settings, device: str) -> list[PresenceRecord]:
    return [
        PresenceRecord.decode(message.data())
        for message in read_topic(settings, PRESENCE_TOPIC)
        if message.partition_key() == device
    ]


def test_h31_any_publish_that_ingest_sees_wakes_a_parked_device(broker: LocalStack, namespaces: PulsarSettings) -> None:
    settings = both(broker, namespaces, command_partitions=2)
    provision(settings)
    commands = [command(settings, device, n) for device in ("d", "e") for n in range(20)]
    with running_ingest(settings), push_in_thread(settings):
        begun = time.time_ns() // 1000
        publish(settings, "d")
        poll_for(lambda: signs(settings, "d"), 30, "the first sign of life")
        quiet = time.monotonic() + 1.2
        write_commands(settings, commands)
        all_acknowledged(settings)  # parked: no device answers
        assert receipts(settings) == {}
        poll_for(lambda: time.monotonic() > quiet, 10, "a silence")
        with Devices(settings, lambda _device, _count: True) as devices:
            publish(settings, "d")
            devices.await_all([one for one in commands if one.device == "d"], 30)
            assert "e" not in devices.got
            publish(settings, "e")
            devices.await_all(commands, 30)
            devices.check(commands)
            poll_for(lambda: len(receipts(settings)) == len(commands), 30, "a receipt of each")
        found = signs(settings, "d")
        assert all(begun <= one.seen_us <= time.time_ns() // 1000 for one in found)
        assert 2 <= len(found) <= 3
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        topic = settings.pulsar.system_topic(PRESENCE_TOPIC)
        assert admin.partition_count(topic) == 2
        assert PRESENCE_RETENTION in admin.stats(f"{topic}-partition-0")["subscriptions"]


def test_h31_a_will_that_a_route_reads_as_well_wakes_no_device(broker: LocalStack, namespaces: PulsarSettings) -> None:
    settings = both(broker, namespaces)
    root = settings.push.client_id
    rule = PresenceRule(filter=f"{root}/+device/status")
    presence = settings.push.presence.model_copy(update={"rules": (rule,)})
    settings = settings.model_copy(
        update={
            "push": settings.push.model_copy(update={"presence": presence}),
            "ingest": IngestSettings(routes=(rule_for(root, filter=f"{root}/+device/status"),)),
        }
    )
    provision(settings)
    commands = [command(settings, "d", n) for n in range(5)]
    with (
        running_ingest(settings),
        push_in_thread(settings) as metrics,
        Devices(settings, lambda *_: True) as devices,
    ):
        poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
        says(settings, "d", b"offline")
        says(settings, "e", b"online")
        poll_for(lambda: signs(settings, "e"), 30, "a birth after the will")
        assert signs(settings, "d") == []
        write_commands(settings, commands)
        all_acknowledged(settings)  # parked
        assert "d" not in devices.got
        says(settings, "d", b"online")
        devices.await_all(commands, 30)
        devices.check(commands)


def test_h31_what_ingest_saw_while_no_push_ran_wakes_at_the_takeover(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = both(stack, namespaces)
    provision(settings)
    commands = [command(settings, device, n) for device in ("d", "e") for n in range(5)]
    with ingest_process(settings, tmp_path):
        publish(settings, "e")  # before the absence: no reason to wake it
        with PushProcess(settings, tmp_path) as process:
            write_commands(settings, commands)
            all_acknowledged(settings)
            process.kill()
        seen = len(signs(settings, "d"))
        publish(settings, "d")
        poll_for(lambda: len(signs(settings, "d")) > seen, 30, "the sign of life")
        with (
            Devices(settings, lambda _device, _count: True) as devices,
            PushProcess(settings, tmp_path, name="second"),
        ):
            devices.await_all([one for one in commands if one.device == "d"], 25)
            assert "e" not in devices.got
            devices.check([one for one in commands if one.device == "d"])


def test_a_late_answer_wakes_a_parked_device_and_settles_its_command_without_another_push(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = both(stack, namespaces)
    provision(settings)
    commands = [command(settings, "d", n) for n in range(3)]
    with push_in_thread(settings), Devices(settings, lambda _device, count: count > 3) as devices:
        write_commands(settings, commands)
        all_acknowledged(settings)  # parked after three tries
        assert devices.ids("d") == ["d-0"] * 3
        devices.answer(devices.got["d"][0], b"late")
        devices.await_all(commands, 30)
        poll_for(lambda: len(receipts(settings)) == 3, 30, "a receipt of each")
        assert devices.ids("d") == ["d-0"] * 3 + ["d-1", "d-2"]
    (row,) = receipts(settings)["d-0"]
    assert (row.state, row.answer, row.attempts) == ("answered", b"late", 3)

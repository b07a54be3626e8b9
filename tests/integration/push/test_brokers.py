"""Push at two MQTT brokers: devices move between them, and one is frozen or dead while the other continues."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message, PublishProperties
from bridge.settings import PulsarSettings, Settings
from bridge.settings.ingest import IngestSettings
from bridge.settings.units import Duration
from pulsebridge.downloads.preflight import find_mosquitto
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import running_ingest
from tests.support.merging import merged
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    await_owned,
    command,
    load,
    parking_settings,
    provision,
    push_in_thread,
    receipts,
    says,
    user,
    write_commands,
)
from tests.support.stack import new_stack
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def other(stack: LocalStack) -> Iterator[LocalStack]:
    """A second broker beside this stack's. A test may stop and kill it, and then starts it again."""
    server = "mosquitto" if find_mosquitto() else "artemis"
    with new_stack(mqtt_server=server, pulsar_url=stack.pulsar_url, admin_url=stack.admin_url) as made:
        yield made


def two_brokers(stack: LocalStack, other: LocalStack, namespaces: PulsarSettings, **changes: object) -> Settings:
    """Settings with the links near and far; devices answer, and say on either that they are there."""
    usual = {"answers": {"timeout": "5s"}, "retry": {"max_wait": "500ms"}}
    settings = parking_settings(stack, namespaces, **merged(usual, changes))
    mqtt = settings.mqtt.model_copy(update={"keep_alive": Duration("5s"), "reconnect_max": Duration("500ms")})
    root = mqtt.client_id
    ingest = IngestSettings(
        links=[{"name": "near"}, {"name": "far", "host": other.mqtt_host, "port": other.mqtt_port}],  # type: ignore[arg-type]
        filters=(f"{root}/#",),
        resume_topic=f"{root}-resume/+device",
    )
    resume = settings.push.resume.model_copy(update={"answer_topic": f"{root}-resumed"})
    push = settings.push.model_copy(update={"resume": resume})
    return settings.model_copy(update={"mqtt": mqtt, "ingest": ingest, "push": push})


def at(settings: Settings, link: str) -> Settings:
    """Settings whose MQTT broker is that of a link, for devices there."""
    return settings.model_copy(update={"mqtt": settings.links()[link], "ingest": IngestSettings()})


def test_a_device_that_moves_in_the_middle_of_a_command_gets_it_again_marked_and_all_others_in_order(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = two_brokers(stack, other, namespaces)
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    commands = [command(settings, "d", n) for n in range(20)]
    with push_in_thread(settings):
        with Devices(near) as before:
            says(near, "d", b"online")
            write_commands(settings, commands)
            poll_for(lambda: before.got["d"], 30, "the first command")
        with Devices(far, lambda _device, _count: True) as after:
            says(far, "d", b"online")
            after.await_all(commands)
            says(near, "d", b"offline")  # the late will of a connection that it left
            more = [command(settings, "d", n) for n in range(20, 30)]
            write_commands(settings, more)
            after.await_all(more)
        assert set(before.ids("d")) == {"d-0"}
        assert user(after.got["d"][0])["repeat"] == "1"
        after.check([*commands, *more])
        poll_for(lambda: len(receipts(settings)) == 30, 30, "a receipt of each")
    assert {one.state for found in receipts(settings).values() for one in found} == {"answered"}


def test_what_a_publish_shows_to_ingest_at_another_broker_moves_the_commands_there(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = two_brokers(stack, other, namespaces)
    settings = settings.model_copy(
        update={
            "push": settings.push.model_copy(
                update={"presence": settings.push.presence.model_copy(update={"rules": ()})}
            )
        }
    )
    root = settings.mqtt.client_id
    rule = {"name": "r", "filter": f"{root}/+device/temperature", "topic": "r", "device": "{device}"}
    ingest = settings.ingest.model_copy(update={"routes": IngestSettings(routes=[rule]).routes, "filters": ()})  # type: ignore[list-item]
    settings = settings.model_copy(update={"ingest": ingest})
    provision(settings)
    written = 0
    with running_ingest(settings), push_in_thread(settings):
        for link in ("far", "near", "far", "near"):
            place = at(settings, link)
            commands = [command(settings, "d", n) for n in range(written, written + 5)]
            ids = [one.command_id for one in commands]
            written += 5
            with (
                Devices(place, lambda _device, _count: True) as devices,
                DeviceClient(place.mqtt, f"{root}-d") as client,
            ):

                def measured(client: DeviceClient = client, devices: Devices = devices, ids: list[str] = ids) -> bool:
                    """Publish as a device does, more than once: ingest records a move at most once a second."""
                    client.publish(f"{root}/d/temperature", b"20")
                    return set(ids) <= set(devices.ids("d"))

                measured()
                assert client.flush()
                write_commands(settings, commands)
                poll_for(measured, 25, "the commands at this broker", every=0.3)
                got = dict.fromkeys(devices.ids("d"))  # its session may have some of the time before the device left
                assert [one for one in got if one in ids] == ids


def test_h27_a_device_resumes_at_another_broker_and_gets_answer_and_commands_there(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = two_brokers(stack, other, namespaces)
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    commands = [command(settings, "d", n) for n in range(10)]
    answers: list[dict[str, object]] = []

    def got(message: Message) -> None:
        answers.append(json.loads(message.payload))

    with running_ingest(settings), push_in_thread(settings):
        with Devices(near, lambda _device, _count: True) as before:
            says(near, "d", b"online")
            write_commands(settings, commands)
            before.await_all(commands)
            all_acknowledged(settings)
        position = user(before.got["d"][3])["position"]
        root = settings.mqtt.client_id
        with (
            Devices(far, lambda _device, _count: True) as after,
            DeviceClient(far.mqtt, f"{root}-resuming", on_message=got) as client,
        ):
            client.subscribe(f"{root}-resumed/d")
            client.publish(f"{root}-resume/d", position.encode())
            poll_for(lambda: answers, 30, "the answer")
            after.await_all(commands[4:])
            assert after.ids("d") == [one.command_id for one in commands[4:]]
            assert all(user(message)["repeat"] == "1" for message in after.got["d"])
    assert answers == [{"resumed": True, "from": position, "commands": 6}]


def test_h26_what_a_session_took_that_the_device_has_left_comes_again_at_the_other_broker(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = two_brokers(stack, other, namespaces, confirm="broker")
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    with push_in_thread(settings) as metrics:
        await_owned(settings, metrics)
        with Devices(near):
            says(near, "d", b"online")
        vain = [command(settings, "d", n) for n in range(5)]
        write_commands(settings, vain)
        all_acknowledged(settings)
        with Devices(far) as after:
            says(far, "d", b"online")
            after.await_all(vain)
            more = [command(settings, "d", n) for n in range(5, 10)]
            write_commands(settings, more)
            after.await_all(more)
            after.check([*vain, *more])
            assert [user(message).get("repeat") for message in after.got["d"]] == ["1"] * 5 + [None] * 5
        assert {one[0].state for one in receipts(settings).values()} == {"delivered"}


def test_h36_an_answer_that_is_forged_at_another_broker_settles_nothing_and_moves_no_device(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = two_brokers(stack, other, namespaces, answers={"timeout": "10m"}, drain="500ms")
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    with push_in_thread(settings) as metrics, Devices(near) as devices:
        await_owned(settings, metrics)
        says(near, "d", b"online")
        write_commands(settings, [command(settings, "d", 0)])
        poll_for(lambda: devices.got["d"], 30, "the command")
        position = user(devices.got["d"][0])["position"]
        guessed = position.rpartition(".")[0]
        with DeviceClient(far.mqtt, f"{settings.mqtt.client_id}-forger") as forger:
            for forged in (guessed, f"{guessed}.AAAAAAAAAAAAAAAA"):
                properties = PublishProperties(correlation_data=forged.encode())
                forger.publish(f"{settings.push.answers.topic}/0/0", b"forged", properties=properties)
            assert forger.flush()
        poll_for(lambda: metrics.counters["stray_answers"]._value.get() == 2, 30, "push has read the forged answers")
        write_commands(settings, [command(settings, "d", 1)])
        devices.answer(devices.got["d"][0], b"true")
        poll_for(lambda: len(devices.got["d"]) == 2, 30, "the next command at the same broker")
        devices.answer(devices.got["d"][1], b"true")
        poll_for(lambda: len(receipts(settings)) == 2, 30, "both receipts")
        assert {one.answer for found in receipts(settings).values() for one in found} == {b"true"}


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_frozen_or_dead_broker_delays_no_device_at_the_other(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings, how: str
) -> None:
    """More commands wait for the devices there than push takes from Pulsar at a time."""
    settings = two_brokers(stack, other, namespaces, limits={"pending": 20}, answers={"timeout": "10s"})
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    first = [command(settings, f"f{n % 10}", n) for n in range(50)]
    with (
        push_in_thread(settings) as metrics,
        Devices(near, lambda _device, _count: True) as here,
        Devices(far, lambda _device, _count: True) as there,
    ):
        await_owned(settings, metrics)
        for n in range(10):
            says(far, f"f{n}", b"online")
            says(near, f"n{n}", b"online")
        write_commands(settings, first)
        there.await_all(first)
        if how == "frozen":
            os.kill(other.pids["mqtt"], signal.SIGSTOP)
        else:
            other.kill("mqtt")
        try:
            away = [command(settings, f"f{n % 10}", n) for n in range(50, 150)]
            write_commands(settings, away)
            for begin in range(0, 100, 20):
                some = [command(settings, f"n{n % 10}", n) for n in range(begin, begin + 20)]
                write_commands(settings, some)
                here.await_all(some, 20)
        finally:
            if how == "frozen":
                os.kill(other.pids["mqtt"], signal.SIGCONT)
            else:
                other.restart("mqtt")
        for n in range(10):
            says(far, f"f{n}", b"online")
        there.await_all([*first, *away], 60)
        here.check([command(settings, f"n{n % 10}", n) for n in range(100)])
        all_acknowledged(settings)
        pushed = {command_id: found[0].attempts for command_id, found in receipts(settings).items()}
        there.check([*first, *away], killed_broker=None if how == "frozen" else pushed)


def test_h23_the_next_owner_knows_where_devices_are_and_takes_over_while_a_broker_is_away(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = two_brokers(stack, other, namespaces)
    near, far = at(settings, "near"), at(settings, "far")
    provision(settings)
    with (
        Devices(near, lambda _device, _count: True) as here,
        Devices(far, lambda _device, _count: True) as there,
        PushProcess(settings, tmp_path, name="first") as process,
    ):
        process.owns()
        says(far, "f", b"online")
        one = [command(settings, "f", 0)]
        write_commands(settings, one)
        there.await_all(one)
        all_acknowledged(settings)
        process.kill()
        with PushProcess(settings, tmp_path, name="second") as successor:
            successor.owns()
            two = [command(settings, "f", n) for n in range(1, 10)]
            write_commands(settings, two)
            there.await_all(two)
            there.check([*one, *two])
            other.kill("mqtt")
            successor.kill()
        with PushProcess(settings, tmp_path, name="third") as third:
            third.owns()
            beside = [command(settings, "n", n) for n in range(10)]
            write_commands(settings, [*beside, command(settings, "f", 10)])
            here.await_all(beside)
            here.check(beside)
            other.restart("mqtt")
            there.await_all([command(settings, "f", 10)])


def test_h23_two_processes_share_the_partitions_while_devices_move(
    stack: LocalStack, other: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = two_brokers(stack, other, namespaces, command_partitions=4)
    places = [at(settings, link) for link in ("near", "far")]
    provision(settings)
    written = []
    with (
        PushProcess(settings, tmp_path, name="first") as process,
        PushProcess(settings, tmp_path, name="second"),
        load(settings, 4, written),
    ):
        moved: list[Devices] = []
        for turn in range(6):
            with Devices(places[turn % 2], lambda _device, _count: True) as devices:
                moved.append(devices)
                for n in range(4):
                    says(places[turn % 2], f"d{n}", b"online")
                poll_for(lambda: sum(map(len, devices.got.values())) > 20, 60, "commands")
            if turn == 3:
                process.kill()
    # What is left is delivered by the next owner; here only the order counts.
    for n in range(4):
        ids = [one for devices in moved for one in devices.ids(f"d{n}")]
        wanted = [one.command_id for one in written if one.device == f"d{n}"]
        first = list(dict.fromkeys(ids))
        assert first == wanted[: len(first)]

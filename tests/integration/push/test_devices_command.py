"""``pulsebridge devices list`` and ``show`` with real push processes, and without one."""

from __future__ import annotations

import json
import os
import socket
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bridge.contract import C_DEVICE, C_ID, COMMANDS_TOPIC, PRESENCE_TOPIC, partition_name
from bridge.contract.commands import Command, CommandPosition, encode_command
from bridge.contract.partitioning import partition_of
from bridge.contract.presence import PresenceRecord
from bridge.contract.segments import ParkedId
from bridge.inspect.devices.status import look_at_push
from bridge.inspect.devices.view import DeviceView, Waiting
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import NO_TEXT, PulsarClient
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.devices import push_topics
from pulsebridge.local.stack import LocalStack
from pulsebridge.output.status import show_push
from tests.support.groups import entries, group_command, write_group_commands, write_members
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    parking_settings,
    provision,
    push_in_thread,
    read_topic,
    receipts,
    says,
    write_commands,
)
from tests.support.push_commands import asked, run
from tests.support.raw_pulsar import store_raw
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def listed(settings: Settings, *arguments: str) -> dict[str, dict[str, Any]]:
    return {one["device"]: one for one in asked(settings, "devices", "list", *arguments)["devices"]}


@pytest.mark.long
def test_devices_are_listed_and_shown_while_push_serves_them_and_while_it_is_down(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = parking_settings(
        stack, namespaces, command_partitions=2, answers={"timeout": "30s"}, offline={"replay_rate": 100}
    )
    provision(settings)
    away = [command(settings, "away", n, emitted_at_us=1_700_000_000_000_000 + n) for n in range(300)]
    live, mute = (
        [command(settings, "live", n) for n in range(5)],
        [command(settings, "mute", n) for n in (1, 2)],
    )
    says(settings, "away", b"offline", retain=True)
    partition = partition_of("away", 2)
    with Devices(settings, lambda device, _count: device != "mute") as devices:
        with PushProcess(settings, tmp_path) as process:
            process.owns(2)
            write_commands(settings, [*away, *live, *mute])
            devices.await_all([*live, mute[0]])
            poll_for(lambda: len(receipts(settings)) == 5, 30, "receipts of the live ones")
            found = poll_for(
                lambda: (now := listed(settings)) and now["away"]["parked"] == 300 and now,
                30,
                "all are parked",
            )
            assert [(one, of["pending"], of["parked"]) for one, of in found.items()] == [
                ("away", 300, 300), ("mute", 2, 0), ("live", 0, 0),
            ]  # fmt: skip
            assert found["away"]["oldest_pending"] == "2023-11-14T22:13:20Z"
            assert found["live"]["last_delivery"] is not None
            assert (found["away"]["presence"], found["live"]["presence"]) == ("absent", "unknown")
            assert list(listed(settings, "--absent")) == ["away"]
            assert list(listed(settings, "--pending", "--limit", "1")) == ["away"]

            shown = asked(settings, "devices", "show", "away", "--limit", "0")
            check_pending(shown, away, "parked", partition)
            assert shown["owner"]["serves"]
            assert shown["owner"]["process"] == f"{socket.gethostname()}/{process.pid}"
            assert (shown["partition"], shown["receipts"]) == (partition, [])
            assert len(asked(settings, "devices", "show", "away", "--limit", "7")["commands"]) == 7
            shown = asked(settings, "devices", "show", "mute")
            check_pending(shown, mute, "waiting", partition_of("mute", 2))
            shown = asked(settings, "devices", "show", "live", "--receipts", "3")
            assert [one["command_id"] for one in shown["receipts"]] == ["live-2", "live-3", "live-4"]
            assert shown["cursor"] == shown["receipts"][-1]["position"]
            status = {one.partition: one for one in look_at_push(settings).partitions}
            assert all(one.owner.serves and not one.unserved and one.whole for one in status.values())
            assert (status[partition].parked_devices, status[partition].parked) == (1, 300)
            assert {one for one, of in status.items() if of.backlog} == {partition_of("mute", 2)}
            assert process.log.count("partition is ours") == 2, "no process was disturbed"
            process.kill()  # a clean end would wait for the answers of mute
        more = [command(settings, "live", n) for n in range(10, 14)]
        write_commands(settings, more)
        poll_for(lambda: not asked(settings, "devices", "show", "live")["owner"]["serves"], 30, "it is gone")
        found = listed(settings)
        assert [(one, of["pending"], of["parked"]) for one, of in found.items()] == [
            ("away", 300, 300), ("live", 4, 0), ("mute", 2, 0),
        ]  # fmt: skip
        shown = asked(settings, "devices", "show", "live")
        check_pending(shown, more, "waiting", partition_of("live", 2))
        assert not shown["owner"]["serves"]
        assert shown["owner"]["process"].startswith(socket.gethostname())
        status = {one.partition: one for one in look_at_push(settings).partitions}
        waits = {partition_of(device, 2) for device in ("away", "live", "mute")}
        assert {one for one, of in status.items() if of.unserved} == waits
        assert all(of.oldest_us > 0 for of in status.values() if of.backlog)
        show_push(look_at_push(settings), Console(file=(page := StringIO()), width=200))
        assert "no process serves them" in page.getvalue()
        cut = asked(settings, "devices", "list", "--backlog", "1")
        assert cut["read"]["backlog_cut"]
        with PushProcess(settings, tmp_path, "again"):
            says(settings, "away", b"online", retain=True)
            poll_for(lambda: len(devices.got["away"]) > 20, 30, "it is on its way")
            shown = asked(settings, "devices", "show", "away", "--limit", "0")
            assert 0 < shown["parked"] < 300, "replaying"
            check_pending(shown, away[-shown["pending"] :], "parked", partition)
            devices.await_all([*more, *away])
            poll_for(lambda: listed(settings)["away"]["pending"] == 0, 30, "nothing waits any more")
            devices.check([*live, *more, *away])


def check_pending(shown: dict[str, Any], wanted: list[Command], state: str, partition: int) -> None:
    """Exactly these commands wait, in order, each at its reported position."""
    assert [one["id"] for one in shown["commands"]] == [one.command_id for one in wanted]
    assert {(one["topic"], one["state"]) for one in shown["commands"]} == {(wanted[0].mqtt_topic, state)}
    positions = [CommandPosition.decode(one["position"]) for one in shown["commands"]]
    assert positions == sorted(positions)
    assert {found for _, found, _ in positions} == {partition}
    assert shown["pending"] == len(wanted)


def test_messages_that_ingest_received_of_a_device_are_its_presence(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    topic = settings.pulsar.system_topic(PRESENCE_TOPIC)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
    with PulsarClient(settings.pulsar) as client:
        producer: Any = client.producer(partition_name(topic, 0))
        records = [("d", 1_700_000_000), ("e", 1_700_000_000), ("d", 1_700_000_060), ("f", int(time.time()))]
        for device, seen in records:
            producer.send(PresenceRecord(seen * 1_000_000).encode(), partition_key=device)
        producer.close()
    found = listed(settings)
    assert [found[one]["last_seen"] for one in "de"] == ["2023-11-14T22:14:20Z", "2023-11-14T22:13:20Z"]
    assert [found[one]["presence"] for one in "def"] == ["unknown", "unknown", "present"]
    assert list(listed(settings, "--absent", "--set", "push.presence.silence=1m")) == ["d", "e"]
    text = run(settings, "devices", "show", "d").stdout
    assert "presence       unknown, last seen 2023-11-14T22:14:20Z" in text
    assert "no process serves it" in text


def test_without_its_topics_a_line_says_what_is_missing(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = parking_settings(stack, namespaces)
    done = run(settings, "devices", "list")
    assert done.exit_code == 1
    assert "the commands topic" in str(done.exception)
    assert os.linesep not in str(done.exception)


def test_foreign_entries_are_skipped_and_reported_and_older_commands_are_read(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    store_raw(settings.pulsar, partition, b"", key=b"d", properties={b"p": b"\xff\xfe"})
    store_raw(settings.pulsar, partition, b"", key=b"d", properties={C_ID.encode(): b"d-1"})
    older = encode_command(command(settings, "d", 0, emitted_at_us=1_700_000_000_000_000))
    properties = {name.encode(): value.encode() for name, value in (older | {C_ID: "d\n0"}).items()}
    store_raw(settings.pulsar, partition, b"open", key=b"d", properties=properties)
    write_commands(settings, [command(settings, "d", 1)])

    assert asked(settings, "devices", "list")["read"]["backlog_left_out"] == 3
    shown = asked(settings, "devices", "show", "d")
    assert [one["id"] for one in shown["commands"]] == ["d-1"]
    assert shown["read"]["backlog_left_out"] == 3
    for name in ("list", "show"):
        text = run(settings, "devices", name, *(["d"] * (name == "show"))).stdout
        assert "3 messages of the backlog are not valid commands: push writes them to the dead letters" in text
    done = run(settings, "commands", "show", "d-1", "--json")
    assert json.loads(done.stdout)["state"] == "pending"
    assert done.stderr.count("not read, not a valid command: 0.0.") == 2
    assert NO_TEXT in done.stderr
    assert asked(settings, "commands", "show", "d\n0")["copies"][0]["bytes"] == 4

    stands = next(m.message_id() for m in read_topic(settings, COMMANDS_TOPIC) if m.data() == b"open")
    place = CommandPosition(stands.ledger_id(), stands.entry_id(), -1)
    device = DeviceView("d", 0, oldest=Waiting(place, ParkedId(place, 0, False)))
    with push_topics(settings) as topics:
        topics.oldest([device])  # an earlier release took and parked it
    assert device.oldest_us == 1_700_000_000_000_000


def test_a_command_to_a_group_is_shown_while_it_waits_for_its_members_and_behind_that(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    given, unknown = group_command(settings, 1), group_command(settings, 2, "unknown")
    write_members(settings, "presses", ["d1"])
    write_group_commands(settings, [given, unknown])
    waits = asked(settings, "commands", "show", given.command_id)
    assert (waits["group"], waits["device"], waits["state"]) == ("presses", "", "pending")
    ((place,),) = [copy["in_group"] for copy in waits["copies"]]
    assert (place["group"], place["how"]) == ("presses", "waiting")
    text = run(settings, "commands", "show", given.command_id).stdout
    assert "presses-1 for the group presses: pending" in text
    assert "waits for its expansion to the members of the group" in text
    refused = run(settings, "resend", given.command_id)
    assert refused.exit_code == 1
    assert "to the group presses that is not yet expanded to its members; push expands it" in refused.stdout
    with Devices(settings, lambda _device, _count: True) as devices, push_in_thread(settings):
        devices.await_all(entries(given, ["d1"]))
        poll_for(lambda: {"presses-1", "unknown-2"} <= set(receipts(settings)), 30, "both have receipts")
        all_acknowledged(settings)
    shown = asked(settings, "commands", "show", given.command_id)
    assert (shown["group"], shown["state"]) == ("presses", "expanded")
    assert [place["how"] for place in shown["copies"][0]["in_group"]] == ["done"]
    shown = asked(settings, "commands", "show", unknown.command_id)
    assert (shown["group"], shown["state"], len(shown["copies"][0]["dead_letters"])) == (
        "unknown",
        "rejected",
        1,
    )


def test_h38_devices_and_commands_print_no_control_character_of_a_device(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    device, command_id = "d\x1b[2J\u202e7\nforged  online", "c\x9b31m\u2028forged"
    # As another program writes them, and ingest when such a device publishes.
    properties = encode_command(command(settings, "d", 0)) | {C_ID: command_id, C_DEVICE: device}
    store_raw(
        settings.pulsar,
        partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0),
        b"open",
        key=device.encode(),
        properties={name.encode(): value.encode() for name, value in properties.items()},
    )
    topic = settings.pulsar.system_topic(PRESENCE_TOPIC)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
    with PulsarClient(settings.pulsar) as client:
        producer: Any = client.producer(partition_name(topic, 0))
        producer.send(PresenceRecord(1_700_000_000_000_000).encode(), partition_key=device)
        producer.close()
    assert device in listed(settings)
    ways = (
        ["devices", "list"],
        ["devices", "show", device],
        ["commands", "show", command_id],
        ["resend", command_id],
    )
    for arguments in ways:
        for form in ([], ["--json"]):
            lines = run(settings, *arguments, *form).output.split("\n")
            assert all(line.isprintable() for line in lines), lines
            assert any("forged" in line for line in lines)
            assert not any(line.startswith("forged") for line in lines)

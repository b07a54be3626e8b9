"""``pulsebridge resend`` and ``commands show``: failed commands again, once each, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bridge.contract import C_ID, C_REF, COMMANDS_TOPIC, GROUP_COMMANDS_TOPIC
from bridge.contract.commands import CommandPosition
from bridge.contract.groups import entry_of
from bridge.settings import Settings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli.resend import register
from pulsebridge.local.stack import LocalStack
from tests.support.groups import entries, group_command, write_group_commands, write_members
from tests.support.kill_points import RESEND_KILL_POINTS
from tests.support.push import (
    Devices,
    all_acknowledged,
    await_owned,
    command,
    parking_settings,
    provision,
    push_arguments,
    push_in_thread,
    read_topic,
    receipts,
    says,
    soon_ms,
    write_commands,
)
from tests.support.push_commands import asked, run
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def in_the_log(settings: Settings) -> list[str]:
    return [message.properties()[C_ID] for message in read_topic(settings, COMMANDS_TOPIC)]


def resend(settings: Settings, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run(settings, "resend", *arguments, "--json")
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def dead_letters(settings: Settings, *arguments: str) -> Result:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)  # so that resend is not taken for the whole
    return CliRunner().invoke(app, ["resend", *arguments, "--json", *push_arguments(settings)])


def resent(report: dict[str, Any]) -> list[str]:
    return [one["id"] for one in report["resent"]]


def test_a_rejected_command_is_sent_again_once_and_its_receipts_name_the_first(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(
        stack,
        namespaces,
        retry={"attempts": 1},
        answers={"timeout": "30s"},
        command_partitions=2,
        presence={"max_failures": 99},
    )
    provision(settings)
    commands = [command(settings, "d", n) for n in range(3)]
    works: set[str] = {"d-0"}

    def answering(_device: str, _count: int) -> bool:
        return devices.ids("d")[-1] in works

    with Devices(settings, answering, failing=True) as devices, push_in_thread(settings):
        write_commands(settings, commands)
        poll_for(lambda: len(receipts(settings)) == 3, 30, "all three ended")
        assert {one: rows[-1].state for one, rows in receipts(settings).items()} == {
            "d-0": "answered", "d-1": "rejected", "d-2": "rejected",
        }  # fmt: skip
        shown = asked(settings, "commands", "show", "d-1")
        assert shown["state"] == "rejected"
        assert len(shown["copies"][0]["dead_letters"]) == 1

        assert "d-0: it is answered" in resend(settings, "d-0", code=1)["refused"][0]["why"]
        assert resent(resend(settings, "d-1", "d-2", "--dry-run")) == ["d-1~2", "d-2~2"]
        assert len(in_the_log(settings)) == 3, "a dry run writes nothing"
        assert "Pulsar has no record of it" in resend(settings, "nowhere", code=1)["refused"][0]["why"]

        replayed = dead_letters(settings, "--all")
        assert replayed.exit_code == 1
        report = json.loads(replayed.stdout)
        assert (sum(report["replayed"].values()), len(report["refused"])) == (0, 2)
        assert "pulsebridge resend d-1 --device d" in str(report["refused"])
        assert len(in_the_log(settings)) == 3, "under its old id it would be dropped"

        works |= {"d-1~3", "d-2~2"}
        report = resend(settings, "--device", "d", "--state", "rejected")
        assert resent(report) == ["d-1~2", "d-2~2"], "in the order that they had"
        poll_for(lambda: len(receipts(settings)) == 5, 30, "both ended")
        report = resend(settings, "d-1~2", "d-2", code=1)
        assert resent(report) == ["d-1~3"], "what failed again goes again, under the next number"
        assert "its copy d-2~2 is answered" in report["refused"][0]["why"]
        poll_for(lambda: "d-1~3" in receipts(settings), 30, "the third one ended")
        assert devices.ids("d") == ["d-0", "d-1", "d-2", "d-1~2", "d-2~2", "d-1~3"]
        assert [m.payload for m in devices.got["d"]][3:] == [b"1", b"2", b"1"]
        assert resent(resend(settings, "--device", "d", "--state", "rejected")) == []
        ended = {rows[-1].command_id: (rows[-1].state, rows[-1].resend_of) for rows in receipts(settings).values()}
        assert ended["d-1~2"] == ("rejected", "d-1")
        assert ended["d-1~3"] == ("answered", "d-1")
        assert ended["d-1"] == ("rejected", "")
        assert resent(resend(settings, "d-0", "--force")) == ["d-0~2"]
        text = run(settings, "commands", "show", "d-1~2").stdout
        assert text.startswith("d-1 for d: answered")
        assert [line for line in text.splitlines() if line.startswith("d-1")][1:] == ["d-1", "d-1~2", "d-1~3"]


def test_what_expired_while_its_device_was_away_goes_again_with_a_new_time_and_waits_parked(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    soon = int(time.time() * 1000) + 1500
    commands = [command(settings, "d", n, expires_at_ms=soon if n < 2 else 0) for n in range(3)]
    says(settings, "d", b"offline", retain=True)
    with Devices(settings, lambda _device, _count: True) as devices:
        with push_in_thread(settings):
            write_commands(settings, commands)
            poll_for(lambda: len(receipts(settings)) == 2, 30, "two expired")
            assert "--expires-in" in resend(settings, "d-0", code=1)["refused"][0]["why"]
            assert resent(resend(settings, "d-0", "--expires-in", "1h", "--device", "d")) == ["d-0~2"]
            all_acknowledged(settings)
            again = resend(settings, "d-0", "--expires-in", "1h", code=1)["refused"][0]["why"]
            assert "its copy d-0~2 is pending" in again
            assert "pending" in resend(settings, "d-0", "--force", code=1)["refused"][0]["why"]
            (_, copy) = asked(settings, "commands", "show", "d-0")["copies"]
            assert (copy["state"], copy["queue"]) == ("pending", "parked")
        # push is down
        assert resent(resend(settings, "d-1", "--expires-in", "never")) == ["d-1~2"]
        assert "pending" in resend(settings, "d-1", "--expires-in", "never", code=1)["refused"][0]["why"]
        shown = asked(settings, "devices", "show", "d")["commands"]
        assert [(one["id"], one["state"]) for one in shown] == [
            ("d-2", "parked"), ("d-0~2", "parked"), ("d-1~2", "waiting"),
        ]  # fmt: skip
        with push_in_thread(settings):
            says(settings, "d", b"online", retain=True)
            poll_for(lambda: len(receipts(settings)) == 5, 30, "all ended")
        assert devices.ids("d") == ["d-2", "d-0~2", "d-1~2"]


def test_a_resend_that_is_killed_after_it_has_written_writes_no_second_one(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    commands = [command(settings, "d", n, expires_at_ms=1) for n in range(2)]
    namesake = replace(commands[1], command_id="d-1~2")  # a command of another writer has this id
    write_commands(settings, [*commands, namesake])
    with push_in_thread(settings):
        poll_for(lambda: len(receipts(settings)) == 3, 30, "all expired")
    arguments = ["resend", "d-0", "d-1", "--expires-in", "never", *push_arguments(settings)]
    (point,) = RESEND_KILL_POINTS
    killed = subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments],
        capture_output=True,
        timeout=patient(120),
        env=os.environ | {"PULSEBRIDGE_KILL_AT": point},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    report = resend(settings, "d-0", "d-1", "--expires-in", "never", code=1)
    assert resent(report) == ["d-1~3"]
    assert in_the_log(settings) == ["d-0", "d-1", "d-1~2", "d-0~2", "d-1~3"]
    with Devices(settings, lambda _device, _count: True) as devices, push_in_thread(settings):
        poll_for(lambda: len(receipts(settings)) == 5, 30, "both copies ended")
        assert devices.ids("d") == ["d-0~2", "d-1~3"]


@pytest.mark.long
def test_an_id_that_several_devices_have_is_resent_to_the_one_that_is_named_and_shown_of_each(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces, command_partitions=2)
    provision(settings)
    expires = {"d1": 1, "d2": 1, "d3": 0, "d4": 0}
    every = {
        name: replace(command(settings, name, 0, expires_at_ms=at), command_id="reboot", payload=name.encode())
        for name, at in expires.items()
    }
    with Devices(settings, lambda _device, _count: True) as devices:
        with push_in_thread(settings):
            write_commands(settings, [every[name] for name in ("d1", "d2", "d3")])
            poll_for(lambda: len(receipts(settings)["reboot"]) == 3, 30, "three ended")
        write_commands(settings, [every["d4"]])  # push is down: it has no receipt
        report = resend(settings, "reboot", "--expires-in", "1h", "--force", code=1)
        assert resent(report) == []
        assert "4 devices have a command of this id: d1, d2, d3, d4; name the device" in report["refused"][0]["why"]
        shown = asked(settings, "commands", "show", "reboot")
        assert {one["device"]: one["state"] for one in shown["devices"]} == {
            "d1": "expired", "d2": "expired", "d3": "answered", "d4": "pending",
        }  # fmt: skip
        text = run(settings, "commands", "show", "reboot").stdout
        assert text.startswith("4 devices have a command reboot\n")
        assert "reboot for d4: pending" in text
        assert asked(settings, "commands", "show", "reboot", "--device", "d2")["state"] == "expired"
        for name in ("d1", "d2"):
            (one,) = resend(settings, "reboot", "--device", name, "--expires-in", "1h")["resent"]
            assert one == {"id": "reboot~2", "resend_of": "reboot", "device": name}
        for name, state in (("d1", "pending"), ("d3", "answered"), ("d4", "pending")):
            refused = resend(settings, "reboot", "--device", name, "--expires-in", "1h", code=1)["refused"]
            assert f"is {state}" in refused[0]["why"]
        with push_in_thread(settings):
            poll_for(lambda: len(receipts(settings)["reboot~2"]) == 2, 30, "both copies ended")
            poll_for(lambda: len(receipts(settings)["reboot"]) == 4, 30, "the fourth one ended")
    got = {name: [m.payload for m in devices.got[name]] for name in expires}
    assert got == {name: [name.encode()] for name in expires}


@pytest.mark.long
def test_a_member_of_a_group_gets_its_command_again_as_one_of_its_own_and_a_group_does_not(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    lost = entry_of(group_command(settings, 9), "away", CommandPosition(0, 0, -1), 5, settings.push.groups.topic)
    says(settings, "away", b"offline", retain=True)
    write_members(settings, "presses", ["away", "there"])
    with Devices(settings, lambda _device, _count: True) as devices:
        with push_in_thread(settings) as metrics:
            await_owned(settings, metrics)
            group = group_command(settings, 1, expires_at_ms=soon_ms())
            away, there = entries(group, ["away", "there"])
            write_group_commands(settings, [group])
            devices.await_all([there])
            poll_for(lambda: receipts(settings)[away.command_id], 60, "one has expired")
            why = resend(settings, group.command_id, "--force", code=1)["refused"][0]["why"]
            assert "it is a command to the group presses" in why
            (one,) = resend(settings, away.command_id, "--expires-in", "1h")["resent"]
            assert one == {"id": f"{away.command_id}~2", "resend_of": away.command_id, "device": "away"}
            says(settings, "away", b"online", retain=True)
            poll_for(lambda: receipts(settings)[f"{away.command_id}~2"], 30, "the copy ended")
            write_commands(settings, [lost])
            poll_for(lambda: receipts(settings)[lost.command_id], 30, "the one without a payload ended")
        why = resend(settings, lost.command_id, code=1)["refused"][0]["why"]
        assert "the payload of presses-9 is not in Pulsar any more" in why
    assert [message.payload for message in devices.got["away"]] == [group.payload]
    (copy,) = [m for m in read_topic(settings, COMMANDS_TOPIC) if m.properties()[C_ID].endswith("~2")]
    assert copy.data() == group.payload, "Pulsar may trim the group command's, which has expired"
    assert C_REF not in copy.properties()
    assert receipts(settings)[f"{away.command_id}~2"][-1].state == "answered"


def test_a_dead_letter_of_a_group_command_goes_to_the_member_it_was_for_or_to_the_group_that_had_none_of_it(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(
        stack,
        namespaces,
        retry={"attempts": 1},
        answers={"timeout": "30s"},
        command_partitions=2,
        presence={"max_failures": 99},
    )
    provision(settings)
    given, unknown = group_command(settings, 1), group_command(settings, 2, "unknown")
    works, fails = entries(given, ["works", "fails"])
    write_members(settings, "presses", ["works", "fails"])

    def answering(device: str, _count: int) -> bool:
        return device != "fails" or devices.ids("fails")[-1].endswith("~2")

    with Devices(settings, answering, failing=True) as devices, push_in_thread(settings):
        write_group_commands(settings, [given, unknown])
        poll_for(
            lambda: {fails.command_id, works.command_id, "unknown-2"} <= set(receipts(settings)),
            30,
            "all ended",
        )
        assert receipts(settings)[fails.command_id][-1].state == "rejected"
        write_members(settings, "unknown", ["late"])
        replayed = dead_letters(settings, "--all")
        assert replayed.exit_code == 1, replayed.output
        report = json.loads(replayed.stdout)
        assert report["replayed"] == {settings.pulsar.system_topic(GROUP_COMMANDS_TOPIC): 1}
        (refused,) = report["refused"]
        assert f"to fails alone: pulsebridge resend {fails.command_id} --device fails" in refused["why"]
        devices.await_all(entries(unknown, ["late"]))
        resend(settings, fails.command_id, "--device", "fails")
        again = f"{fails.command_id}~2"
        poll_for(lambda: again in receipts(settings), 30, "the copy ended")
        all_acknowledged(settings)
        assert devices.ids("fails") == [fails.command_id, again]
        assert devices.ids("works") == [works.command_id]
        assert [message.payload for message in devices.got["late"]] == [unknown.payload]
    assert receipts(settings)[again][-1].state == "answered"
    assert [one.state for one in receipts(settings)["unknown-2"]] == ["rejected", "expanded"]


@pytest.mark.long
def test_what_failed_of_a_group_s_members_is_sent_again_at_once_and_since_a_time(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces, command_partitions=2)
    provision(settings)
    names = ["d0", "d1", "d2", "d3"]
    own = command(settings, "d0", 1, expires_at_ms=1)
    for name in names:
        says(settings, name, b"offline", retain=True)
    write_members(settings, "presses", names)
    with Devices(settings, lambda _device, _count: True) as devices, push_in_thread(settings):
        write_commands(settings, [own])
        poll_for(lambda: receipts(settings), 60, "its receipt")
        emitted_us = time.time_ns() // 1000 - 3_600_000_000
        group = group_command(settings, 1, expires_at_ms=soon_ms(), emitted_at_us=emitted_us)
        members = entries(group, names)
        write_group_commands(settings, [group])
        poll_for(lambda: len(receipts(settings)) == 6, 60, "all have expired, and the group has its receipt")
        chosen = ("--group", "presses", "--state", "expired", "--expires-in", "1h")
        assert resent(resend(settings, *chosen, "--since", "10m")) == []
        report = resend(settings, *chosen, "--since", "2h", "--dry-run")
        assert sorted(one["device"] for one in report["resent"]) == names
        (one,) = resend(settings, *chosen, "--device", "d3")["resent"]
        assert one["resend_of"] == members[3].command_id
        done = resend(settings, *chosen)
        assert sorted(one["resend_of"] for one in done["resent"]) == sorted(m.command_id for m in members[:3])
        assert resent(resend(settings, *chosen)) == []
        for name in names:
            says(settings, name, b"online", retain=True)
        poll_for(lambda: len(receipts(settings)) == 10, 60, "all copies ended")
    assert {name: [m.payload for m in devices.got[name]] for name in names} == {name: [group.payload] for name in names}


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--state", "expired"),
        ("a", "--device", "d", "--state", "expired"),
        ("a", "--group", "presses"),
        ("a", "--since", "1h"),
    ],
)
def test_a_selection_that_is_none_says_how_to_select(
    stack: LocalStack, namespaces: PulsarSettings, arguments: tuple[str, ...]
) -> None:
    done = run(parking_settings(stack, namespaces), "resend", *arguments)
    assert done.exit_code == 1
    assert "--device or --group" in str(done.exception)

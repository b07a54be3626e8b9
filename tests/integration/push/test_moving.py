"""Commands that move to another Pulsar cluster: order, marks, parked commands, groups, and positions that devices keep."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from bridge.contract import partition_name
from bridge.contract.commands import Command
from bridge.contract.partitioning import partition_of
from bridge.errors import TerminatedError
from bridge.inspect.devices.reading import PushTopics
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.command_writer import CommandWriter
from bridge.pulsar.provisioning import create_topic
from bridge.pulsar.provisioning_plan import TopicNeed, push_needs
from bridge.settings import PulsarSettings, Settings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.groups import entries, group_command, write_group_commands, write_members
from tests.support.ingest import running_ingest
from tests.support.kill_points import MOVE_KILL_POINTS
from tests.support.push import (
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    receipts,
    says,
    write_commands,
)
from tests.support.resuming import OffsetDevice, resume_settings
from tests.support.stack import new_stack, provisioned
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.thorough]

COMMAND = (sys.executable, "-c", "from pulsebridge.cli.app import main; main()")
PARTITIONS = 2
NAMES = ("a", "b", "away")


@pytest.fixture(scope="module")
def other(stack: LocalStack) -> Iterator[LocalStack]:
    """A second Pulsar, beside the same MQTT broker. Its positions are before those of the first one."""
    settings = provisioned(stack)
    ledgers = TopicNeed(settings.system_topic("ledgers"), 30, ("s",))
    with PulsarAdmin(settings, timeout_s=30) as admin:
        create_topic(admin, ledgers)
    with new_stack(mqtt_url=stack.mqtt_url) as running:
        yield running


@pytest.fixture
def old(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    made = resume_settings(stack, namespaces, command_partitions=PARTITIONS)
    rule = PresenceRule(filter=f"{made.push.client_id}/+device/status")
    presence = made.push.presence.model_copy(update={"rules": (rule,)})
    made = made.model_copy(update={"push": made.push.model_copy(update={"presence": presence})})
    provision(made)
    return made


@pytest.fixture
def new(old: Settings, other: LocalStack) -> Settings:
    return old.model_copy(update={"pulsar": provisioned(other, command_partitions=PARTITIONS, command_generation=1)})


def move(old: Settings, new: Settings, folder: Path, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``pulsebridge commands move``."""
    names = ("service_url", "admin_url", "namespace", "system_namespace", "command_partitions", "command_generation")
    for name, settings in (("old", old), ("new", new)):
        pulsar = {key: getattr(settings.pulsar, key) for key in names}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"pulsar": pulsar}), encoding="utf-8")
    return subprocess.run(
        [*COMMAND, *shlex.split("commands move --config old.yaml --to new.yaml")],
        cwd=folder,
        env=os.environ | {"PULSEBRIDGE_KILL_AT": kill_at},
        timeout=patient(120),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def parked(settings: Settings, device: str) -> int:
    """Return how many commands are parked for a device."""
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, PulsarClient(settings.pulsar) as client:
        return PushTopics(client, admin).records(partition_of(device, PARTITIONS)).device(device).parked


def owned(settings: Settings) -> int:
    """Return how many cursors partitions have a producer."""
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        names = [partition_name(settings.pulsar.system_topic("command-cursors"), n) for n in range(PARTITIONS)]
        return sum(bool(admin.stats(name).get("publishers")) for name in names)


def check(device: OffsetDevice, commands: Sequence[Command], *of: Settings) -> None:
    """First arrivals are exactly these commands, in order; every repeat is marked; the device executes all in order. ``of``:
    where its receipts are.
    """
    got = [payload for payload in device.got if payload != "answer"]
    if list(dict.fromkeys(got)) != [one.payload.decode() for one in commands]:
        ids = [one.command_id for one in commands if one.payload.decode() not in got]
        found = [
            (row.command_id, row.state, row.reason, row.attempts, row.position)
            for rows in map(receipts, of)
            for name in ids
            for row in rows[name]
        ]
        pytest.fail(f"{device.name} got {got}, the receipts of {ids} are {found}")
    first: set[str] = set()
    for payload, repeat in zip(got, device.repeats, strict=True):
        assert repeat or payload not in first, f"{payload} came again and is not marked: {got}"
        first.add(payload)
    assert list(dict.fromkeys(device.executed)) == list(dict.fromkeys(got))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_h27_commands_that_move_to_another_cluster_are_complete_in_order_and_marked(
    old: Settings, new: Settings, tmp_path: Path, end: str
) -> None:
    of = {name: [command(old, name, number) for number in range(40)] for name in NAMES}
    first, group = group_command(old, 999), group_command(old, 1000)
    write_members(old, "presses", NAMES)

    def write(settings: Settings, first: int, last: int, *names: str) -> None:
        write_commands(settings, [of[name][number] for number in range(first, last) for name in names or NAMES])

    with ExitStack() as undo:
        a, b, away = (undo.enter_context(OffsetDevice(old, name)) for name in NAMES)
        with PushProcess(old, tmp_path).owns(PARTITIONS) as push:
            write_group_commands(old, [first])
            for device in (a, b, away):
                device.awaits(entries(first, [device.name]))
            write(old, 0, 10)
            for device in (a, b, away):
                device.awaits(of[device.name][:10])
            says(old, "away", b"offline")
            write_group_commands(old, [group])
            a.awaits(entries(group, ["a"]))
            write(old, 10, 30)
            a.awaits(of["a"][:30])
            b.awaits(of["b"][:30])
            poll_for(lambda: parked(old, "away") >= 10, 60, "its commands to be parked", every=0.2)
            refused = move(old, new, tmp_path)
            assert refused.returncode == 1
            assert "stop it" in refused.stdout
            if end == "stopped":
                assert push.terminate() == 0
            else:
                push.kill()
        poll_for(lambda: owned(old) == 0, 60, "no push owns a partition", every=0.2)
        write(old, 30, 35)
        undo.enter_context(running_ingest(new))
        resumed, before = a.places["9"], len(a.executed)
        a.ask(resumed)  # of the old cluster; it waits in the new one

        for point in MOVE_KILL_POINTS:
            assert move(old, new, tmp_path, point).returncode == -9, point
        done = move(old, new, tmp_path)
        assert done.returncode == 0, done.stdout
        assert "not in Pulsar" not in done.stdout
        again = move(old, new, tmp_path)
        assert again.stdout == "all was moved before: start push with the new settings\n"
        with PulsarClient(old.pulsar) as client, pytest.raises(TerminatedError):
            list(CommandWriter(client).write(of["a"][35:36]))

        write(new, 0, 5, "b")  # a writer repeats what it wrote to the old cluster
        write(new, 35, 40)
        with push_in_thread(new):
            expected = {
                name: [*entries(first, [name]), *of[name][:10], *entries(group, [name]), *of[name][10:]]
                for name in NAMES
            }
            a.goes_on_with(expected["a"][11:])
            b.awaits(of["b"])
            says(new, "away", b"online")
            away.awaits(of["away"])
            check(a, expected["a"], old, new)
            check(b, expected["b"], old, new)
            check(away, expected["away"], old, new)
            assert a.executed[before:] == [one.payload.decode() for one in expected["a"][11:]]
            assert a.answers == [{"resumed": True, "from": resumed, "commands": 31}]
            b.ask(b.places["39"])
            poll_for(lambda: b.answers, 30, "the answer of the new cluster")
            assert b.answers[0]["commands"] == 0
            late = undo.enter_context(OffsetDevice(new, "late"))
            write_members(new, "presses", ["late"])
            late.awaits([*entries(first, ["late"]), *entries(group, ["late"])])
            all_acknowledged(new)
        rows = receipts(new)
        assert {row.state for one in of["b"][:5] for row in rows[one.command_id]} >= {"duplicate"}
        assert {one.command_id for one in of["away"][10:]} <= rows.keys()


@pytest.mark.timeout(300)
def test_topics_with_commands_of_their_own_are_refused_until_they_are_deleted(
    old: Settings, new: Settings, tmp_path: Path
) -> None:
    write_commands(old, [command(old, "a", 0)])
    with PulsarAdmin(new.pulsar, timeout_s=30) as admin:  # as `pulsebridge provision` does
        for need in push_needs(new.pulsar).topics:
            create_topic(admin, need)
    write_commands(new, [command(old, "a", 1)])
    refused = move(old, new, tmp_path)
    assert refused.returncode == 1
    assert "not a copy" in refused.stdout
    with push_in_thread(new):
        poll_for(lambda: owned(new) == PARTITIONS, 60, "push owns the partitions", every=0.2)
    refused = move(old, new, tmp_path)
    assert refused.returncode == 1
    assert "push ran with the new settings" in refused.stdout
    # As docs/operate/move.md says.
    names = ("commands", "command-cursors", "parked-commands", "group-commands", "group-members", "group-roster")
    with PulsarAdmin(new.pulsar, timeout_s=30) as admin:
        for name in names:
            admin.request("DELETE", f"/{rest_path(new.pulsar.system_topic(name))}/partitions?force=true")
    done = move(old, new, tmp_path)
    assert done.returncode == 0, done.stdout
    with OffsetDevice(new, "a") as device, push_in_thread(new):
        device.awaits([command(old, "a", 0)])
        assert device.got == ["0"]

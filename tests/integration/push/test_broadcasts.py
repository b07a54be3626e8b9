"""A broadcast to a group at real servers: its payload leaves push once, and members that did not answer get their own copy."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.contract import RECEIPTS_TOPIC, Receipt
from bridge.contract.groups import GroupCommand
from bridge.settings import MqttSettings, PulsarSettings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.group_fleet import GroupFleet, GroupFleetSpec
from tests.support.groups import write_group_commands, write_members
from tests.support.push import all_acknowledged, await_owned, provision, push_in_thread, push_settings, read_topic, says
from tests.support.stack import mqtt_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

MARK = b"<the payload of the broadcast>"


class Marks:
    """Counts the payloads in what push sends; one of them may be cut into several parts."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self._rest: dict[socket.socket, bytes] = {}

    def __call__(self, client: socket.socket, data: bytes) -> None:
        self.bytes += len(data)
        *whole, rest = (self._rest.get(client, b"") + data).split(MARK)
        self.count += len(whole)
        self._rest[client] = rest[-len(MARK) + 1 :]


@pytest.mark.parametrize(
    ("members", "size", "timeout_s"),
    [(300, 32 * 1024, 6), pytest.param(10_000, 64 * 1024, 60, marks=pytest.mark.long)],
)
def test_a_broadcast_leaves_push_once_and_each_member_has_its_receipt(
    mosquitto: LocalStack, namespaces: PulsarSettings, members: int, size: int, timeout_s: int
) -> None:
    """Some do not subscribe to it, some do not answer it, some are absent: each of these gets one copy, and executes it once."""
    deaf = mute = absent = 5
    direct = mqtt_settings(mosquitto)
    marks = Marks()
    with TcpProxy(direct.host, direct.port, marks) as proxy:
        settings = push_settings(
            namespaces,
            MqttSettings(**(direct.model_dump() | {"host": "127.0.0.1", "port": proxy.port})),
            command_partitions=2,
            confirm="device",
            answers={"timeout": f"{timeout_s}s"},
            groups={"broadcast_topic": f"{direct.client_id}-push/{{group}}/all"},
            offline={"probe_min": "60s"},
            presence={"rules": (PresenceRule(filter=f"{direct.client_id}-push/+device/status"),)},
        )
        provision(settings)
        prefix = settings.push.client_id
        spec = GroupFleetSpec(direct.host, direct.port, prefix, f"{prefix}/fleet/all", members, deaf, mute, absent)
        write_members(settings, "fleet", spec.names)
        for name in spec.names[-absent:]:
            says(settings, name, b"offline", retain=True)
        payload = MARK + bytes(size - len(MARK))
        with GroupFleet(spec) as fleet, push_in_thread(settings) as metrics:
            fleet.ready(members - absent, 60 + members / 50)
            await_owned(settings, metrics)
            first, second = (
                GroupCommand(f"fleet-{n}", "fleet", f"{prefix}/{{device}}/commands", payload, broadcast=True)
                for n in (1, 2)
            )
            answered = metrics.counters["receipts"].labels("answered")._value.get
            pushed = metrics.counters["pushed"]._value.get
            for n, one in enumerate((first, second), 1):
                began = marks.bytes, time.monotonic()
                write_group_commands(settings, [one])
                poll_for(lambda n=n: answered() == n * (members - absent), 120 + members / 20, "all receipts")
                sent, copies = marks.bytes - began[0], fleet.last["by"].get("copy", 0)
                print(f"{sent} bytes left push for {members} members, {time.monotonic() - began[1]:.1f} s")
            probes = metrics.counters["refused"]._value.get  # to absent members: no client is subscribed
            poll_for(lambda: fleet.last["by"]["copy"] == pushed() - 2 - probes(), 30, "all copies are counted")
            copies = fleet.last["by"]["copy"]
            late = copies - 2 * (deaf + mute)
            print(f"{late} answers of {2 * members} were late")
            assert 0 <= late <= members // 2, "those that did not answer in time have a copy of each"
            assert marks.count == 2 + copies + probes(), "each payload left push once, and once for each of those"
            fleet.come()
            fleet.ready(members, 60)
            for name in spec.names[-absent:]:
                says(settings, name, b"online", retain=True)
            poll_for(lambda: answered() == 2 * members, 60, "the receipts of those that were absent")
            all_acknowledged(settings)
            assert marks.count == pushed() == 2 + copies + 2 * absent + probes()
            executed = fleet.end()
    assert {len(found) for found in executed.values()} == {2}, "each member executed each of them once"
    assert len({tuple(found) for found in executed.values()}) == 1, "in the same order"
    found = [Receipt.decode(message.data()) for message in read_topic(settings, RECEIPTS_TOPIC)]
    for one in (first, second):
        whole = [(r.state, r.members, r.reason) for r in found if r.command_id == one.command_id]
        assert sorted(whole) == [("broadcast", 0, ""), ("expanded", members, "")]
        theirs = [r for r in found if r.group_command_id == one.command_id and r.device]
        assert sorted(r.device for r in theirs) == spec.names
        assert {r.state for r in theirs} == {"answered"}
        assert all(r.answer == f"{r.device} did it".encode() for r in theirs)


@pytest.mark.long
def test_the_readme_s_member_executes_each_broadcast_once_also_one_that_it_missed(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mqtt = mqtt_settings(stack)
    settings = push_settings(
        namespaces,
        mqtt,
        confirm="device",
        answers={"timeout": "2s"},
        groups={"broadcast_topic": f"{mqtt.client_id}-push/{{group}}/commands"},
    )
    prefix = settings.push.client_id
    provision(settings)
    readme = (Path(__file__).resolve().parents[3] / "docs/devices/broadcasts.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "press-4.group" in b)
    for usual, ours in (
        ("port=1883", f"port={stack.mqtt_port}"),
        ("client_id=DEVICE", f'client_id="{settings.mqtt.client_id}-press"'),
        ("devices/{DEVICE}", f"{prefix}/{{DEVICE}}"),
        ("groups/presses", f"{prefix}/presses"),
    ):
        assert usual in block
        block = block.replace(usual, ours)
    monkeypatch.chdir(tmp_path)
    write_members(settings, "presses", ["press-4"])
    topic = f"{prefix}/{{device}}/commands"
    payloads = [b"%d" % n for n in range(5)]
    commands = [
        GroupCommand(f"c{n}", "presses", topic, payload, broadcast=n != 2) for n, payload in enumerate(payloads)
    ]
    with push_in_thread(settings) as metrics:
        write_group_commands(settings, commands[:1])  # before the device has subscribed
        poll_for(lambda: metrics.counters["receipts"].labels("broadcast")._value.get() == 1, 60, "the first broadcast")
        here: dict[str, Any] = {}
        exec(block, here)
        try:
            for n, one in enumerate(commands[1:], 1):
                write_group_commands(settings, [one])
                poll_for(lambda n=n: len(here["executed"]) > n, 60, "the next command")
            all_acknowledged(settings)
            assert here["executed"] == payloads
        finally:
            here["device"].disconnect()
            here["device"].loop_stop()
    states = metrics.counters["receipts"]
    assert states.labels("answered")._value.get() == 5
    assert states.labels("broadcast")._value.get() == 4

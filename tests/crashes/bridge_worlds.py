"""The worlds of ingest, push and HTTP: each cell has namespaces, processes and devices of its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.contract.commands import Command
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings, Settings
from bridge.settings.push import PresenceRule
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.chaos.world import TOPIC, world
from tests.crashes.cells import Cell
from tests.crashes.strike import Outcome, armed, ordered, strike
from tests.support.http_fleet import answered_in, fleet_process, ingest_of
from tests.support.ingest import stored
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_settings,
    receipts,
    says,
    user,
    write_commands,
)
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

__all__ = ["http", "ingest", "push"]

_DEVICES: Final = 4
_EACH: Final = 30


def _topic(stack: LocalStack, local: str) -> tuple[PulsarSettings, str]:
    """Return settings with namespaces of their own, and the only partition of a topic for readings."""
    pulsar = provisioned(stack, partitions=1)
    topic = pulsar.readings_topic(local)
    with PulsarAdmin(pulsar, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
    return pulsar, partition_name(topic, 0)


def ingest(cell: Cell, stack: LocalStack, folder: Path, chance: random.Random) -> Outcome:
    """Devices publish over MQTT, and the component is killed while ingest stands at the point."""
    pulsar, partition = _topic(stack, TOPIC)
    with world(stack, folder, pulsar_settings=pulsar) as one:
        one.start(stop_at=f"{cell.point}:{chance.randint(5, 20)}")
        assert one.process is not None
        with one.fleet(devices=10, rate=100) as fleet:
            strike(cell, stack, pulsar, partition, one.process.pid, lambda at_point: [at_point])
            if cell.component == "ingest":
                one.start()
            done = fleet.total
            poll_for(lambda: fleet.total > done + 100, 60, "a flow after the kill")
            found = one.account(fleet)

            def settled() -> bool:  # what was delivered before may come behind what is new
                nonlocal found
                before, found = found, one.account(fleet)
                return found.stored == before.stored

            poll_for(settled, 30, "the end of what the MQTT broker sends", every=2.0)
    return Outcome(fleet.total, found.missing, found.disordered, found.unexplained, _without(found.repeats))


def push(cell: Cell, stack: LocalStack, folder: Path, chance: random.Random) -> Outcome:
    """Half of the commands are written before the kill, the others after it. The devices of parked ones are offline first."""
    parked = cell.order == "parked"
    answers = parked or cell.point == "after_answer"
    settings = _push_settings(stack, parked=parked, answers=answers)
    commands = [command(settings, f"d{n % _DEVICES}", n) for n in range(_DEVICES * _EACH)]
    half = len(commands) // 2
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)

    def devices_are(status: bytes) -> None:
        for number in range(_DEVICES if parked else 0):
            says(settings, f"d{number}", status, retain=True)

    with Devices(settings, (lambda _device, _count: True) if answers else None) as devices, ExitStack() as processes:
        devices_are(b"offline")
        write_commands(settings, commands[:half])
        passage = chance.randint(1, 2) if cell.point == "after_segment" else chance.randint(2, 12)
        first = PushProcess(settings, folder, freeze_at=f"{cell.point}:{passage}")
        processes.enter_context(first)
        if parked and cell.point != "after_segment":
            all_acknowledged(settings)
            devices_are(b"online")
        strike(cell, stack, settings.pulsar, partition, first.pid, lambda at_point: [at_point])
        if cell.component == "push":
            processes.enter_context(PushProcess(settings, folder, "successor"))
        write_commands(settings, commands[half:])
        devices_are(b"online")
        devices.await_all(commands, 90)
        all_acknowledged(settings)
        wanted = "answered" if answers else "delivered"
        poll_for(lambda: _settled(settings, commands, wanted), 30, "a receipt of each command", every=0.5)
    found = Outcome(len(commands))
    rows, repeats = receipts(settings), Counter[str]()
    for one in commands:
        states = [row.state for row in rows[one.command_id]]
        repeats["receipt stored again, Pulsar did not have the acknowledgement of its command"] += (
            states.count(wanted) - 1
        )
    for number in range(_DEVICES):
        device = f"d{number}"
        ids = devices.ids(device)
        ordered(found, device, (int(name.rpartition("-")[2]) for name in ids), range(number, len(commands), _DEVICES))
        seen: set[str] = set()
        for message in devices.got[device]:
            name, marked = user(message)["command-id"], user(message).get("repeat") == "1"
            if name in seen and marked:
                repeats["command sent again before its cursor was stored, marked as repeat"] += 1
            elif name in seen and cell.component == "mqtt":
                repeats["command sent again by the MQTT broker, which had no PUBACK of the device"] += 1
            elif name in seen:
                found.unexplained.append(f"{name} came again and is not marked")
            seen.add(name)
    found.repeats = _without(repeats)
    return found


def _push_settings(stack: LocalStack, *, parked: bool, answers: bool) -> Settings:
    mqtt = mqtt_settings(stack, keep_alive="5s", reconnect_max="500ms")
    more: dict[str, object] = {}
    if parked:
        rule = PresenceRule(filter=f"{mqtt.client_id}-push/+device/status")
        more = {"answers": {"timeout": "2s"}, "presence": {"rules": (rule,)}, "offline": {"probe_min": "2s"}}
    confirm = "device" if answers else "broker"
    settings = push_settings(provisioned(stack), mqtt, confirm=confirm, **more)
    provision(settings)
    return settings


def _settled(settings: Settings, commands: Sequence[Command], wanted: str) -> bool:
    rows = receipts(settings)
    return all(any(row.state == wanted for row in rows[one.command_id]) for one in commands)


def http(cell: Cell, stack: LocalStack, folder: Path, chance: random.Random) -> Outcome:
    """Devices publish over HTTP, each message again until it is answered 200."""
    pulsar, partition = _topic(stack, "fleet")
    (port,) = free_ports(1)
    record = folder / "answered"
    with ExitStack() as processes:
        first = processes.enter_context(
            ingest_of(port, pulsar, folder, armed(cell, chance.randint(2, _DEVICES * _EACH // 2)))
        )
        client = fleet_process(port, _DEVICES, _EACH, record)
        killed = client if cell.component == "http_client" else first
        try:
            strike(cell, stack, pulsar, partition, first.pid, lambda _: [psutil.Process(killed.pid)])
            if cell.component == "ingest":
                processes.enter_context(ingest_of(port, pulsar, folder))
            elif cell.component == "http_client":
                client.wait()
                client = fleet_process(port, _DEVICES, _EACH, record)
            poll_for(lambda: client.poll() is not None, 90, "every answer")
        finally:
            client.kill()
            client.wait()
    answered = answered_in(record)
    assert answered == {f"d{n}": _EACH for n in range(_DEVICES)}, f"the client failed after {answered}"
    found, repeats = Outcome(_DEVICES * _EACH), Counter[str]()
    seen: dict[str, dict[int, set[int]]] = {name: {} for name in answered}
    for message in stored(pulsar, "fleet"):
        arrivals = seen[message.key].setdefault(int(message.payload), set())
        if message.event_ms in arrivals:
            repeats["message stored again by ingest, which had no receipt of Pulsar"] += 1
        elif arrivals:
            repeats["request sent again by the client, which had no answer"] += 1
        arrivals.add(message.event_ms)
    for device, numbers in seen.items():
        ordered(found, device, numbers, range(_EACH))
    found.repeats = _without(repeats)
    return found


def _without(repeats: Mapping[str, int]) -> dict[str, int]:
    return {rule: count for rule, count in repeats.items() if count > 0}

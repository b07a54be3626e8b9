"""Push processes share the partitions by themselves: when others join, leave, die or freeze, under load."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.contract import INSTANCES_TOPIC
from bridge.contract.commands import Command
from bridge.contract.partitioning import partition_of
from bridge.inspect.instances import look_at_instances
from bridge.protocols.sharing import STEADY_S
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    load,
    provision,
    push_in_thread,
    push_settings,
    receipts,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

PARTITIONS = 4
DEVICES = 16
TAKE_OVER_S = 5.0


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=PARTITIONS)
    assert {partition_of(f"d{n}", PARTITIONS) for n in range(DEVICES)} == set(range(PARTITIONS))
    provision(settings)
    return settings


def shares(settings: Settings) -> dict[int, list[int]]:
    """Return what each live push process has, by its process id."""
    found = look_at_instances(settings)
    return {int(one.instance.split("-")[-2]): one.partitions for one in found.push if one.state == "running"}


def shared(settings: Settings, processes: Sequence[PushProcess]) -> dict[int, list[int]]:
    """Wait until these processes, and no others, own all partitions, and their shares differ by one at most."""

    def found() -> dict[int, list[int]] | None:
        now = shares(settings)
        sizes = sorted(map(len, now.values()))
        owned = sorted(number for share in now.values() for number in share)
        even = now.keys() == {one.pid for one in processes} and sizes[-1] - sizes[0] <= 1
        return now if even and owned == list(range(PARTITIONS)) else None

    return poll_for(found, 30, f"{len(processes)} processes with even shares", every=0.2)


def took_over(settings: Settings, victim: PushProcess, others: Sequence[PushProcess], end: Callable[[], None]) -> float:
    """Let ``end`` end a process. Returns after which time the others own each of its partitions, in seconds."""
    lost = shares(settings)[victim.pid]

    def times(partition: int) -> int:
        return sum(len(re.findall(rf"partition is ours .*partition={partition}\b", one.log)) for one in others)

    before = {partition: times(partition) for partition in lost}
    end()
    began = time.monotonic()
    for partition in lost:
        what = f"partition {partition} is owned again"
        poll_for(lambda partition=partition: times(partition) > before[partition], TAKE_OVER_S, what, every=0.02)  # type: ignore[misc]
    return time.monotonic() - began


def settled(settings: Settings, devices: Devices, written: Sequence[Command]) -> int:
    """Wait until all is delivered and acknowledged. Returns the repeats, which are marked; none is missing, in order."""
    devices.await_all(written)
    all_acknowledged(settings)
    assert set(receipts(settings)) == {one.command_id for one in written}
    return devices.check(written)


def test_processes_share_evenly_hand_over_in_order_and_take_over_from_a_killed_one(
    settings: Settings, tmp_path: Path
) -> None:
    written: list[Command] = []
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, "first").owns(PARTITIONS) as first,
        PushProcess(settings, tmp_path, "second") as second,
    ):
        with load(settings, DEVICES, written):
            assert shared(settings, [first, second]) == {first.pid: [0, 1], second.pid: [2, 3]}
            with PushProcess(settings, tmp_path, "third") as third:
                assert len(shared(settings, [first, second, third])[third.pid]) == 1
                assert third.terminate() == 0
            shared(settings, [first, second])
        assert settled(settings, devices, written) == 0, "what is handed over in order is not repeated"
        with load(settings, DEVICES, written):
            took_s = took_over(settings, first, [second], first.kill)
            shared(settings, [second])
        settled(settings, devices, written)
        (other,) = (one for one in look_at_instances(settings).push if one.state == "running")
        assert other.groups, "the first process had them"
    print(f"the partitions of a killed process were owned again after {took_s:.1f} s")


@pytest.mark.thorough
def test_a_frozen_process_is_replaced_and_gets_a_share_when_it_goes_on(settings: Settings, tmp_path: Path) -> None:
    written: list[Command] = []
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, "first").owns(PARTITIONS) as first,
        PushProcess(settings, tmp_path, "second") as second,
    ):
        shared(settings, [first, second])
        with load(settings, DEVICES, written):
            first.freeze()
            shared(settings, [second])
            first.goes_on()
            shared(settings, [first, second])
        settled(settings, devices, written)
        assert second.log.count("handed over") == 2, (
            "the process that goes on takes its share, and nothing back and forth"
        )


def test_processes_that_cannot_see_each_other_leave_everything_where_it_is(settings: Settings, tmp_path: Path) -> None:
    written: list[Command] = []
    pulsar = settings.pulsar
    with PulsarAdmin(pulsar, timeout_s=30) as admin:
        path = f"/persistent/{pulsar.tenant}/{pulsar.system_namespace}/{INSTANCES_TOPIC}"
        admin.request("POST", f"{path}/terminate/partitions")
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, "first").owns(PARTITIONS) as first,
        push_in_thread(settings) as second,
        load(settings, DEVICES, written),
    ):
        poll_for(lambda: len(devices.ids("d0")) > STEADY_S / 0.2, 60, "more time than a hand-over would take")
        takeovers = second.counters["takeovers"]._value
        assert (takeovers.get(), first.log.count("handed over")) == (0, 0)
        first.kill()
        poll_for(lambda: takeovers.get() == PARTITIONS, 30, "the other process owns all partitions")
        devices.await_all(list(written))


@pytest.mark.thorough
def test_a_process_that_cannot_reach_the_mqtt_broker_leaves_its_share_to_the_others(
    settings: Settings, tmp_path: Path
) -> None:
    nowhere = ["--set", "mqtt.port=1"]
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, "first").owns(PARTITIONS) as first,
        PushProcess(settings, tmp_path, "second", more=nowhere) as second,
    ):
        written: list[Command] = []
        with load(settings, DEVICES, written):
            first.owns(PARTITIONS + 2)
            wanted = {first.pid: [0, 1, 2, 3], second.pid: []}
            poll_for(lambda: shares(settings) == wanted, 10, "the first process to report all partitions")
        assert settled(settings, devices, written) == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_times_a_third_process_joins_and_one_is_killed_under_load(settings: Settings, tmp_path: Path) -> None:
    written: list[Command] = []
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, took = random.Random(seed), list[float]()
    with ExitStack() as stack, Devices(settings) as devices:
        processes = [stack.enter_context(PushProcess(settings, tmp_path, f"push-{n}")) for n in range(2)]
        with load(settings, DEVICES, written):
            for number in range(2, 12):
                shared(settings, processes)
                processes.append(stack.enter_context(PushProcess(settings, tmp_path, f"push-{number}")))
                shared(settings, processes)
                victim = processes.pop(dice.randrange(len(processes)))
                took.append(took_over(settings, victim, processes, victim.kill))
            shared(settings, processes)
        repeats = settled(settings, devices, written)
    print(
        f"owned again after (s): {', '.join(f'{one:.1f}' for one in took)}; {len(written)} commands, {repeats} repeats"
    )

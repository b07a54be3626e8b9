"""Push workers killed with -9 after each step of the commit order, and while others wait to take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.settings import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.kill_points import KILL_POINTS
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    push_settings,
    receipts,
    write_commands,
)
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

_MAY_REPEAT = ("after_publish", "after_puback")
_WHEN_AWAY = ("after_segment", "after_pull", "after_copy", "after_move")
"""Passed for devices that come and go, or stay away: see test_parking.py and the push chaos."""


@pytest.mark.parametrize("point", [p for p in KILL_POINTS if p not in _WHEN_AWAY])
def test_h25_killed_after_each_step_nothing_is_lost_and_repeats_are_marked(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, point: str
) -> None:
    confirm = "device" if point == "after_answer" else "broker"
    settings = push_settings(namespaces, mqtt_settings(stack), confirm=confirm)
    provision(settings)
    commands = [command(settings, f"d{n % 4}", n) for n in range(80)]
    with Devices(settings, (lambda _device, _count: True) if confirm == "device" else None) as devices:
        write_commands(settings, commands)
        passages = 1 if point == "after_takeover" else 21
        with PushProcess(settings, tmp_path, kill_at=f"{point}:{passages}") as process:
            process.died()
        with push_in_thread(settings):
            devices.await_all(commands)
            all_acknowledged(settings)
        repeats = devices.check(commands)
        # At most one command of each device is pushed beyond its stored cursor.
        assert repeats <= (4 if passages > 1 else 0)
    got = receipts(settings)
    for one in commands:
        assert {r.state for r in got[one.command_id]} == {"answered" if confirm == "device" else "delivered"}


def test_a_standby_takes_over_from_a_killed_owner(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=2)
    provision(settings)
    commands = [command(settings, f"d{n % 8}", n) for n in range(600)]
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, "first").owns(2) as first,
        push_in_thread(settings) as standby,
    ):
        assert standby.counters["takeovers"]._value.get() == 0
        write_commands(settings, commands)
        poll_for(lambda: len(devices.got) == 8, 30, "pushing is under way")
        first.kill()
        devices.await_all(commands)
        all_acknowledged(settings)
        poll_for(lambda: standby.counters["takeovers"]._value.get() == 2, 60, "the standby owns both partitions")
        devices.check(commands)
    assert set(receipts(settings)) == {one.command_id for one in commands}


@pytest.mark.long
def test_both_servers_may_go_away_and_come_back(private_stack: LocalStack, tmp_path: Path) -> None:
    mqtt = mqtt_settings(private_stack, reconnect_max="500ms")
    settings = push_settings(provisioned(private_stack), mqtt)
    provision(settings)
    commands = [command(settings, f"d{n % 4}", n) for n in range(900)]
    with Devices(settings) as devices, push_in_thread(settings):
        write_commands(settings, commands[:300])
        poll_for(lambda: len(devices.got) == 4, 30, "pushing is under way")
        private_stack.kill("mqtt")
        write_commands(settings, commands[300:600])
        private_stack.restart("mqtt")
        devices.await_all(commands[:600])
        write_commands(settings, commands[600:])
        private_stack.kill("pulsar")
        private_stack.restart("pulsar")
        devices.await_all(commands, 90)
        all_acknowledged(settings)
        rows = receipts(settings)
        devices.check(commands, killed_broker={i: found[0].attempts for i, found in rows.items()})
    assert set(rows) == {one.command_id for one in commands}

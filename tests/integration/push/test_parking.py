"""Commands of devices that are away wait in Pulsar, and go to them in order when they are back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.contract import COMMANDS_TOPIC, CURSORS_TOPIC, DEAD_LETTERS_TOPIC, PARKED_TOPIC, partition_name
from bridge.contract.segments import read_segment, segment_device
from bridge.mqtt.device import DeviceClient
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning_plan import PARKED_RETENTION, rest_path
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.groups import entries, group_command, write_group_commands, write_members
from tests.support.push import (
    Devices,
    PushProcess,
    all_acknowledged,
    await_owned,
    command,
    parking_settings,
    provision,
    push_in_thread,
    read_topic,
    receipts,
    says,
    soon_ms,
    user,
    write_commands,
)
from tests.support.push_commands import asked, run
from tests.support.stack import mosquitto_beside
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def stored_ids(settings: Settings) -> int:
    """How many ids the stored segments contain."""
    segments: dict[str, int] = {}
    for message in read_topic(settings, CURSORS_TOPIC):
        if segment_device(message.partition_key()) is not None:
            segments[message.partition_key()] = len(read_segment(message.data()).ids) if message.data() else 0
    return sum(segments.values())


def trim(settings: Settings) -> None:
    """Let Pulsar trim the commands without a subscription, while push moves its retention subscription."""
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    path = f"/{rest_path(partition)}"
    namespace = f"/namespaces/{settings.pulsar.tenant}/{settings.pulsar.system_namespace}"
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        admin.request("PUT", f"{path}/unload")  # a new ledger begins
        admin.request("POST", f"{namespace}/retention", body=nothing)
        for n in range(2):  # the retention subscription is before the last one
            write_commands(settings, [command(settings, "other", n)])
        first = int(admin.internal_stats(partition)["ledgers"][0]["ledgerId"])

        def trimmed() -> bool:
            admin.request("POST", f"{path}/trim")
            return int(admin.internal_stats(partition)["ledgers"][0]["ledgerId"]) > first

        poll_for(trimmed, 60, "the first ledger is trimmed", every=0.5)


@pytest.mark.parametrize("confirm", ["device", "broker"])
def test_h25_a_will_parks_a_device_and_its_birth_brings_everything_in_order(
    broker: LocalStack, namespaces: PulsarSettings, confirm: str
) -> None:
    settings = parking_settings(broker, namespaces, confirm=confirm)
    provision(settings)
    commands = [command(settings, "d", n) for n in range(270)]
    live = [command(settings, "live", n) for n in range(20)]
    with push_in_thread(settings) as metrics:
        poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
        with Devices(settings, lambda _d, _n: confirm == "device") as devices:
            says(settings, "d", b"offline")
            write_commands(settings, [*commands, *live])
            devices.await_all(live)
            all_acknowledged(
                settings
            )  # parked: the delivery subscription has acknowledged them, the retention subscription has not
            assert "d" not in devices.got
            assert metrics.gauges["parked"].labels("0")._value.get() in (0, 270)
            assert stored_ids(settings) == 270
            says(settings, "d", b"online")
            devices.await_all(commands)
            poll_for(lambda: stored_ids(settings) == 0, 30, "no segment is left")
            assert devices.check([*commands, *live]) == 0
    found = receipts(settings)
    assert {r.state for one in commands for r in found[one.command_id]} == {
        "answered" if confirm == "device" else "delivered"
    }


def test_h31_a_clock_that_is_set_back_leaves_no_device_deaf(
    stack: LocalStack, namespaces: PulsarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parking_settings(stack, namespaces, offline={"probe_min": "1m"})
    provision(settings)
    parked = [command(settings, "d", n) for n in range(20)]
    live = [command(settings, "live", n) for n in range(40)]
    with push_in_thread(settings) as metrics:
        poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is ours")
        with Devices(settings, lambda _d, _n: True) as devices:
            says(settings, "d", b"offline")
            write_commands(settings, [*parked, *live[:20]])
            devices.await_all(live[:20])
            all_acknowledged(settings)
            real_ns, real = time.time_ns, time.time
            with monkeypatch.context() as an_hour_ago:
                an_hour_ago.setattr(time, "time_ns", lambda: real_ns() - 3_600_000_000_000)
                an_hour_ago.setattr(time, "time", lambda: real() - 3600.0)
                poll_for(lambda: metrics.counters["takeovers"]._value.get() == 2, 30, "it is taken over again")
                write_commands(settings, live[20:])
                devices.await_all(live, 30)
                says(settings, "d", b"online")
                devices.await_all([*parked, *live], 30)
                assert devices.check([*parked, *live]) == 0


@pytest.fixture(params=["artemis", pytest.param("mosquitto", marks=pytest.mark.long)])
def lonely_broker(request: pytest.FixtureRequest, stack: LocalStack) -> Iterator[LocalStack]:
    """The session's Artemis, or a Mosquitto of the test's own: with 0x10 it reports that no client subscribes, which a
    session of another test on ``#`` would deny.
    """
    if request.param == "artemis":
        yield stack
        return
    with mosquitto_beside(stack) as running:
        yield running


def test_h31_a_device_without_presence_messages_is_parked_and_found_by_a_probe(
    lonely_broker: LocalStack, namespaces: PulsarSettings
) -> None:
    broker = lonely_broker
    mosquitto = broker.settings.mqtt_server == "mosquitto"
    # Mosquitto reports a missing subscriber with 0x10; with Artemis only the missing answers show it.
    settings = parking_settings(
        broker,
        namespaces,
        confirm="broker" if mosquitto else "device",
        presence={"rules": ()},
        offline={"probe_min": "500ms"},
        retry={"max_wait": "200ms"},
        answers={"timeout": "200ms"},
    )
    provision(settings)
    commands = [command(settings, "d", n) for n in range(30)]
    with push_in_thread(settings) as metrics:
        write_commands(settings, commands)
        all_acknowledged(settings)
        poll_for(lambda: metrics.gauges["parked"].labels("0")._value.get() == 30, 30, "all of them are parked")
        assert receipts(settings) == {}
        with Devices(settings, lambda _device, _count: not mosquitto) as devices:
            devices.await_all(commands)
            poll_for(lambda: stored_ids(settings) == 0, 30, "no segment is left")
            devices.check(commands)
    assert set(receipts(settings)) == {one.command_id for one in commands}


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["after_segment", "after_ack", ""])
def test_h25_killed_while_parking_the_next_owner_knows_what_is_parked_without_the_backlog(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, point: str
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    commands = [command(settings, f"d{n % 3}", n) for n in range(90)]
    for n in range(3):
        says(settings, f"d{n}", b"offline", retain=True)
    write_commands(settings, commands)
    with PushProcess(settings, tmp_path, kill_at=f"{point}:2" if point else "") as process:
        if point:
            process.died()
        else:
            all_acknowledged(settings)
            process.kill()
    with push_in_thread(settings) as metrics:
        all_acknowledged(settings)
        poll_for(lambda: metrics.gauges["parked"].labels("0")._value.get() == 90, 30, "the parked ones are known")
        with Devices(settings, lambda _device, _count: True) as devices:
            for n in range(3):
                says(settings, f"d{n}", b"online", retain=True)
            devices.await_all(commands)
            poll_for(lambda: stored_ids(settings) == 0, 30, "no segment is left")
            devices.check(commands)
    assert {r.state for rows in receipts(settings).values() for r in rows} == {"answered"}


def test_h26_what_a_broker_confirmed_for_a_dead_device_goes_again_when_it_is_back(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces, confirm="broker")
    provision(settings)
    before, lost, later = ([command(settings, "d", n) for n in range(begin, begin + 5)] for begin in (0, 10, 20))
    with push_in_thread(settings):
        with Devices(settings) as devices:
            write_commands(settings, before)
            devices.await_all(before)
            all_acknowledged(settings)
            first = list(devices.got["d"])
            says(settings, "d", b"alive")
        with DeviceClient(settings.mqtt, f"{settings.push.client_id}-devices") as gone:
            assert gone.connections == 1  # its session is ended with the subscription: Artemis says 0x00 all the same
        write_commands(settings, lost)
        all_acknowledged(settings)
        says(settings, "d", b"offline")
        write_commands(settings, later)
        all_acknowledged(settings)
        with Devices(settings) as devices:
            says(settings, "d", b"online")
            devices.await_all([*lost, *later])
            assert devices.ids("d") == [one.command_id for one in [*lost, *later]]
            assert [user(m).get("repeat") for m in devices.got["d"]] == ["1"] * 5 + [None] * 5
            assert [user(m)["command-id"] for m in first] == [one.command_id for one in before]


@pytest.mark.long
def test_what_expires_or_overflows_while_a_device_is_away_has_its_receipt(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces, offline={"max_commands": 4})
    provision(settings)
    says(settings, "d", b"offline", retain=True)
    with push_in_thread(settings) as metrics:
        await_owned(settings, metrics)
        soon = soon_ms()
        commands = [command(settings, "d", n, expires_at_ms=soon if n < 2 else 0) for n in range(6)]
        write_commands(settings, commands)
        all_acknowledged(settings)
        poll_for(lambda: len(receipts(settings)) == 4, 30, "receipts of those that do not wait any more")
        states = {command_id: rows[0].state for command_id, rows in receipts(settings).items()}
        assert states == {"d-0": "expired", "d-1": "expired", "d-4": "overflowed", "d-5": "overflowed"}
        with Devices(settings, lambda _device, _count: True) as devices:
            says(settings, "d", b"online", retain=True)
            devices.await_all(commands[2:4])
            poll_for(lambda: len(receipts(settings)) == 6, 30, "receipts of all")
            assert devices.ids("d") == ["d-2", "d-3"]
    assert [m.data() for m in read_topic(settings, DEAD_LETTERS_TOPIC)] == [b"4", b"5"]


def test_h25_the_retention_subscription_stays_before_the_oldest_parked_command(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = parking_settings(stack, namespaces)
    provision(settings)
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    early = [command(settings, "live", n) for n in range(30)]
    parked, live = [command(settings, "d", 1)], [command(settings, "live", n) for n in range(100, 130)]
    says(settings, "d", b"offline", retain=True)

    def held() -> int:
        with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
            cursor = admin.internal_stats(partition)["cursors"][PARKED_RETENTION]["markDeletePosition"]
            return int(cursor.partition(":")[2])

    with Devices(settings, lambda _device, _count: True) as devices, push_in_thread(settings):
        for some in (early, parked, live):
            write_commands(settings, some)
        devices.await_all([*early, *live])
        all_acknowledged(settings)
        (where,) = [
            read_segment(m.data()).ids[0].position
            for m in read_topic(settings, CURSORS_TOPIC)
            if segment_device(m.partition_key()) == "d"
        ]
        assert where.entry > 0
        poll_for(lambda: held() == where.entry - 1, 30, "the hold stands before the parked command")


@pytest.mark.long
def test_h30_commands_that_wait_long_move_to_a_topic_of_their_own_and_the_retention_subscription_advances(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = parking_settings(stack, namespaces, offline={"relocate_after": "1s"})
    provision(settings)
    to_all = group_command(settings, 1)
    write_members(settings, "presses", ["d"])
    parked = [*(command(settings, "d", n) for n in range(299)), *entries(to_all, ["d"])]
    live, later = ([command(settings, "live", n) for n in range(first, first + 20)] for first in (0, 20))
    says(settings, "d", b"offline", retain=True)

    def mark(topic: str) -> tuple[int, int]:
        with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
            name = partition_name(settings.pulsar.system_topic(topic), 0)
            ledger, _, entry = admin.internal_stats(name)["cursors"][PARKED_RETENTION]["markDeletePosition"].partition(
                ":"
            )
            return int(ledger), int(entry)

    with Devices(settings, lambda _device, _count: True) as devices:
        with push_in_thread(settings):
            write_commands(settings, parked[:-1])
            write_group_commands(settings, [to_all])
            poll_for(lambda: stored_ids(settings) == 300, 60, "all are parked")
            write_commands(settings, live)
            devices.await_all(live)
            all_acknowledged(settings)
            last = max(m.message_id() for m in read_topic(settings, COMMANDS_TOPIC))
            poll_for(lambda: len(read_topic(settings, PARKED_TOPIC)) == 300, 60, "a copy of each")
            poll_for(
                lambda: mark(COMMANDS_TOPIC) >= (last.ledger_id(), last.entry_id() - 1),
                60,
                "the retention subscription moves on",
            )
            copies = read_topic(settings, PARKED_TOPIC)
            assert [m.data() for m in copies] == [*(one.payload for one in parked[:-1]), b""]
            trim(settings)
            shown = asked(settings, "devices", "show", "d", "--limit", "0")
            assert [(one["id"], one["group"], one["bytes"]) for one in shown["commands"]] == [
                *((one.command_id, None, len(one.payload)) for one in parked[:-1]),
                (parked[-1].command_id, "presses", len(to_all.payload)),
            ]
            (found,) = (one for one in asked(settings, "devices", "list")["devices"] if one["device"] == "d")
            assert found["oldest_pending"] == shown["commands"][0]["emitted"]
            assert found["oldest_pending"] is not None
            for whose in ((), ("--device", "d")):  # the log has it no more, and it has no receipt
                shown = asked(settings, "commands", "show", "d-7", *whose)
                (one,) = shown["copies"]
                assert (shown["device"], one["state"], one["queue"]) == ("d", "pending", "parked")
                assert (one["positions"], len(one["moved"])) == ([], 1)
            forced = run(settings, "resend", "d-7", "--force", "--dry-run")
            assert "would be resent to d as d-7~2" in forced.output
            assert "it is pending" in run(settings, "resend", "d-7").output
        with push_in_thread(settings):  # another owner knows where they are
            write_commands(settings, later)
            devices.await_all(later)
            assert "d" not in devices.got
            says(settings, "d", b"online", retain=True)
            devices.await_all(parked)
            poll_for(lambda: stored_ids(settings) == 0, 30, "no segment is left")
            assert devices.check([*parked, *live, *later]) == 0
    assert {row.state for rows in receipts(settings).values() for row in rows} == {"answered", "expanded"}


def test_h27_a_replay_that_is_killed_goes_on_though_the_device_says_nothing_more(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    """With a broker that accepts commands without a subscriber (Artemis) the next owner cannot find out by a probe."""
    settings = parking_settings(stack, namespaces, confirm="broker")
    provision(settings)
    commands = [command(settings, "d", n) for n in range(60)]
    says(settings, "d", b"offline", retain=True)
    with Devices(settings) as devices:
        with PushProcess(settings, tmp_path, kill_at="after_pull:20") as process:
            process.owns()
            write_commands(settings, commands)
            poll_for(lambda: stored_ids(settings) == 60, 30, "all are parked")
            says(settings, "d", b"", retain=True)  # nothing is retained that would wake it again
            says(settings, "d", b"online")
            process.died()
        with push_in_thread(settings):
            devices.await_all(commands)
            all_acknowledged(settings)
        devices.check(commands)


@pytest.mark.parametrize("point", [pytest.param("after_copy", marks=pytest.mark.thorough), "after_move"])
def test_h30_killed_while_commands_are_moved_the_next_owner_sends_each_once_and_in_order(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, point: str
) -> None:
    settings = parking_settings(stack, namespaces, offline={"relocate_after": "1s"})
    provision(settings)
    commands = [command(settings, f"d{n % 2}", n) for n in range(40)]
    for n in range(2):
        says(settings, f"d{n}", b"offline", retain=True)
    write_commands(settings, commands)
    moves = ("--set", "push.offline.relocate_after=1s")
    with PushProcess(settings, tmp_path, kill_at=f"{point}:1", more=moves) as process:
        process.died()
    copied = len(read_topic(settings, PARKED_TOPIC))
    assert copied > 0
    with push_in_thread(settings) as metrics, Devices(settings, lambda _device, _count: True) as devices:
        poll_for(lambda: metrics.gauges["parked"].labels("0")._value.get() == 40, 30, "the parked ones are known")
        poll_for(lambda: len(read_topic(settings, PARKED_TOPIC)) >= 40, 60, "a copy of each")
        for n in range(2):
            says(settings, f"d{n}", b"online", retain=True)
        devices.await_all(commands)
        poll_for(lambda: stored_ids(settings) == 0, 30, "no segment is left")
        assert devices.check(commands) == 0
    rows = receipts(settings)
    assert [row.state for one in commands for row in rows[one.command_id]] == ["answered"] * 40

"""Commands to groups on the real stack: one stored copy, each member's own order, joins, ends, and kills in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.contract import (
    C_CAUSE,
    C_ID,
    COMMANDS_TOPIC,
    DEAD_LETTERS_TOPIC,
    P_DEAD_REASON,
    PRESENCE_TOPIC,
)
from bridge.contract.commands import CommandPosition
from bridge.contract.groups import entry_of
from bridge.ingest.presence import PresenceWriter
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import PulsarClient
from bridge.settings import PulsarSettings, Settings
from bridge.settings.push import GroupRule, PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.support.groups import (
    entries,
    group_backlog,
    group_command,
    write_group_commands,
    write_members,
)
from tests.support.kill_points import GROUP_KILL_POINTS
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
    soon_ms,
    write_commands,
)
from tests.support.stack import mqtt_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack

NAMES = [f"d{n}" for n in range(6)]


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    made = push_settings(namespaces, mqtt_settings(stack), command_partitions=2)
    provision(made)
    return made


def test_every_member_gets_a_group_command_in_order_with_its_own_and_the_payload_is_stored_once(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(broker), command_partitions=2)
    provision(settings)
    first, second = group_command(settings, 1), group_command(settings, 2)
    own = [command(settings, name, n) for n in range(2) for name in NAMES]
    write_members(settings, "presses", NAMES)
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        write_commands(settings, own[: len(NAMES)])
        devices.await_all(own[: len(NAMES)])
        write_group_commands(settings, [first])
        devices.await_all(entries(first, NAMES))
        write_commands(settings, own[len(NAMES) :])
        devices.await_all(own)
        write_group_commands(settings, [second])
        devices.await_all(entries(second, NAMES))
        all_acknowledged(settings)
        assert metrics.counters["cache_misses"]._value.get() == 2, "each payload is read once for both partitions"
        assert metrics.counters["cache_hits"]._value.get() == 2 * len(NAMES) - 2
        for name in NAMES:
            mine = [one for one in own if one.device == name]
            expected = [mine[0], *entries(first, [name]), mine[1], *entries(second, [name])]
            assert devices.check(expected) == 0
            assert [m.payload for m in devices.got[name]] == [one.payload for one in expected]
    stored = [m for m in read_topic(settings, COMMANDS_TOPIC) if not m.data()]
    assert len(stored) == 2 * len(NAMES), "an entry has no payload"
    found = receipts(settings)
    (whole,) = found[first.command_id]
    assert (whole.state, whole.members, whole.group) == ("expanded", len(NAMES), "presses")
    for entry in entries(first, NAMES):
        (receipt,) = found[entry.command_id]
        assert receipt.state == "delivered"
        assert (receipt.group, receipt.group_command_id) == ("presses", first.command_id)
    assert group_backlog(settings) == 2, "what is open is held"


def test_h43_invented_devices_join_no_pattern_and_a_pattern_has_a_bound(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    rules = (
        GroupRule(name="presses", devices=("d*", "invented-*")),
        GroupRule(name="bounded", devices=("*",)),
    )
    settings = push_settings(
        namespaces, mqtt_settings(stack), command_partitions=2, groups={"declared": rules, "max_matches": 3}
    )
    provision(settings)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, PulsarClient(settings.pulsar) as client:
        writer = PresenceWriter(client, admin)
        writer.start()
        for number in range(50):
            writer.note("link", f"invented-{number}")
        poll_for(lambda: len(read_topic(settings, PRESENCE_TOPIC)) >= 50, 60, "records of presence")
        writer.stop()
    own = [command(settings, name, 0) for name in NAMES[:2]]
    one, other = group_command(settings, 1), group_command(settings, 2, "bounded")
    with Devices(settings) as devices, push_in_thread(settings):
        write_commands(settings, own)
        devices.await_all(own)
        all_acknowledged(settings)
        write_group_commands(settings, [one])
        devices.await_all(entries(one, NAMES[:2]))
        more = [command(settings, name, 1) for name in NAMES[2:]]
        write_commands(settings, more)
        devices.await_all(more)
        all_acknowledged(settings)
        write_group_commands(settings, [other])
        (whole,) = poll_for(lambda: receipts(settings).get(other.command_id), 60, "the receipt")
    (first,) = receipts(settings)[one.command_id]
    assert first.members == 2, "those that had a command"
    assert whole.members == 3, "push.groups.max_matches"


@pytest.mark.long
def test_a_late_member_gets_what_has_not_expired_and_one_that_left_gets_no_more(settings: Settings) -> None:
    commands = [group_command(settings, n) for n in range(4)]
    write_members(settings, "presses", NAMES[:3])
    with Devices(settings) as devices, push_in_thread(settings) as metrics:
        write_group_commands(settings, [commands[0]])
        devices.await_all(entries(commands[0], NAMES[:3]))
        soon = group_command(settings, 9, expires_at_ms=soon_ms())
        write_group_commands(settings, [soon, commands[1]])
        devices.await_all(entries(commands[1], NAMES[:3]))
        poll_for(
            lambda: time.time() * 1000 > soon.expires_at_ms and metrics.gauges["group_open"]._value.get() == 2,
            30,
            "one has expired",
        )
        write_members(settings, "presses", NAMES[3:5])
        devices.await_all(entries(commands[1], NAMES[3:5]))
        write_members(settings, "presses", NAMES[:1], member=False)
        write_group_commands(settings, [commands[2]])
        devices.await_all(entries(commands[2], NAMES[1:5]))
        write_members(settings, "presses", NAMES[:1])  # and back: what was written meanwhile, once
        write_group_commands(settings, [commands[3]])
        devices.await_all(entries(commands[3], NAMES[:5]))
        all_acknowledged(settings)
        for name in NAMES[:3]:
            wanted = [commands[0], soon, *commands[1:]]
            assert devices.check([e for one in wanted for e in entries(one, [name])]) == 0
        for name in NAMES[3:5]:
            assert devices.check([e for one in commands for e in entries(one, [name])]) == 0
        assert sum(len(got) for got in devices.got.values()) == 3 * 5 + 2 * 4


def test_unknown_empty_repeated_and_expired_group_commands_have_a_receipt_each(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    rules = (
        GroupRule(name="halls", devices=("hall-*", "d1")),
        GroupRule(name="empty", devices=("absent-*",)),
    )
    settings = push_settings(namespaces, mqtt_settings(stack), groups={"declared": rules})
    provision(settings)
    write_members(settings, "presses", ["d1", "hall-7"])
    unknown, empty = group_command(settings, 1, "unlisted"), group_command(settings, 1, "empty")
    late = group_command(settings, 1, expires_at_ms=1000)
    both = group_command(settings, 2)
    ruled = group_command(settings, 3, "halls")
    with Devices(settings) as devices, push_in_thread(settings):
        write_group_commands(settings, [unknown, empty, late, both, both, ruled])
        devices.await_all(entries(ruled, ["d1", "hall-7"]))
        write_commands(settings, [command(settings, "hall-8", 1)])  # by which it is known
        late_one = group_command(settings, 4, "halls")
        write_group_commands(settings, [late_one])
        devices.await_all(entries(late_one, ["d1", "hall-7"]))
        all_acknowledged(settings)
        for name in ("d1", "hall-7"):
            expected = [e for one in (both, ruled, late_one) for e in entries(one, [name])]
            assert devices.check(expected) == 0
            assert len(devices.got[name]) == len(expected), "in two groups, and each command once"
    states = {name: [r.state for r in rows] for name, rows in receipts(settings).items()}
    assert states["unlisted-1"] == ["rejected"]
    assert states["empty-1"] == ["expanded"]
    assert states["presses-1"] == ["expired"]
    assert states["presses-2"] == ["expanded", "duplicate"]
    (letter,) = read_topic(settings, DEAD_LETTERS_TOPIC)
    assert letter.data() == unknown.payload
    assert "unlisted" in letter.properties()[P_DEAD_REASON]


@pytest.mark.chaos
@pytest.mark.parametrize("point", GROUP_KILL_POINTS)
def test_h23_a_killed_expander_loses_no_member_and_writes_no_second_command(
    settings: Settings, tmp_path: Path, point: str
) -> None:
    """Two chunks of members; killed at the second passage, so between them, or before the command is done."""
    names = [f"d{n:04}" for n in range(1200)]
    first = group_command(settings, 1)
    write_members(settings, "presses", names)
    with Devices(settings) as devices:
        passages = {"group_after_store": 4, "group_after_receipt": 1}.get(point, 2)  # joins are stored first
        write_group_commands(settings, [first])
        with PushProcess(settings, tmp_path, kill_at=f"{point}:{passages}") as process:
            process.died()
        with push_in_thread(settings) as metrics:
            done = metrics.counters["group_commands"].labels("expanded")
            poll_for(lambda: done._value.get() == 1, 60, "the group command is done")
            devices.await_all(entries(first, names))
            all_acknowledged(settings)
        # What was in flight when push died goes again, marked; what the expander wrote again does not.
        devices.check(entries(first, names))
    found = receipts(settings)
    assert {r.members for r in found[first.command_id] if r.state == "expanded"} == {len(names)}
    again = sum(r.state == "duplicate" for rows in found.values() for r in rows)
    assert again <= 1000, "at most a chunk is written again"
    if point == "group_after_entries":
        assert again, "what was written and not noted came again, and was dropped"


@pytest.mark.chaos
def test_h23_a_frozen_expander_that_goes_on_writes_nothing_over_its_successor(
    settings: Settings, tmp_path: Path
) -> None:
    """Frozen when a chunk of entries is written and not noted; another does the rest, and leaves; then it goes on."""
    names = [f"d{n:04}" for n in range(1200)]
    first, second = group_command(settings, 1), group_command(settings, 2)
    namespace = f"/namespaces/{settings.pulsar.tenant}/{settings.pulsar.system_namespace}"
    write_members(settings, "presses", names)
    write_group_commands(settings, [first])
    with (
        Devices(settings) as devices,
        PushProcess(settings, tmp_path, freeze_at="group_after_entries:1") as frozen,
        PulsarAdmin(settings.pulsar, timeout_s=30) as admin,
    ):
        frozen.frozen()
        # As when its keep-alive has run out, only sooner; not while the other provisions: Pulsar's admin may hang then.
        admin.request("PUT", f"{namespace}/unload")
        with push_in_thread(settings) as metrics:
            done = metrics.counters["group_commands"].labels("expanded")
            poll_for(lambda: done._value.get() == 1, 60, "the group command is done")
            devices.await_all(entries(first, names))
            all_acknowledged(settings)
        frozen.goes_on()
        # Pulsar answers that another owner wrote, or does not answer at all: then the wait ends after a minute.
        poll_for(lambda: frozen.log.count("groups are ours") == 2, 120, "the frozen one starts again")
        assert "groups went to another process" in frozen.log or "no answer to" in frozen.log
        write_group_commands(settings, [second])
        devices.await_all(entries(second, names))
        all_acknowledged(settings)
        # What was in flight when it froze went again, marked.
        devices.check([e for one in (first, second) for e in entries(one, names)])
    found = receipts(settings)
    assert [r.state for r in found[first.command_id]] == ["expanded"]
    assert [r.state for r in found[second.command_id]] == ["expanded"]


def test_members_that_are_away_get_it_in_order_when_they_are_back(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    mqtt = mqtt_settings(stack)
    rule = PresenceRule(filter=f"{mqtt.client_id}-push/+device/status")
    settings = push_settings(namespaces, mqtt, presence={"rules": (rule,)})
    provision(settings)
    away = NAMES[:3]
    first, second = group_command(settings, 1), group_command(settings, 2)
    between = [command(settings, name, 1) for name in NAMES]
    write_members(settings, "presses", NAMES)
    for name in away:
        says(settings, name, b"offline", retain=True)
    with Devices(settings) as devices:
        with push_in_thread(settings) as metrics:
            write_group_commands(settings, [first])
            devices.await_all(entries(first, NAMES[3:]))
            write_commands(settings, between)
            devices.await_all(between[3:])
            write_group_commands(settings, [second])
            devices.await_all(entries(second, NAMES[3:]))
            poll_for(lambda: metrics.gauges["parked"].labels("0")._value.get() == 9, 30, "three are parked for each")
            all_acknowledged(settings)
            assert not any(devices.got[name] for name in away)
        with push_in_thread(settings) as metrics:  # another process, which reads the payloads again
            poll_for(lambda: metrics.gauges["owned"].labels("0")._value.get() == 1, 30, "the partition is owned")
            for name in away:
                says(settings, name, b"online", retain=True)
            devices.await_all(entries(second, away))
            assert metrics.counters["cache_misses"]._value.get() == 2
            assert metrics.counters["cache_hits"]._value.get() == 4
        for n, name in enumerate(NAMES):
            expected = [*entries(first, [name]), between[n], *entries(second, [name])]
            assert devices.check(expected) == 0
            assert [m.payload for m in devices.got[name]] == [one.payload for one in expected]


def test_a_payload_that_pulsar_has_no_more_is_refused_with_the_reason(settings: Settings) -> None:
    gone, there = group_command(settings, 1), group_command(settings, 2)
    nowhere = CommandPosition(0, 0, -1)
    write_members(settings, "presses", ["d1"])
    write_group_commands(settings, [there])
    with Devices(settings) as devices, push_in_thread(settings):
        devices.await_all(entries(there, ["d1"]))
        lost = entry_of(gone, "d1", nowhere, 5, settings.push.groups.topic)
        last = command(settings, "d1", 3)
        write_commands(settings, [lost, last])
        devices.await_all([last])
        all_acknowledged(settings)
        assert len(devices.got["d1"]) == 2
    (receipt,) = receipts(settings)[lost.command_id]
    assert (receipt.state, receipt.group_command_id) == ("rejected", gone.command_id)
    assert "not in Pulsar any more" in receipt.reason


def test_a_group_command_of_an_endless_cause_is_given_up_and_the_next_one_is_given_out(
    settings: Settings,
) -> None:
    """It was taken by earlier releases, and no other came after it."""
    endless, following = group_command(settings, 1), group_command(settings, 2)
    write_members(settings, "presses", ["d1"])
    write_group_commands(settings, [endless], {C_CAUSE: "\1" * 1_000_000})
    write_group_commands(settings, [following])
    with Devices(settings) as devices, push_in_thread(settings):
        devices.await_all(entries(following, ["d1"]))
        all_acknowledged(settings)
    found = receipts(settings)
    assert [r.state for r in found[endless.command_id]] == ["rejected"]
    assert [r.state for r in found[following.command_id]] == ["expanded"]
    (letter,) = read_topic(settings, DEAD_LETTERS_TOPIC)
    assert letter.properties()[P_DEAD_REASON].startswith("cause: has 1000000 bytes")


def test_group_commands_keep_their_order_and_interleave_with_own_ones_as_they_arrive(
    settings: Settings,
) -> None:
    """Both are written without a pause, so the expander lags behind the own commands."""
    commands = [group_command(settings, number) for number in range(10)]
    own = [command(settings, name, number) for number in range(10) for name in NAMES]
    write_members(settings, "presses", NAMES)
    with Devices(settings) as devices, push_in_thread(settings):
        for number, one in enumerate(commands):
            write_group_commands(settings, [one])
            write_commands(settings, own[number * len(NAMES) :][: len(NAMES)])
        devices.await_all([*own, *(entry for one in commands for entry in entries(one, NAMES))])
        all_acknowledged(settings)
        arrived = [(m.partition_key(), m.properties()[C_ID]) for m in read_topic(settings, COMMANDS_TOPIC)]
        for name in NAMES:
            ids = devices.ids(name)
            assert ids == [command_id for device, command_id in arrived if device == name]
            theirs = [entry.command_id for one in commands for entry in entries(one, [name])]
            assert [one for one in ids if one in theirs] == theirs
            assert [one for one in ids if one not in theirs] == [o.command_id for o in own if o.device == name]

"""Devices that store their own offset: they ask at any broker, and push sends the commands after it."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bridge.contract import COMMANDS_TOPIC, RESUME_TOPIC, partition_name
from bridge.contract.partitioning import partition_of
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning_plan import PARKED_RETENTION, rest_path
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import running_ingest
from tests.support.kill_points import RESUME_KILL_POINTS
from tests.support.push import (
    PushProcess,
    all_acknowledged,
    command,
    provision,
    push_in_thread,
    receipts,
    write_commands,
)
from tests.support.resuming import OffsetDevice, resume_settings
from tests.support.waiting import poll_for

pytestmark = pytest.mark.stack


def requests_left(settings: Settings) -> int:
    """How many requests are unacknowledged."""
    topic = settings.pulsar.system_topic(RESUME_TOPIC)
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin:
        return sum(
            int(subscription["msgBacklog"])
            for number in range(admin.partition_count(topic))
            for subscription in admin.stats(partition_name(topic, number))["subscriptions"].values()
        )


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_h27_a_device_that_lost_its_state_goes_on_after_the_position_that_it_names(
    broker: LocalStack, namespaces: PulsarSettings, protocol: str
) -> None:
    where = "topic" if protocol == "3.1.1" else "properties"
    settings = resume_settings(broker, namespaces, position_in=where)
    provision(settings)
    commands = [command(settings, "d", n) for n in range(40)]
    others = [command(settings, "other", n) for n in range(40)]
    both = [one for pair in zip(commands, others, strict=True) for one in pair]
    with (
        running_ingest(settings),
        push_in_thread(settings) as metrics,
        OffsetDevice(settings, "d", protocol=protocol) as device,
        OffsetDevice(settings, "other", protocol=protocol) as other,
    ):
        write_commands(settings, both)
        device.awaits(commands)
        other.awaits(others)
        place = device.places["9"]
        device.ask(json.dumps({"from": place}))
        device.goes_on_with(commands[10:])
        assert device.answers == [{"resumed": True, "from": place, "commands": 30}]
        assert device.repeats == [False] * 40 + [True] * 30
        device.ask("earliest")
        poll_for(lambda: len(device.answers) == 2, 30, "the second answer")
        device.goes_on_with(commands)
        device.ask(device.places["39"])
        poll_for(lambda: len(device.answers) == 3, 30, "the third answer")
        assert device.answers[2]["commands"] == 0
        poll_for(lambda: requests_left(settings) == 0, 30, "no request is left")
        assert len(other.got) == 40
        assert metrics.counters["resume_requests"]._value.get() == 3
        all_acknowledged(settings)
    rows = receipts(settings)
    assert {row.state for one in commands for row in rows[one.command_id]} == {"delivered"}
    assert [row.reason.partition(":")[0] for row in rows["d-39"]] == ["", "sent again", "sent again"]


def test_h27_live_commands_never_overtake_what_is_sent_again(broker: LocalStack, namespaces: PulsarSettings) -> None:
    settings = resume_settings(broker, namespaces, confirm="broker", offline={"replay_rate": 300})
    provision(settings)
    commands = [command(settings, "d", n) for n in range(600)]
    with running_ingest(settings), push_in_thread(settings), OffsetDevice(settings, "d") as device:
        write_commands(settings, commands[:300])
        device.awaits(commands[:300])
        device.ask(device.places["49"])
        for start in range(300, 600, 50):  # while it is found, stored and sent again
            write_commands(settings, commands[start : start + 50])
        device.awaits(commands)
        answered = device.got.index("answer")
        # Live commands that were pushed before push read the request come before the answer, and again after it.
        assert list(dict.fromkeys(device.got[:answered])) == [str(n) for n in range(len(set(device.got[:answered])))]
        device.goes_on_with(commands[50:])


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize("point", [*RESUME_KILL_POINTS, "after_puback:7", "after_segment"])
def test_h27_killed_while_a_device_resumes_the_next_owner_sends_the_same(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, point: str
) -> None:
    settings = resume_settings(stack, namespaces)
    provision(settings)
    commands = [command(settings, "d", n) for n in range(40)]
    with running_ingest(settings), OffsetDevice(settings, "d") as device:
        write_commands(settings, commands[:30])
        with push_in_thread(settings):
            device.awaits(commands[:30])
            all_acknowledged(settings)
        with PushProcess(settings, tmp_path, kill_at=point) as process:
            process.owns()
            device.ask(device.places["9"])
            process.died()
        write_commands(settings, commands[30:])
        with push_in_thread(settings):
            device.awaits(commands)
            poll_for(lambda: requests_left(settings) == 0, 30, "no request is left")
            poll_for(lambda: device.after_answer[-1:] == ["39"], 30, "the end of the last answer's sequence")
            device.goes_on_with(commands[10:])
            all_acknowledged(settings)
        # Each repetition is marked, whichever of the two owners sent it.
        sent = [text for text in device.got if text != "answer"]
        first = {sent.index(text) for text in set(sent)}
        assert all(repeat for n, repeat in enumerate(device.repeats) if n not in first)


@pytest.mark.long
def test_h27_a_standby_goes_on_where_the_killed_owner_was_in_the_middle_of_a_resume(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    settings = resume_settings(stack, namespaces, offline={"replay_rate": 100})
    provision(settings)
    commands = [command(settings, "d", n) for n in range(200)]
    with (
        running_ingest(settings),
        OffsetDevice(settings, "d") as device,
        PushProcess(settings, tmp_path, "first").owns() as first,
        push_in_thread(settings) as standby,
    ):
        write_commands(settings, commands)
        device.awaits(commands)
        device.ask("earliest")
        poll_for(lambda: len(device.after_answer) > 20, 30, "the resume is under way")
        first.kill()
        poll_for(lambda: standby.counters["takeovers"]._value.get() == 1, 60, "the standby owns the partition")
        poll_for(lambda: device.after_answer[-1:] == ["199"], 60, "all that was asked for")
        device.goes_on_with(commands)
        assert len(device.answers) == 1 or device.answers[0] == device.answers[1]


def test_h28_each_request_goes_to_the_owner_of_its_device_s_partition(
    broker: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = resume_settings(broker, namespaces, command_partitions=3)
    provision(settings)
    names = [f"d{n}" for n in range(4)]
    commands = {name: [command(settings, name, n) for n in range(10)] for name in names}
    places = {name: partition_of(name, 3) for name in names}
    assert len(set(places.values())) > 1
    with (
        running_ingest(settings),
        push_in_thread(settings),
        OffsetDevice(settings, names[0]) as first,
    ):
        write_commands(settings, [one for name in names for one in commands[name]])
        first.awaits(commands[names[0]])
        all_acknowledged(settings)  # the others were not there: theirs are lost, or wait in Pulsar
        for name in names:
            with nullcontext(first) if name == names[0] else OffsetDevice(settings, name) as device:
                device.ask('{"from": "earliest"}')
                device.goes_on_with(commands[name])
                wrong = f"0.{(places[name] + 1) % 3}.1.1.-1.{'t' * 16}"
                device.ask(wrong)
                poll_for(lambda d=device: len(d.answers) == 2, 30, "the second answer")  # type: ignore[misc]
                assert "partition" in device.answers[1]["error"]
                assert device.answers[1]["from"] == wrong
        poll_for(lambda: requests_left(settings) == 0, 30, "no request is left")


def test_h27_what_is_no_position_gets_an_error_that_says_why(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = resume_settings(stack, namespaces, resume={"interval": "0s"})
    provision(settings)
    commands = [command(settings, "d", n) for n in range(3)]
    with running_ingest(settings), push_in_thread(settings) as metrics, OffsetDevice(settings, "d") as device:
        write_commands(settings, commands)
        device.awaits(commands)
        tag = device.places["0"].rpartition(".")[2]
        bad = ["yesterday", f"7.0.1.1.-1.{tag}", f"0.0.999999999.0.-1.{tag}", "{}", "x" * 3000]
        for number, request in enumerate(bad, 1):
            device.ask(request)
            poll_for(lambda n=number: len(device.answers) == n, 30, "an answer")
        whys = ("not a position", "generation", "did not come", "from", "1024 bytes")
        assert all(why in answer["error"] for why, answer in zip(whys, device.answers, strict=True))
        assert metrics.counters["resume_answers"].labels("error")._value.get() == len(bad)
        assert device.got.count("answer") == len(device.got) - 3  # nothing was sent again


def test_h27_a_flood_of_requests_is_served_by_the_latest(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = resume_settings(stack, namespaces, resume={"interval": "1.5s"})
    provision(settings)
    commands = [command(settings, "d", n) for n in range(20)]
    with running_ingest(settings), push_in_thread(settings) as metrics, OffsetDevice(settings, "d") as device:
        write_commands(settings, commands)
        device.awaits(commands)
        for n in range(100):
            device.ask(device.places[str(n % 20)])
        device.ask(device.places["4"])
        poll_for(
            lambda: device.answers[-1:] and device.answers[-1]["from"] == device.places["4"], 30, "the last answer"
        )
        device.goes_on_with(commands[5:])
        poll_for(lambda: requests_left(settings) == 0, 30, "no request is left")
        assert metrics.counters["resume_answers"].labels("superseded")._value.get() >= 90
        assert len(device.answers) <= 8


def test_h27_for_a_trimmed_position_the_device_gets_a_report_and_the_remaining_commands(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = resume_settings(
        stack, namespaces, offline={"resend_confirmed": "0s"}
    )  # else the retention subscription waits for that
    provision(settings)
    commands = [command(settings, "d", n) for n in range(30)]
    partition = partition_name(settings.pulsar.system_topic(COMMANDS_TOPIC), 0)
    path = f"/{rest_path(partition)}"
    namespace = f"/namespaces/{settings.pulsar.tenant}/{settings.pulsar.system_namespace}"
    with PulsarAdmin(settings.pulsar, timeout_s=30) as admin, OffsetDevice(settings, "d") as device:
        with push_in_thread(settings):
            write_commands(settings, commands[:20])
            device.awaits(commands[:20])
            all_acknowledged(settings)
        admin.request("PUT", f"{path}/unload")  # a new ledger begins
        with running_ingest(settings), push_in_thread(settings):
            write_commands(settings, commands[20:29])
            write_commands(
                settings, commands[29:]
            )  # an entry of its own: the retention subscription is before the last one
            device.awaits(commands)
            all_acknowledged(settings)

            def held_at() -> str:
                return str(admin.internal_stats(partition)["cursors"][PARKED_RETENTION]["markDeletePosition"])

            ledgers = [int(one["ledgerId"]) for one in admin.internal_stats(partition)["ledgers"]]
            poll_for(lambda: int(held_at().split(":")[0]) == ledgers[-1], 30, "the hold has moved on")
            admin.request(
                "POST",
                f"{namespace}/retention",
                body={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
            )

            def trimmed() -> bool:
                admin.request("POST", f"{path}/trim")
                return len(admin.internal_stats(partition)["ledgers"]) == 1

            poll_for(trimmed, 60, "the first ledger is trimmed", every=0.5)
            place = device.places["9"]
            device.ask(place)
            device.goes_on_with(commands[20:])
            assert device.answers == [{"trimmed": True, "first": device.places["20"], "from": place, "commands": 10}]


def test_the_readme_s_device_keeps_its_position_in_a_file_and_goes_on_after_it(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resume_settings(stack, namespaces, position_in="topic")
    provision(settings)
    readme = (Path(__file__).resolve().parents[3] / "docs/devices/offsets.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "press-3.offset" in b)
    for usual, ours in (
        ("port=1883", f"port={stack.mqtt_port}"),
        ("client_id=DEVICE", f'client_id="{settings.mqtt.client_id}-press"'),
        ("devices/{DEVICE}", f"{settings.push.client_id}/{{DEVICE}}"),
        ("pulsebridge/", f"{settings.mqtt.client_id}/"),
    ):
        assert usual in block
        block = block.replace(usual, ours)
    monkeypatch.chdir(tmp_path)
    commands = [command(settings, "press-3", n) for n in range(20)]
    with running_ingest(settings), push_in_thread(settings) as metrics:
        for end in (10, 20):
            here: dict[str, Any] = {}
            exec(block, here)
            try:
                # Commands pushed before it has subscribed come with the answer, after the live ones.
                asked = end // 10
                poll_for(lambda n=asked: metrics.counters["resume_requests"]._value.get() == n, 30, "its question")
                write_commands(settings, commands[end - 10 : end])
                wanted = [b"%d" % n for n in range(end - 10, end)]
                poll_for(lambda h=here, w=wanted: set(w) <= set(h["received"]), 60, "its commands")
                assert list(dict.fromkeys(here["received"])) == wanted
            finally:
                here["device"].disconnect()
                here["device"].loop_stop()

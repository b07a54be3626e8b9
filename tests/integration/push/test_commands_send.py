"""``pulsebridge commands send``: what is stored and reported, in order, once for each device, with the receipts of push."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.contract import C_ID, COMMANDS_TOPIC, GROUP_COMMANDS_TOPIC
from bridge.contract.commands import Command, CommandPosition
from bridge.contract.groups import entry_id
from bridge.contract.partitioning import partition_of
from bridge.errors import ConfigError, TerminalError
from bridge.pulsar.messages import position_of
from bridge.settings import PulsarSettings, Settings
from pulsebridge.local.stack import LocalStack
from pulsebridge.moving import move
from tests.support.groups import write_members
from tests.support.push import (
    Devices,
    await_owned,
    command,
    provision,
    push_arguments,
    push_in_thread,
    push_settings,
    read_topic,
    receipts,
)
from tests.support.push_commands import asked, run
from tests.support.reading_back import read_back
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import patient

pytestmark = pytest.mark.stack


@pytest.fixture
def settings(stack: LocalStack, namespaces: PulsarSettings) -> Settings:
    made = push_settings(namespaces, mqtt_settings(stack), command_partitions=4)
    provision(made)
    return made


def send(settings: Settings, *arguments: str, code: int = 0) -> list[str]:
    done = run(settings, "commands", "send", *arguments)
    assert done.exit_code == code, (done.output, done.exception)
    # Push logs to the same stdout, because it runs in a thread of this process.
    return [line for line in done.stdout.splitlines() if not re.match(r"\d\d:\d\d:\d\d \[", line)]


def to(settings: Settings, device: str = "{device}") -> tuple[str, str]:
    return "--topic", f"{settings.push.client_id}/{device}/commands"


def written(folder: Path, *lines: Mapping[str, Any]) -> str:
    path = folder / "commands.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return str(path)


@contextmanager
def sending(settings: Settings, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``commands send`` as a process with open pipes."""
    process = subprocess.Popen(
        [
            sys.executable, "-c", "from pulsebridge.cli.app import main; main()",
            "commands", "send", *arguments, *push_arguments(settings),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell may have it ignored
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=patient(60))
    return process.returncode, out, err


def test_one_command_is_stored_delivered_and_sent_again_without_harm(settings: Settings, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"\0\xffx")
    asked = ("--device", "d", *to(settings, "d"), "--payload", f"@{payload}", "--id", "reset-1", "--wait")
    with Devices(settings) as devices, push_in_thread(settings):
        stored, received = send(settings, *asked)
        assert received == "reset-1 for d: delivered"
        (receipt,) = receipts(settings)["reset-1"]
        assert stored == f"reset-1 for d: stored at {receipt.position}"
        assert receipt.emitted_at_us > 0
        again, dropped = send(settings, *asked, "--json")
        found = json.loads(dropped)
        assert (found["state"], found["command_id"], found["device"]) == ("duplicate", "reset-1", "d")
        assert json.loads(again) == {
            "command_id": "reset-1", "device": "d", "group": "", "mqtt_topic": to(settings, "d")[1],
            "state": "stored", "position": found["position"],
        }  # fmt: skip
        assert [m.payload for m in devices.got["d"]] == [b"\0\xffx"]


def test_a_position_has_one_text_everywhere_also_in_a_later_generation(settings: Settings) -> None:
    later = settings.pulsar.model_copy(update={"command_generation": 3, "command_partitions": 2})
    move(settings.pulsar, later)
    settings = settings.model_copy(update={"pulsar": later})
    with Devices(settings), push_in_thread(settings):
        stored, _ = send(settings, "--device", "d", *to(settings, "d"), "--payload", "x", "--id", "first", "--wait")
        (receipt,) = receipts(settings)["first"]
        assert receipt.position.startswith("3.")
        assert stored == f"first for d: stored at {receipt.position}"
        write_members(settings, "presses", ["d"])
        stored, *_ = send(settings, "--group", "presses", *to(settings), "--payload", "y", "--id", "all", "--wait")
        of_group = next(one for one in receipts(settings)["all"] if not one.device).position
        assert of_group.startswith("3.")
        assert stored == f"all for group presses: stored at {of_group}"
    shown = asked(settings, "devices", "show", "d")
    texts = {one["command_id"]: one["position"] for one in shown["receipts"]}
    assert (texts["first"], texts[entry_id("all", "d")]) == (receipt.position, shown["cursor"])
    assert asked(settings, "commands", "show", "first")["copies"][0]["positions"] == [receipt.position]


def test_the_lines_of_a_file_arrive_in_order_and_a_second_run_with_the_id_gives_no_repeat(
    settings: Settings, tmp_path: Path
) -> None:
    names = [f"d{n % 20}" for n in range(1500)]
    path = written(tmp_path, *({"device": name, "payload": str(n)} for n, name in enumerate(names)))
    expected = [Command(f"night-{n}", name, "t", b"") for n, name in enumerate(names, 1)]
    asked = ("--lines", path, *to(settings), "--id", "night", "--json")
    with Devices(settings) as devices, push_in_thread(settings):
        shown = [json.loads(line) for line in send(settings, *asked, "--wait")]
        stored, ends = shown[:1500], shown[1500:]
        assert [(one["command_id"], one["device"], one["state"]) for one in stored] == [
            (one.command_id, one.device, "stored") for one in expected
        ]
        assert {(one["command_id"], one["state"]) for one in ends} == {
            (one.command_id, "delivered") for one in expected
        }
        devices.await_all(expected)
        assert devices.check(expected) == 0
        assert [m.payload for m in devices.got["d7"]] == [b"%d" % n for n in range(7, 1500, 20)]
        again = [json.loads(line)["state"] for line in send(settings, *asked, "--wait")]
        assert Counter(again) == {"stored": 1500, "duplicate": 1500}
        assert devices.check(expected) == 0
    there = [
        (position_of(message.message_id()).encode(number), message.properties()[C_ID], number)
        for number, message in read_back(settings.pulsar, settings.pulsar.system_topic(COMMANDS_TOPIC))
    ]
    assert {(one["position"], one["command_id"]) for one in stored} <= {(where, name) for where, name, _ in there}
    assert {(name, number) for _, name, number in there} == {
        (one.command_id, partition_of(one.device, 4)) for one in expected
    }


def test_a_command_to_a_group_ends_with_its_members(settings: Settings) -> None:
    write_members(settings, "presses", ["a", "b"])
    asked = ("--group", "presses", *to(settings), "--payload", "x", "--id", "all-1", "--expires-in", "1h")
    with Devices(settings) as devices, push_in_thread(settings):
        stored, *ends = send(settings, *asked, "--wait")
        assert sorted(ends) == [
            "all-1 for a: delivered", "all-1 for b: delivered", "all-1 for group presses: expanded to 2 devices",
        ]  # fmt: skip
        assert devices.ids("a") == [entry_id("all-1", "a")]
        (receipt,) = (one for one in receipts(settings)["all-1"] if not one.device)
        assert stored == f"all-1 for group presses: stored at {receipt.position}"
        _, end = send(settings, *asked[:-4], "--id", "lost", "--group", "nowhere", "--wait", code=1)
        assert end.startswith("lost for group nowhere: rejected, no group 'nowhere'")
    assert len(read_topic(settings, GROUP_COMMANDS_TOPIC)) == 2


def test_a_failed_command_and_one_without_a_receipt_give_exit_code_1(settings: Settings) -> None:
    one = ("--device", "d", *to(settings, "d"), "--payload", "x")
    done = run(settings, "commands", "send", *one, "--wait", "--timeout", "200ms")
    assert done.exit_code == 1
    assert "1 without a receipt from push after 200ms: see `pulsebridge commands show ID`" in done.stderr
    with push_in_thread(settings) as metrics:
        await_owned(settings, metrics)
        stored, end = send(settings, *one, "--id", "late", "--expires-in", "1ms", "--wait", code=1)
        assert stored.startswith("late for d: stored at ")
        assert end == "late for d: expired"
        made = send(settings, *one)
        assert len(made) == 1
        assert made[0].startswith("send-"), "an id of its own"


def test_of_a_file_with_an_invalid_line_nothing_is_sent_and_of_a_pipe_what_is_before_it(
    settings: Settings, tmp_path: Path
) -> None:
    good = {"device": "d", "payload": "x"}
    path = written(tmp_path, good, good, {**good, "qos": 9}, good)
    done = run(settings, "commands", "send", "--lines", path, *to(settings))
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"line 3 of {path}: qos: is 9, wanted 0, 1 or 2"
    assert (done.stdout, read_topic(settings, COMMANDS_TOPIC)) == ("", [])
    with sending(settings, "--lines", "-", "--id", "run", *to(settings)) as process:
        assert process.stdin is not None
        process.stdin.write(Path(path).read_text())
        code, out, err = ended(process)
    assert code == 2
    assert [line.split(":")[0] for line in out.splitlines()] == ["run-1 for d", "run-2 for d"]
    assert err == (
        "pulsebridge: line 3 of stdin: qos: is 9, wanted 0, 1 or 2; 2 stored — send the same with --id run "
        "again: a device gets one command for an id\n"
    )
    assert [m.properties()[C_ID] for m in read_topic(settings, COMMANDS_TOPIC)] == ["run-1", "run-2"]


def test_lines_of_a_pipe_are_reported_while_it_is_open_and_an_interruption_says_how_many(settings: Settings) -> None:
    with sending(settings, "--lines", "-", "--id", "run", *to(settings)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(1, 4):
            process.stdin.write(json.dumps({"device": f"d{n}", "payload": "x"}) + "\n")
            assert process.stdout.readline().startswith(f"run-{n} for d{n}: stored at ")
        process.send_signal(signal.SIGINT)
        code, _, err = ended(process)
    assert code == 130
    assert err == ("interrupted: 3 stored; send the same with --id run again: a device gets one command for an id\n")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_command_is_reported_before_pulsar_has_stored_it(private_stack: LocalStack) -> None:
    settings = push_settings(provisioned(private_stack), mqtt_settings(private_stack))
    provision(settings)
    line = json.dumps({"device": "d", "payload": "x"}) + "\n"
    with sending(settings, "--lines", "-", "--id", "run", *to(settings)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        assert process.stdout.readline().startswith("run-1 for d: stored at ")
        private_stack.kill("pulsar")
        process.stdin.write(line * 2)
        code, out, err = ended(process)
    assert (code, out) == (1, "")
    assert err == (
        "pulsebridge: writing commands: no answer to 2 messages for 60 s; 1 stored — see whether Pulsar's brokers and bookies "
        "are up; then send the same with --id run again: a device gets one command for an id\n"
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_large_file_takes_no_more_memory_than_a_small_one(settings: Settings, tmp_path: Path) -> None:
    peaks = []
    for count in (2000, 300_000):
        path = tmp_path / str(count)
        with path.open("w") as file:
            for n in range(count):
                file.write(json.dumps({"device": f"d{n % 1000}", "payload": "x" * 300}) + "\n")
        with (tmp_path / "out").open("w") as out:
            process = subprocess.Popen(
                [
                    sys.executable, "-c", "from pulsebridge.cli.app import main; main()",
                    "commands", "send", "--lines", str(path), *to(settings), *push_arguments(settings),
                ],
                stdout=out,
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert len((tmp_path / "out").read_text().splitlines()) == count
        peaks.append(usage.ru_maxrss)
    assert peaks[1] - peaks[0] < 64 * 1024, peaks  # KiB; the file has 100 MB


def test_a_missing_topic_is_named(stack: LocalStack, namespaces: PulsarSettings) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack))
    one = ("--device", "d", "--topic", "t", "--payload", "x", "--id", "i")
    for more in ((), ("--wait",)):
        done = run(settings, "commands", "send", *one, *more)
        assert isinstance(done.exception, TerminalError)
        assert "does not exist" in str(done.exception)
        assert "`pulsebridge push` creates it at its start" in str(done.exception)


def test_positions_are_those_of_single_messages_as_well(settings: Settings) -> None:
    (line,) = send(settings, "--device", "d", *to(settings, "d"), "--payload", "x", "--json")
    ((number, message),) = read_back(settings.pulsar, settings.pulsar.system_topic(COMMANDS_TOPIC))
    position = json.loads(line)["position"]
    assert position == position_of(message.message_id()).encode(number)
    assert CommandPosition.decode(position)[1] == partition_of("d", 4) == number
    assert message.event_timestamp() > 0
    assert command(settings, "d", 1).mqtt_topic == message.properties()["command.mqtt_topic"]

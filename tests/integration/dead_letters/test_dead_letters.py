"""``pulsebridge dead-letters`` on a real Pulsar: dead letters are found, shown, and replayed to their target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bridge import contract
from bridge.contract.partitioning import partition_of
from bridge.dead_letters import HEAD_BYTES
from bridge.dead_letters.blocks import Block, load_blocks, store_block
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.cli import dead_letters as listing
from pulsebridge.cli import resend
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import Stored, dead_letters, stored
from tests.support.kill_points import REPLAY_KILL_POINTS
from tests.support.letters import write_dead
from tests.support.raw_pulsar import store_raw
from tests.support.waiting import patient

pytestmark = pytest.mark.stack


def arguments_of(settings: PulsarSettings, *arguments: str) -> list[str]:
    sets = {
        "pulsar.service_url": settings.service_url,
        "pulsar.admin_url": settings.admin_url,
        "pulsar.namespace": settings.namespace,
        "pulsar.system_namespace": settings.system_namespace,
    }
    group = [] if arguments[0] == "resend" else ["dead-letters"]
    return [*group, *arguments, *(p for n, v in sets.items() for p in ("--set", f"{n}={v}"))]


def run(settings: PulsarSettings, *arguments: str) -> Result:
    """Run the command in this process."""
    app = typer.Typer()
    listing.register(app)
    resend.register(app)
    return CliRunner().invoke(app, arguments_of(settings, *arguments))


def killed_run(settings: PulsarSettings, *arguments: str, kill_at: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", *arguments_of(settings, *arguments)],
        capture_output=True,
        text=True,
        timeout=patient(120),
        env=os.environ | {"PULSEBRIDGE_KILL_AT": kill_at},
    )


def asked(settings: PulsarSettings, *arguments: str) -> dict[str, Any]:
    done = run(settings, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_device(found: list[Stored], device: str) -> list[bytes]:
    return [m.payload for m in found if m.properties[contract.P_DEVICE] == device]


def test_list_and_show_tell_what_is_there_and_why(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    letters = [(f"w-{n % 3}", b"reading %d" % n) for n in range(30)]
    large = bytes(range(256)) * 4 * 7 * 1024  # in chunks
    write_dead(namespaces, [*letters, ("w-9", large)])
    write_dead(namespaces, [("w-8", b"y" * (HEAD_BYTES + 1000))], whole_bytes=1000, reason="too large", topic="")
    report = asked(namespaces, "list", "--limit", "100")
    assert (report["total"], report["replayed"], report["truncated"]) == (32, 0, 1)
    assert report["reasons"] == {"the topic is terminated": 31, "too large": 1}
    assert report["topics"][namespaces.readings_topic("fleet")] == 31
    assert asked(namespaces, "list", "--device", "w-1")["total"] == 10
    assert asked(namespaces, "list", "--reason", "LARGE")["total"] == 1
    assert asked(namespaces, "list", "--topic", "fleet/w-9/#")["total"] == 1
    assert asked(namespaces, "list", "--since", "1h")["total"] == 0
    assert "32 dead letters, 0 of them replayed, 1 with only the payload's head" in run(namespaces, "list").stdout

    ids = {row["device"]: row["id"] for row in report["letters"]}
    shown = run(namespaces, "show", ids["w-9"], "--bytes", "32", "--out", str(tmp_path / "payload"))
    assert "00000010  10 11 12" in shown.stdout
    assert f"{len(large) - 32} more bytes" in shown.stdout
    assert (tmp_path / "payload").read_bytes() == large
    assert "reading" in run(namespaces, "show", ids["w-1"]).stdout
    assert asked(namespaces, "show", ids["w-8"])["properties"][contract.P_DEAD_LENGTH] == str(HEAD_BYTES + 1000)
    missing = run(namespaces, "show", "0:99999999:0")
    assert "the dead letter 0:99999999:0 is not in" in str(missing.exception)


def test_foreign_messages_among_the_dead_letters_are_named_and_the_others_go_on(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    write_dead(namespaces, [("w-1", b"before")])
    dead = namespaces.system_topic(contract.DEAD_LETTERS_TOPIC)
    partition = contract.partition_name(dead, partition_of("w-1", namespaces.command_partitions))
    for key, properties in ((b"\xff", {}), (b"k", {b"p": b"\xfe\xff"}), (b"k", {b"\xff": b"v"})):
        store_raw(namespaces, partition, b"foreign", key=key, properties=properties)
    odd = {contract.P_DEAD_LENGTH: "much", contract.P_DEAD_AT: "9" * 30}
    store_raw(
        namespaces, partition, b"odd", key=b"o",
        properties={name.encode(): value.encode() for name, value in odd.items()},
    )  # fmt: skip
    write_dead(namespaces, [("w-1", b"behind")])
    report = asked(namespaces, "list")
    assert report["total"] == 6
    foreign = "it is not a valid dead letter of Pulsebridge: its key or one of its properties is not valid UTF-8"
    assert report["reasons"][foreign] == 3
    assert foreign in run(namespaces, "list").stdout
    one = next(row["id"] for row in report["letters"] if "UTF-8" in row["reason"])
    shown = asked(namespaces, "show", one, "--out", str(tmp_path / "payload"))
    assert "not a valid dead letter of Pulsebridge" in shown["why"]
    assert (tmp_path / "payload").read_bytes() == b"foreign"
    done = run(namespaces, "resend", "--all", "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["replayed"] == {namespaces.readings_topic("fleet"): 2}
    assert len(report["refused"]) == 4
    assert sum("not valid UTF-8" in one["why"] for one in report["refused"]) == 3
    assert [m.payload for m in stored(namespaces, "fleet")] == [b"before", b"behind"]


def test_a_replay_brings_back_payload_key_envelope_and_order_once(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    letters = [(f"w-{n % 3}", b"%d" % n) for n in range(250)]
    write_dead(namespaces, letters)
    planned = asked(namespaces, "resend", "--device", "w-1", "--dry-run")
    assert planned["replayed"] == {namespaces.readings_topic("fleet"): 83}
    with PulsarAdmin(namespaces) as admin:
        assert admin.partition_count(namespaces.readings_topic("fleet")) == 0  # a dry run writes nothing
    one = asked(namespaces, "list", "--device", "w-2", "--limit", "1")["letters"][0]["id"]
    assert asked(namespaces, "resend", "--letter", one)["replayed"] == {namespaces.readings_topic("fleet"): 1}
    assert asked(namespaces, "resend", "--device", "w-1")["already"] == 0
    rest = asked(namespaces, "resend", "--all")
    assert (sum(rest["replayed"].values()), rest["already"]) == (166, 84)
    again = asked(namespaces, "resend", "--topic", "fleet")
    assert (again["replayed"], again["already"]) == ({}, 250)

    found = stored(namespaces, "fleet")
    assert len(found) == 250
    assert of_device(found, "w-1") == [p for d, p in letters if d == "w-1"]
    assert of_device(found, "w-0") == [p for d, p in letters if d == "w-0"]
    sample = next(m for m in found if m.payload == b"4")
    assert sample.key == "key of w-1"
    assert sample.partition == partition_of("key of w-1", namespaces.partitions)
    assert sample.properties[contract.P_TOPIC] == "fleet/w-1/glucose"
    assert sample.properties[contract.P_REPLAYED].count(":") == 2
    listed = asked(namespaces, "list")
    assert (listed["total"], listed["replayed"]) == (250, 250)
    assert asked(namespaces, "list", "--waiting")["total"] == 0


def test_what_cannot_be_replayed_is_refused_by_name_and_remap_uses_the_present_rules(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    write_dead(namespaces, [("w-1", b"y" * (HEAD_BYTES + 1000))], whole_bytes=1000)
    write_dead(namespaces, [("w-1", b"no rule")], topic="")
    refused = run(namespaces, "resend", "--all")
    assert refused.exit_code == 1
    assert "1000 bytes of its payload were not kept" in refused.stdout
    assert "--remap" in refused.stdout
    assert "no dead letter is selected" in str(run(namespaces, "resend").exception)
    remapped = run(namespaces, "resend", "--all", "--remap")
    assert remapped.exit_code == 1  # the head alone stays where it is
    (message,) = stored(namespaces, "fleet")
    assert (message.payload, message.key) == (b"no rule", "fleet/w-1/glucose")
    assert message.properties[contract.P_RULE] == "default"


@pytest.mark.thorough
@pytest.mark.chaos
@pytest.mark.parametrize("point", REPLAY_KILL_POINTS)
def test_a_replay_killed_at_each_step_loses_nothing_and_repeats_are_marked(
    stack: LocalStack, namespaces: PulsarSettings, point: str
) -> None:
    letters = [(f"w-{n % 2}", b"%d" % n) for n in range(500)]
    write_dead(namespaces, letters)
    for passage in (1, 2):
        killed = killed_run(namespaces, "resend", "--all", kill_at=f"{point}:{passage}")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert asked(namespaces, "resend", "--all")["refused"] == []
    found = stored(namespaces, "fleet")
    for device in ("w-0", "w-1"):
        assert list(dict.fromkeys(of_device(found, device))) == [p for d, p in letters if d == device]
    repeats = len(found) - 500
    assert repeats <= 200 if point != "replay_after_mark" else repeats == 0
    copies: dict[bytes, set[str]] = {}
    for message in found:
        copies.setdefault(message.payload, set()).add(message.properties[contract.P_REPLAYED])
    assert all(len(marks) == 1 for marks in copies.values())  # the same mark shows that they are one message
    assert len(dead_letters(namespaces)) > 500  # and the notes
    assert asked(namespaces, "resend", "--all")["replayed"] == {}


def test_a_second_replay_is_refused_while_one_runs_and_not_once_it_was_killed(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    """Two processes; the first waits for a worker that has blocked the topic and does not answer."""
    write_dead(namespaces, [("w-1", b"%d" % n) for n in range(50)])
    topic = namespaces.readings_topic("fleet")
    replay = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()"]
    replay += arguments_of(namespaces, "resend", "--all")
    with PulsarAdmin(namespaces, timeout_s=30) as admin:
        admin.create_partitioned(topic, 1)
        block = Block(0, "a-device", "blocked", 1, "a test")
        store_block(admin, topic, block)
        first = subprocess.Popen(replay, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert first.stderr is not None
            assert "waiting for the ingest workers" in first.stderr.readline()
            second = subprocess.run(replay, capture_output=True, text=True, timeout=patient(60), check=False)
            assert second.returncode == 1
            assert f"another replay of the dead letters is running: process {first.pid} on " in second.stderr
            assert "Traceback" not in second.stderr
            assert asked(namespaces, "resend", "--all", "--dry-run")["already"] == 50  # that needs no lock
        finally:
            first.kill()
            first.communicate()
        admin.remove_property(topic, load_blocks(admin, topic)[0].name)
    assert asked(namespaces, "resend", "--all")["already"] == 50
    assert len(stored(namespaces, "fleet")) == 50


def test_h38_list_and_show_print_no_control_character_of_a_device(
    stack: LocalStack, namespaces: PulsarSettings
) -> None:
    device = "w-\x1b[2J\u202e7\n0:0:0  forged"
    write_dead(namespaces, [(device, b"\x1b[31m\nred")], reason=f"not JSON: {device}")
    (letter,) = asked(namespaces, "list")["letters"]
    assert letter["device"] == device
    assert asked(namespaces, "show", letter["id"])["properties"][contract.P_DEVICE] == device
    for arguments in (["list"], ["list", "--json"], ["show", letter["id"]], ["show", letter["id"], "--json"]):
        done = run(namespaces, *arguments)
        assert done.exit_code == 0, done.output
        lines = done.output.split("\n")
        assert all(line.isprintable() for line in lines), lines
        assert not any(line.startswith("0:0:0") for line in lines)
    assert r"fleet/w-\x1b[2J\u202e7\n0:0:0  forged" in run(namespaces, "list").output
    refused = run(namespaces, "resend", "--all")
    assert all(line.isprintable() for line in refused.output.split("\n")), refused.output

"""Commands from programs that use nothing of this project: the examples of docs/guides/any-client.md, each run as it stands."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from bridge.contract import COMMANDS_TOPIC
from bridge.contract.commands import decode_command
from bridge.contract.partitioning import partition_of
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import PulsarSettings
from pulsebridge.downloads.distributions import PULSAR
from pulsebridge.downloads.ivy import Artifact
from pulsebridge.local.stack import LocalStack
from tests.support.ivy_jars import jars, java_home
from tests.support.push import all_acknowledged, provision, push_in_thread, push_settings, receipts, user
from tests.support.push_commands import run
from tests.support.reading_back import read_back
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"
PARTITIONS: Final = 7
PYTHON: Final = EXAMPLES / "send_commands.py"


def python() -> list[str]:
    return [sys.executable, str(PYTHON)]


def java() -> list[str]:
    client = Artifact("org.apache.pulsar", "pulsar-client", PULSAR.artifact.version, transitive=True)
    folder = jars(f"pulsar-client-{client.version}", (client,))
    return [f"{java_home()}/bin/java", "-cp", f"{folder}/*", str(EXAMPLES / "SendCommands.java")]


def names() -> list[str]:
    """Devices whose names end in each place of a block of four bytes, also with bytes above 127."""
    run_id = uuid.uuid4().hex[:8]
    return [f"{run_id}-{tail}" for tail in ("", "a", "bb", "ccc", "ä", "äö", "日", "日本", "🌡", "k" * 40)]


def test_the_python_example_needs_pulsars_client_alone() -> None:
    tree = ast.parse(PYTHON.read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert found - sys.stdlib_module_names == {"pulsar"}


@pytest.mark.stack
@pytest.mark.parametrize("program", [python, pytest.param(java, marks=pytest.mark.thorough)])
def test_commands_of_another_client_arrive_in_order_from_the_partition_of_their_device(
    program: object, stack: LocalStack, namespaces: PulsarSettings
) -> None:
    settings = push_settings(namespaces, mqtt_settings(stack), command_partitions=PARTITIONS)
    provision(settings)
    devices = names()
    assert callable(program)
    out = example(program(), settings.pulsar, devices)
    assert out.count(": stored at ") == 3 * len(devices)
    # The same devices from the command line, after that.
    for device in devices:
        assert run(
            settings, "commands", "send", "--device", device, "--topic", "devices/{device}/commands", "--payload", "4"
        ).exit_code == 0  # fmt: skip
    partitions: dict[str, set[int]] = defaultdict(set)
    for number, message in read_back(settings.pulsar, settings.pulsar.system_topic(COMMANDS_TOPIC)):
        command = decode_command(message.properties(), message.data())
        assert message.partition_key() == command.device
        partitions[command.device].add(number)
    assert partitions == {device: {partition_of(device, PARTITIONS)} for device in devices}

    got: dict[str, list[Message]] = defaultdict(list)
    with DeviceClient(
        settings.mqtt, f"{settings.mqtt.client_id}-devices", on_message=lambda m: got[m.topic.split("/")[1]].append(m)
    ) as client:
        for device in devices:
            client.subscribe(f"devices/{device}/commands")
        with push_in_thread(settings):
            poll_for(lambda: all(len(got[device]) >= 4 for device in devices), 60, "every command at its device")
            all_acknowledged(settings)
    expected = [b'{"step": 1}', b'{"step": 2}', b'{"step": 3}', b"4"]
    assert {device: [m.payload for m in got[device]] for device in devices} == dict.fromkeys(devices, expected)
    ends = receipts(settings)
    for device in devices:
        for message in got[device]:
            (state,) = {r.state for r in ends[user(message)["command-id"]] if r.device == device}
            assert state == "delivered"


def example(program: Sequence[str], pulsar: PulsarSettings, devices: Sequence[str]) -> str:
    done = subprocess.run(
        [*program, pulsar.service_url, f"{pulsar.tenant}/{pulsar.system_namespace}", *devices],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

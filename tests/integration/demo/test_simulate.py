"""Devices from recordings on a real MQTT broker, as ``pulsebridge simulate`` runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsebridge.audit.journal import read_journals
from pulsebridge.local.stack import LocalStack
from tests.support.waiting import patient, poll_for

pytestmark = pytest.mark.stack


def simulate(stack: LocalStack, journals: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "simulate", "--journals", str(journals),
        "--set", f"mqtt.host={stack.mqtt_host}", "--set", f"mqtt.port={stack.mqtt_port}",
        "--wearables", "2", "--buoys", "1", "--rate", "30", *options,
    ]  # fmt: skip


def test_what_the_devices_published_is_acknowledged_and_journalled(stack: LocalStack, tmp_path: Path) -> None:
    command = simulate(stack, tmp_path, "--seconds", "2", "--faults-every", "10", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    published, acks, received = read_journals(tmp_path)
    assert counts["published"] == counts["acknowledged"] == len(published) == len(acks) > 40
    assert sum(1 for p in published if p.fault) == sum(1 for p in published if not p.fault) // 10
    assert {p.device for p in published} == {"cgm-001", "cgm-002", "buoy-001"}
    assert received == ()


def test_a_signal_ends_it_with_130(stack: LocalStack, tmp_path: Path) -> None:
    with subprocess.Popen(simulate(stack, tmp_path, "--seconds", "600"), stdout=subprocess.PIPE) as running:
        poll_for(lambda: len(read_journals(tmp_path)[1]) > 5, timeout=60, what="acknowledged readings")
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=patient(30)) == 130

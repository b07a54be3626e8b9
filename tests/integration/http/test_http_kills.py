"""Ingest killed while devices publish over HTTP: what was answered 200 is in Pulsar, in order for each device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import stored
from tests.support.kill_points import HTTP_KILL_POINTS
from tests.support.stack import provisioned
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]


class Fleet:
    """Devices that publish one number after the other, each again until it is answered 200."""

    def __init__(self, port: int, devices: int, count: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.count = count
        self.answered: dict[str, int] = {f"d{n}": 0 for n in range(devices)}
        self.threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in self.answered]
        self.ended = threading.Event()
        for thread in self.threads:
            thread.start()

    @property
    def total(self) -> int:
        return sum(self.answered.values())

    def _run(self, name: str) -> None:
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            for number in range(self.count):
                while not self.ended.is_set():
                    try:
                        status = client.post(f"/topics/fleet/{name}/m", content=b"%d" % number).status_code
                    except httpx.TransportError:
                        status = 0
                    if status == 200:
                        self.answered[name] += 1
                        break
                    self.ended.wait(0.05)

    def stop(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(patient(60))
            assert not thread.is_alive()


@contextmanager
def ingest(port: int, pulsar: PulsarSettings, folder: Path, kill_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    config = folder / "c.yaml"
    body = {
        "messaging_protocols": "http",
        "http": {"port": port},
        "pulsar": pulsar.model_dump(mode="json", exclude_defaults=True),
        "ingest": {"routes": [{"name": "fleet", "filter": "fleet/+device/+m", "topic": "fleet", "device": "{device}"}]},
    }
    config.write_text(yaml.safe_dump(body), encoding="utf-8")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "-c", str(config)],
            stdout=log,
            stderr=log,
            env=os.environ | ({"PULSEBRIDGE_KILL_AT": kill_at} if kill_at else {}),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("point", HTTP_KILL_POINTS)
def test_killed_at_each_point_nothing_that_was_answered_is_missing(
    point: str, stack: LocalStack, tmp_path: Path
) -> None:
    pulsar = provisioned(stack, partitions=1)
    with PulsarAdmin(pulsar, timeout_s=30) as admin:
        admin.create_partitioned(pulsar.readings_topic("fleet"), 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fleet = Fleet(port, devices=4, count=60)
    try:
        for _kill in range(3):
            with ingest(port, pulsar, tmp_path, f"{point}:40") as process:
                poll_for(lambda process=process: process.poll() is not None, 60, "the kill")  # type: ignore[misc]
                assert process.returncode == -9, (tmp_path / "log").read_text()
        with ingest(port, pulsar, tmp_path):
            poll_for(lambda: fleet.total == 240, 60, "every answer")
    finally:
        fleet.stop()
    seen: dict[str, list[int]] = {}
    for message in stored(pulsar, "fleet"):
        numbers = seen.setdefault(message.key, [])
        if int(message.payload) not in numbers:
            numbers.append(int(message.payload))
    assert seen == {f"d{n}": list(range(60)) for n in range(4)}

"""Several workers that take HTTP on one port beside their MQTT sessions: every one serves, and one may die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from bridge.inspect.instances import look_at_instances
from bridge.protocols.records import InstanceRecord
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.settings.ingest import IngestSettings
from bridge.settings.pulsar import PulsarSettings
from pulsebridge.local.stack import LocalStack
from tests.support.ingest import first_copies, rule_for, stored
from tests.support.stack import mqtt_settings
from tests.support.waiting import patient, poll_for

pytestmark = [pytest.mark.stack, pytest.mark.chaos]


@contextmanager
def workers(settings: Settings, folder: Path, count: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``pulsebridge ingest --workers``, with its log; it is ended at the end, and its workers with it."""
    config, log = folder / "workers.yaml", folder / "workers.log"
    body = settings.model_dump(mode="json", exclude_defaults=True)
    config.write_text(yaml.safe_dump(body), encoding="utf-8")
    command = [sys.executable, "-c", "from pulsebridge.cli.app import main; main()", "ingest", "-c", str(config)]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--workers", str(count)], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(patient(60))


def running(settings: Settings) -> list[InstanceRecord]:
    return [r for r, state in look_at_instances(settings).records if state == "running"]


def all_ready(settings: Settings, count: int) -> list[InstanceRecord] | None:
    found = running(settings)
    ready = all(all(p.ready.values()) and p.ready for r in found for p in r.protocols.values())
    return found if ready and len(found) == count else None


class Device:
    """Publishes one number after the other, each on a connection of its own and again until it is answered 200."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.count = 0

    def publish(self) -> None:
        while True:
            try:
                answer = httpx.post(self._url, content=b"d#%d" % self.count, timeout=30, trust_env=False)
            except httpx.TransportError:  # it was queued at a worker that died
                continue
            if answer.status_code == 200:
                self.count += 1
                return


def test_workers_share_the_port_of_http_and_one_that_dies_is_not_missed(
    stack: LocalStack, namespaces: PulsarSettings, tmp_path: Path
) -> None:
    mqtt = mqtt_settings(stack)
    root = mqtt.client_id
    rule = rule_for(root, filter=f"{root}/+line/+device/+m", device="{line}/{device}", command_topic=None)
    settings = Settings(
        messaging_protocols=("mqtt", "http"),
        mqtt=mqtt,
        pulsar=namespaces,
        http=HttpSettings(port=0),
        ingest=IngestSettings(routes=(rule,), filters=(f"{root}/l0/#", f"{root}/l1/#"), status_interval="2s"),
    )
    with workers(settings, tmp_path, 2) as (process, log):
        records = poll_for(lambda: all_ready(settings, 2), 90, "two workers")
        (listener,) = {listener for r in records for listener in r.protocols["http"].listeners}
        device = Device(f"http://{listener}/topics/{root}/l0/d/x")

        def both_have_written() -> bool:
            device.publish()
            return all(r.topics_count for r in running(settings))

        poll_for(both_have_written, 60, "connections at both workers")
        psutil.Process(records[0].pid).kill()
        for _ in range(50):
            device.publish()
        poll_for(lambda: all_ready(settings, 2), 90, "the worker that was started again")
        assert records[0].pid not in {r.pid for r in running(settings)}

        port = int(listener.rpartition(":")[2])
        second = settings.model_copy(update={"http": HttpSettings(port=port)})
        (tmp_path / "second").mkdir()
        with workers(second, tmp_path / "second", 2) as (other, its_log):
            assert other.wait(patient(60)) == 1
        assert f"the workers cannot listen on 127.0.0.1:{port} (http.port)" in its_log.read_text()
        process.terminate()
        assert process.wait(patient(60)) == 0, log.read_text()
    found = [m.payload.decode() for m in stored(namespaces, "fleet")]
    assert first_copies(found) == list(range(device.count))

"""Devices that publish over HTTP, also as a process that may be killed, and the ingest that serves them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from bridge.settings.pulsar import PulsarSettings
from tests.support.waiting import patient

__all__ = ["HttpFleet", "answered_in", "fleet_process", "ingest_of"]


def answered_in(file: Path) -> dict[str, int]:
    """Return how many messages of each device the file records as answered."""
    return dict(Counter(file.read_text("ascii").split())) if file.exists() else {}


class HttpFleet:
    """Devices that publish one number after the other to ``fleet/<device>/m``, each again until it is answered 200.

    With a ``record`` each answer is a line of that file, and a fleet continues where the file ends.
    """

    def __init__(self, port: int, devices: int, count: int, record: Path | None = None) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._count = count
        self._record = None if record is None else record.open("ab", buffering=0)
        self.answered = {f"d{n}": 0 for n in range(devices)} | ({} if record is None else answered_in(record))
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in self.answered]
        self._ended = threading.Event()
        for thread in self._threads:
            thread.start()

    @property
    def total(self) -> int:
        """How many messages were answered."""
        return sum(self.answered.values())

    def _run(self, name: str) -> None:
        with httpx.Client(base_url=self._url, timeout=30, trust_env=False) as client:
            for number in range(self.answered[name], self._count):
                while not self._ended.is_set():
                    try:
                        status = client.post(f"/topics/fleet/{name}/m", content=b"%d" % number).status_code
                    except httpx.TransportError:
                        status = 0
                    if status == 200:
                        self.answered[name] += 1
                        if self._record is not None:
                            self._record.write(f"{name}\n".encode())
                        break
                    self._ended.wait(0.05)

    def join(self) -> None:
        """Wait until every message is answered."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Publish no more."""
        self._ended.set()
        for thread in self._threads:
            thread.join(patient(60))
            assert not thread.is_alive()


def fleet_process(port: int, devices: int, count: int, record: Path) -> subprocess.Popen[bytes]:
    """Start such a fleet as a process, which ends when every message is answered."""
    given = [str(port), str(devices), str(count), str(record)]
    return subprocess.Popen([sys.executable, "-m", "tests.support.http_fleet", *given])


@contextmanager
def ingest_of(
    port: int, pulsar: PulsarSettings, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``pulsebridge ingest`` for this fleet; it is killed at the end if it still runs. Its log is ``folder/log``."""
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
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


if __name__ == "__main__":
    HttpFleet(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])).join()

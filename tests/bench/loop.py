"""Device → ingest → Pulsar → Spark rule → Pulsar → push → device, at 200 readings per second, open loop.

Latency counts from the moment a reading was due, not from when it got out, so that a stall of the sender or of
the bridge shows in full. Every tenth reading of a device falls below the rule's threshold and calls for a command;
the command names the reading that caused it.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path

import yaml

from bridge.local.stack import LocalStack
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.settings import LocalSettings, MqttSettings
from bridge.settings.loading import conf_path
from tests.bench.processes import pulsebridge, running
from tests.bench.results import Figure, percentile
from tests.support.folders import own_folder
from tests.support.waiting import poll_for

__all__ = ["config_of", "measure"]

RATE = 200
DEVICES = 20
SECONDS = 60
WARM_SECONDS = 20
HIGH, LOW = 110.0, 60.0
EVERY = 10


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``loop.device_to_device.p50`` and ``.p99``, beside Spark's own Kafka micro-batch latencies."""
    with (
        own_folder("bench") as folder,
        LocalStack(LocalSettings(quick_start=False)) as stack,
        ExitStack() as run,
    ):
        config = config_of(stack, folder)
        fleet = _Fleet(stack)
        run.callback(fleet.close)
        for part in ("ingest", "push", "stream"):
            command = pulsebridge(part, "--config", str(config))
            run.enter_context(running(command, folder / f"{part}.log", ready=lambda: True))
        fleet.start()
        fleet.send(WARM_SECONDS, wait_first=True)
        fleet.forget()
        fleet.send(SECONDS)
        poll_for(fleet.complete, 90, "a command for each reading that calls for one")
        late = fleet.latencies_ms()
    # Published for Spark's Kafka source alone (one hop of the six that are measured here).
    return [
        Figure(
            "loop.device_to_device.p50", percentile(late, 0.50), "ms", "Spark's Kafka micro-batch alone", 263
        ),
        Figure(
            "loop.device_to_device.p99", percentile(late, 0.99), "ms", "Spark's Kafka micro-batch alone", 401
        ),
    ], []


def config_of(stack: LocalStack, folder: Path) -> Path:
    """Write the settings of all tiers for a stack, as the demo has them. Returns the file."""
    settings = yaml.safe_load(conf_path("demo.yaml").read_text())
    settings.setdefault("mqtt", {}).update(host=stack.mqtt_host, port=stack.mqtt_port)
    settings.setdefault("pulsar", {}).update(service_url=stack.pulsar_url, admin_url=stack.admin_url)
    settings.setdefault("streaming", {})["root"] = str(folder / "lakehouse")
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


class _Fleet:
    """Devices that publish when a reading is due, whatever came back, and note when each command arrives."""

    def __init__(self, stack: LocalStack) -> None:
        settings = MqttSettings(host=stack.mqtt_host, port=stack.mqtt_port)
        self._due: dict[str, float] = {}
        self._arrived: dict[str, float] = {}
        self._lock = threading.Lock()
        self._sequence = 0
        # Recent times, a recording's pace: five minutes between two readings of one device.
        self._epoch = datetime.now(timezone.utc) - timedelta(days=365)
        self._devices = [
            DeviceClient(settings, f"bench-{i:03}", persistent=True, on_message=self._command)
            for i in range(DEVICES)
        ]

    def start(self) -> None:
        for i, device in enumerate(self._devices):
            device.connect()
            device.subscribe(f"devices/bench-{i:03}/commands")

    def close(self) -> None:
        for device in self._devices:
            device.close()

    def send(self, seconds: float, *, wait_first: bool = False) -> None:
        """Publish at the set rate; with ``wait_first`` go on until the first command came back."""
        begin, first = time.monotonic(), self._sequence
        count = int(seconds * RATE)
        give_up = begin + 180
        while self._sequence - first < count or (wait_first and not self._arrived):
            due = begin + (self._sequence - first) / RATE
            if due > give_up:
                raise TimeoutError(
                    "no command came back within 180 s: see the logs of ingest, push and stream"
                )
            threading.Event().wait(max(0.0, due - time.monotonic()))
            self._publish(due)

    def _publish(self, due: float) -> None:
        round_, i = divmod(self._sequence, DEVICES)
        self._sequence += 1
        low = round_ % EVERY == EVERY - 1
        reading_id = f"bench-{i:03}-{round_}"
        ts = self._epoch + timedelta(minutes=5 * round_)
        body = {"id": reading_id, "ts": ts.isoformat(), "glucose": LOW if low else HIGH}
        if low:
            with self._lock:
                self._due[reading_id] = due
        self._devices[i].publish(f"wearables/bench-{i:03}/glucose", json.dumps(body).encode())

    def _command(self, message: Message) -> None:
        now = time.monotonic()
        reading_id = json.loads(message.payload)["reading_id"]
        with self._lock:
            self._arrived.setdefault(reading_id, now)

    def forget(self) -> None:
        """Leave out what was due up to now."""
        with self._lock:
            self._due.clear()

    def complete(self) -> bool:
        with self._lock:
            return self._due.keys() <= self._arrived.keys()

    def latencies_ms(self) -> list[float]:
        with self._lock:
            return [(self._arrived[r] - due) * 1000 for r, due in self._due.items()]

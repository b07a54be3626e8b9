"""Device → ingest → Pulsar → Spark rule → Pulsar → push → device, at 200 readings per second, open loop.

Latency counts from the moment a reading was due, not from when it got out, so that a stall of the sender or of
the bridge shows in full. Every tenth reading of a device falls below the rule's threshold and calls for a command;
the command names the reading that caused it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import psutil
import yaml

from bridge.contract import COMMANDS_TOPIC, partition_name
from bridge.errors import RefusedError, TransientError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import LocalSettings, MqttSettings, PulsarSettings
from bridge.settings.loading import conf_path
from pulsebridge.audit.tables import MEASUREMENTS, read_table
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.bench.loop_alone import measure_alone
from tests.bench.processes import bench_folder, pulsebridge, running, with_logs_of
from tests.bench.results import Figure, percentile
from tests.support.endpoint import Endpoint
from tests.support.waiting import poll_for

__all__ = ["Fleet", "config_of", "measure"]

RATE = 200
DEVICES = 20
SECONDS = 60
WARM_SECONDS = 60
HIGH, LOW = 110.0, 60.0
EVERY = 10
LOOK_S = 1.0
START_S = 300.0
_BUILT_IN = "streaming.built_in=[bronze,readings,alerts]"
_PARTS = {
    "ingest": ("ingest",),
    "push": ("push",),
    "commands": ("stream", "--part", "commands", "--set", _BUILT_IN),
    "tables": ("stream", "--part", "tables", "--set", _BUILT_IN, "--set", "streaming.spark.nice=5"),
}
"""The arguments of each process: a Spark driver for commands, and one for tables with lower priority."""
_TABLES = ("bronze", "measurements", "readings")
HOP_S = 180.0
"""How long the first reading, and the command of it, may take from one hop to the next, in seconds."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``loop.alone`` beside Spark's Kafka source and sink, then ``loop.device_to_device`` and
    ``loop.device_to_table`` with bronze, a typed table, readings and alerts written at once, at ``.p50`` and ``.p99``.
    """
    with (
        bench_folder() as folder,
        LocalStack(LocalSettings(quick_start=False, start_timeout="5m")) as stack,
        with_logs_of(stack, folder),
    ):
        config = config_of(stack, folder)
        alone, left_out = measure_alone(stack, Fleet, config)
        return [*alone, *_loaded(stack, folder, config)], left_out


def _loaded(stack: LocalStack, folder: Path, config: Path) -> list[Figure]:
    with ExitStack() as run:
        way = _Way(stack, folder)
        fleet = Fleet(stack)
        run.callback(fleet.close)
        for part, words in _PARTS.items():
            command = pulsebridge(*words, "--config", str(config), *way.metrics(part))
            way.processes[part] = run.enter_context(running(command, folder / f"{part}.log", ready=lambda: True))
        way.await_up()
        fleet.start()
        fleet.send(WARM_SECONDS, until=way.look)
        # What gathered while the driver started would delay the readings that count.
        poll_for(lambda: fleet.seconds_to(folder / "lakehouse"), 240, "the first readings in the typed table")
        fleet.forget()
        fleet.send(SECONDS)
        poll_for(fleet.complete, 90, "a command for each reading that calls for one")
        late = fleet.latencies_ms()
        poll_for(lambda: fleet.seconds_to(folder / "lakehouse"), 90, "all readings in the typed table")
        to_table = fleet.seconds_to(folder / "lakehouse")
    # Published for Spark's Kafka source alone (one hop of the six that are measured here).
    alone = {0.5: 263, 0.99: 401}
    peer = "Spark's Kafka micro-batch alone"
    return [
        *(
            Figure(f"loop.device_to_device.p{share * 100:.0f}", percentile(late, share), "ms", peer, value)
            for share, value in alone.items()
        ),
        *(
            Figure(f"loop.device_to_table.p{share * 100:.0f}", percentile(to_table, share) * 1000, "ms")
            for share in alone
        ),
    ]


def config_of(stack: LocalStack, folder: Path) -> Path:
    """Write the settings of all tiers for a stack, as the demo has them. Returns the file."""
    settings = yaml.safe_load(conf_path("demo/pulsebridge.yaml").read_text())
    settings.setdefault("mqtt", {}).update(host=stack.mqtt_host, port=stack.mqtt_port)
    settings.setdefault("pulsar", {}).update(service_url=stack.pulsar_url, admin_url=stack.admin_url)
    shutil.copytree(conf_path("demo/gx"), folder / "gx")
    settings.setdefault("streaming", {}).update(
        root=str(folder / "lakehouse"),
        alerts=str(conf_path("demo/rules.yaml")),
        suites=str(folder / "gx"),
    )
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


class _Way:
    """The way of a reading through the processes, hop by hop: where the first one is, and where it gets no further."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self.processes: dict[str, psutil.Process] = {}
        self._folder = folder
        self._pulsar = PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)
        self._endpoints = dict(zip(_PARTS, map(Endpoint, free_ports(len(_PARTS))), strict=True))
        self._reached = 0
        self._moved = self._looked = time.monotonic()
        self._hops: dict[str, Callable[[], float]] = {
            "ingest receives": partial(self._metric, "ingest", "pulsebridge_ingest_received_total"),
            "ingest stores": partial(self._metric, "ingest", "pulsebridge_ingest_stored_total"),
            **{
                f"{query} reads": partial(self._metric, part, "pulsebridge_stream_rows_total", query=query)
                for part, query in (("commands", "alerts-measurements"), *(("tables", table) for table in _TABLES))
            },
            "Pulsar has commands": self._commands,
            "push pushes": partial(self._metric, "push", "pulsebridge_push_pushed_total"),
        }

    def metrics(self, part: str) -> list[str]:
        """Return the words by which a process serves its metrics."""
        return ["--set", f"metrics.port={self._endpoints[part].port}"]

    def await_up(self) -> None:
        """Wait until every process answers: on a busy machine Spark's start takes minutes, and is not measured."""

        def up() -> bool:
            self._look_for_ends()
            return all(self._metric(part, "pulsebridge_build_info") for part in _PARTS)

        poll_for(up, START_S, "ingest, push and the Spark drivers to answer", every=1.0)
        self._moved = time.monotonic()

    def _look_for_ends(self) -> None:
        for part, process in self.processes.items():
            if process.status() == psutil.STATUS_ZOMBIE:
                end = (self._folder / f"{part}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"pulsebridge {part} ended by itself; its log ends:\n{end}")

    def look(self) -> None:
        """Look once in a while. Raises TimeoutError that names the hop where readings get no further for so long, and
        RuntimeError when a process has ended.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self._look_for_ends()
        counts = {hop: count() for hop, count in self._hops.items()}
        reached = sum(1 for count in counts.values() if count)
        if reached > self._reached:
            self._reached, self._moved = reached, time.monotonic()
        elif now - self._moved > HOP_S:
            self._note()
            lacks = next((hop for hop, count in counts.items() if not count), "the device receives")
            progress = ", ".join(f"{hop} {count:.0f}" for hop, count in counts.items())
            raise TimeoutError(f"no command came back, for {HOP_S:.0f} s nothing has reached: {lacks} ({progress})")

    def _metric(self, part: str, name: str, **labels: str) -> float:
        try:
            return self._endpoints[part].total(name, **labels)
        except OSError:
            return 0.0  # not listening yet

    def _commands(self) -> float:
        topic = self._pulsar.system_topic(COMMANDS_TOPIC)
        with PulsarAdmin(self._pulsar, timeout_s=30) as admin:
            names = [partition_name(topic, n) for n in range(admin.partition_count(topic))]
            found = 0.0
            for name in names:
                with suppress(RefusedError, TransientError):  # not made yet
                    found += admin.stats(name)["msgInCounter"]
            return found

    def _note(self) -> None:
        for part, endpoint in self._endpoints.items():
            with suppress(OSError):
                text = "".join(endpoint.get(path)[1] + "\n" for path in ("/readyz", "/metrics"))
                (self._folder / f"{part}.txt").write_text(text)
        states = self._folder.glob("lakehouse/checkpoints/*/*/[0-9]*")
        (self._folder / "batches.txt").write_text("\n".join(sorted(str(path) for path in states)))


class Fleet:
    """Devices that publish when a reading is due, whatever came back, and note when each command arrives."""

    def __init__(self, stack: LocalStack) -> None:
        settings = MqttSettings(host=stack.mqtt_host, port=stack.mqtt_port)
        self._due: dict[str, float] = {}
        self._all: dict[str, float] = {}
        """When each reading was due, in seconds since the epoch."""
        self._arrived: dict[str, float] = {}
        self._lock = threading.Lock()
        self._sequence = 0
        # Recent times, a recording's pace: five minutes between two readings of one device.
        self._epoch = datetime.now(timezone.utc) - timedelta(days=365)
        # Of their own: who reads from the topic's start meets the readings of fleets before.
        self._names = [f"bench-{secrets.token_hex(3)}-{i:03}" for i in range(DEVICES)]
        self._devices = [
            DeviceClient(settings, name, persistent=True, on_message=self._command) for name in self._names
        ]

    def start(self) -> None:
        for name, device in zip(self._names, self._devices, strict=True):
            device.connect()
            device.subscribe(f"devices/{name}/commands")

    def close(self) -> None:
        for device in self._devices:
            device.close()

    def send(self, seconds: float, *, until: Callable[[], None] | None = None) -> None:
        """Publish at the set rate; with ``until`` go on, calling it, until the first command came back."""
        begin, first = time.monotonic(), self._sequence
        count = int(seconds * RATE)
        while self._sequence - first < count or (until and not self._arrived):
            due = begin + (self._sequence - first) / RATE
            if until and not self._arrived:
                until()
            threading.Event().wait(max(0.0, due - time.monotonic()))
            self._publish(due)

    def _publish(self, due: float) -> None:
        round_, i = divmod(self._sequence, DEVICES)
        self._sequence += 1
        low = round_ % EVERY == EVERY - 1
        reading_id = f"{self._names[i]}-{round_}"
        ts = self._epoch + timedelta(minutes=5 * round_)
        body = {"id": reading_id, "ts": ts.isoformat(), "glucose": LOW if low else HIGH}
        self._all[reading_id] = time.time() - (time.monotonic() - due)
        if low:
            with self._lock:
                self._due[reading_id] = due
        self._devices[i].publish(f"wearables/{self._names[i]}/glucose", json.dumps(body).encode())

    def _command(self, message: Message) -> None:
        now = time.monotonic()
        reading_id = json.loads(message.payload)["reading_id"]
        with self._lock:
            self._arrived.setdefault(reading_id, now)

    def forget(self) -> None:
        """Leave out what was due up to now."""
        self._all.clear()
        with self._lock:
            self._due.clear()

    def complete(self) -> bool:
        with self._lock:
            return self._due.keys() <= self._arrived.keys()

    def latencies_ms(self) -> list[float]:
        with self._lock:
            return [(self._arrived[r] - due) * 1000 for r, due in self._due.items()]

    def seconds_to(self, root: Path) -> list[float]:
        """Return how long each reading took to the commit that shows it, none while one is missing."""
        seen = {row.id: row.us / 1e6 for row in read_table(root / MEASUREMENTS)}
        return [seen[name] - due for name, due in self._all.items()] if self._all.keys() <= seen.keys() else []

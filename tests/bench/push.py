"""Push to online devices: latency, sustained rate beside a bare paho loop, a command to a group, idle devices.

The latency counts from the moment a command was due at Pulsar, not from when its write got out, to the moment its device
had read it from its socket; devices are connections of their own in a process of their own, on the same machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge.contract import (
    COMMAND_ID_PROPERTY,
    COMMAND_POSITION_PROPERTY,
    COMMANDS_TOPIC,
    ORIGIN_PROPERTY,
    ORIGIN_PUSH,
    partition_name,
)
from bridge.contract.commands import Command, encode_command
from bridge.contract.groups import GroupCommand
from bridge.contract.partitioning import partition_of
from bridge.pulsar.client import PulsarClient
from bridge.settings import LocalSettings, Settings
from bridge.settings.metrics import MetricsSettings
from bridge.settings.push import PresenceRule
from pulsebridge.local.stack import LocalStack
from tests.bench.processes import bench_folder, cpu_seconds, pulsebridge, running
from tests.bench.results import Figure, percentile
from tests.support.bare_mqtt import bare_publisher
from tests.support.command_writer import write_many
from tests.support.device_fleet import DeviceEvent, FleetSpec, command_topic, device_name, status_topic
from tests.support.device_processes import DeviceProcesses, device_processes
from tests.support.groups import write_group_commands, write_members
from tests.support.push import provision, push_settings
from tests.support.stack import mqtt_settings, provisioned
from tests.support.waiting import poll_for

__all__ = ["PAYLOAD_BYTES", "Place", "latencies_ms", "measure", "place", "write_open_loop"]

RATE = 500
"""Live commands per second."""
DEVICES = 500
SECONDS = "BENCH_PUSH_S"
"""Environment variable: how long the latency is measured, in seconds, 40 by default."""
BROKER = "BENCH_MQTT"
"""Environment variable: the MQTT broker, ``artemis`` by default, or ``mosquitto``."""
WARM_S = 10.0
COUNT = 20_000
"""Commands of which the sustained rate is measured."""
IDLE = "BENCH_IDLE_DEVICES"
"""Environment variable: devices that have nothing to do, 10,000 by default."""
IDLE_S = 30.0
PAYLOAD_BYTES = 128
_HEAP_MB = 2048
"""Of the MQTT broker: with its usual heap it ends at some 5,700 connections."""


@dataclass(frozen=True)
class Place:
    """The servers, the settings of push, and a folder."""

    settings: Settings
    config: Path
    folder: Path
    pids: dict[str, int]
    """Of the servers, by name."""

    @property
    def root(self) -> str:
        """Below which the devices' topics are."""
        return self.settings.mqtt.client_id

    def fleet(self, count: int, *, first: int = 0, keep_alive_s: int = 60, sleeping: int = 0) -> FleetSpec:
        """Return devices with MQTT 5 that do not disconnect."""
        mqtt = self.settings.mqtt
        return FleetSpec(
            mqtt.host,
            mqtt.port,
            self.root,
            first=first,
            count=count,
            seed=1,
            answers=False,
            keep_alive_s=keep_alive_s,
            sleeping=sleeping,
        )

    @contextmanager
    def push(self, name: str = "push", *, within_s: float = 90) -> Iterator[psutil.Process]:
        """A push worker that owns all partitions."""
        log = self.folder / f"{name}.log"
        partitions = self.settings.pulsar.command_partitions
        with running(
            pulsebridge("push", "--config", str(self.config)),
            log,
            ready=lambda: log.read_text(errors="replace").count("partition is ours") >= partitions,
            within_s=within_s,
        ) as process:
            yield process

    def command(self, device: int, number: int, due_us: int = 0) -> Command:
        """Return a command of ``PAYLOAD_BYTES`` that says its number and when it was due."""
        name = device_name(device)
        payload = f"{number}:{due_us}:".encode().ljust(PAYLOAD_BYTES, b"x")
        return Command(f"{name}-{number}", name, command_topic(self.root, device), payload)


@contextmanager
def place(folder: Path, *, metrics_port: int = 0, mqtt_heap_mb: int = 0) -> Iterator[Place]:
    """A stack of its own, provisioned for push, which hears of the devices' births and wills."""
    server = os.environ.get(BROKER, "artemis")
    with LocalStack(
        LocalSettings(quick_start=False, start_timeout="5m", mqtt_server=server, mqtt_heap=f"{mqtt_heap_mb}MiB")
    ) as stack:
        mqtt = mqtt_settings(stack)
        presence = (PresenceRule(filter=status_topic(mqtt.client_id, "+device")),)
        settings = push_settings(provisioned(stack), mqtt, command_partitions=4, presence={"rules": presence})
        settings = settings.model_copy(update={"metrics": MetricsSettings(port=metrics_port)})
        provision(settings)
        config = folder / "push.yaml"
        config.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)))
        yield Place(settings, config, folder, stack.pids)


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``push.pulsar_to_device.p50`` and ``.p99``, ``push.rate``, ``push.idle_cpu`` and ``push.group_rate``."""
    idle = int(os.environ.get(IDLE, "10000"))
    with bench_folder() as folder, place(folder, mqtt_heap_mb=_HEAP_MB) as at, ExitStack() as run:
        process = run.enter_context(at.push())
        (folder / "live").mkdir()
        with device_processes(at.fleet(DEVICES), folder / "live") as fleet:
            fleet.all_there()
            late, cost = _live(at, fleet, process)
            rate = _rate(at, fleet, process)
            bare = _bare_rate(at, fleet)
        figures = [
            Figure("push.pulsar_to_device.p50", percentile(late, 0.50), "ms", "the bar", 30),
            Figure("push.pulsar_to_device.p99", percentile(late, 0.99), "ms", "the bar", 100),
            Figure("push.cpu", cost, "µs"),
            Figure("push.rate", rate, "1/s", "bare paho publish loop", bare),
        ]
        (folder / "idle").mkdir()
        with device_processes(at.fleet(idle, keep_alive_s=600), folder / "idle", 2) as fleet:
            fleet.all_there(timeout=300)
            figures.append(Figure("push.idle_cpu", _idle(at, fleet, process, idle), "share"))
            figures.append(Figure("push.group_rate", _group_rate(at, fleet, idle), "1/s", "push.rate", rate))
    return figures, []


def _live(at: Place, fleet: DeviceProcesses, process: psutil.Process) -> tuple[list[float], float]:
    """Return the latencies in ms, and push's CPU for each command in µs."""
    seconds = float(os.environ.get(SECONDS, "40"))
    write_open_loop(at, range(DEVICES), rate=RATE, seconds=WARM_S)
    begin, cpu = time.time(), cpu_seconds(process)
    sent = write_open_loop(at, range(DEVICES), rate=RATE, seconds=seconds, first=1_000_000)
    poll_for(lambda: fleet.arrivals() >= sent + int(WARM_S * RATE), 60, "all live commands at their devices")
    cost = (cpu_seconds(process) - cpu) / sent * 1e6
    late = latencies_ms(fleet.events(), since=begin)
    assert len(late) == sent, f"{sent} sent, {len(late)} arrived"
    print(
        f"  live: {len(late)} commands, p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f} ms, at most "
        f"{max(late):.0f} ms, {cost:.0f} µs of CPU each; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return late, cost


def write_open_loop(
    at: Place,
    devices: Sequence[int],
    *,
    rate: float,
    seconds: float,
    first: int = 0,
    stop: threading.Event | None = None,
) -> int:
    """Write commands to ``devices`` in turn, each when it is due, whatever is late. Returns how many were written.

    Returns early when ``stop`` is set.
    """
    topic = at.settings.pulsar.system_topic(COMMANDS_TOPIC)
    count = at.settings.pulsar.command_partitions
    pause = stop or threading.Event()
    total = int(rate * seconds)
    with PulsarClient(at.settings.pulsar) as client:
        producers = [client.producer(partition_name(topic, n)) for n in range(count)]
        begin, written = time.time(), 0
        for n in range(total):
            due = begin + n / rate
            left = due - time.time()
            if left > 0 and pause.wait(left):
                break
            one = at.command(devices[n % len(devices)], first + n // len(devices), int(due * 1e6))
            producers[partition_of(one.device, count)].send_async(
                one.payload, None, partition_key=one.device, properties=encode_command(one)
            )
            written = n + 1
        for producer in producers:
            producer.flush()
    return written


def latencies_ms(events: Iterator[DeviceEvent], *, since: float, until: float = 1e12) -> list[float]:
    """Return how late each command was that was due after ``since``, a time in s, and before ``until``."""
    found = []
    for event in events:
        if event.kind == "R":
            due = int(event.number.split(":")[1])
            if since * 1e6 <= due < until * 1e6:
                found.append((event.at - due) / 1000)
    return found


def _rate(at: Place, fleet: DeviceProcesses, process: psutil.Process) -> float:
    before, cpu = fleet.arrivals(), cpu_seconds(process)
    each = COUNT // DEVICES
    write_many(at.settings, (at.command(n % DEVICES, 2_000_000 + n // DEVICES) for n in range(each * DEVICES)))
    poll_for(lambda: fleet.arrivals() >= before + COUNT, 240, "all commands at their devices", every=0.2)
    rate = _arrival_rate(fleet, before)
    cost = (cpu_seconds(process) - cpu) / COUNT * 1e6
    print(f"  rate: {rate:,.0f}/s, {cost:.0f} µs of CPU each, load {os.getloadavg()[0]:.1f}", flush=True)
    return rate


def _arrival_rate(fleet: DeviceProcesses, before: int) -> float:
    times = sorted(event.at for event in fleet.events() if event.kind == "R")[before:]
    return (len(times) - 1) / ((times[-1] - times[0]) / 1e6)


def _bare_rate(at: Place, fleet: DeviceProcesses) -> float:
    """Publish as many of the same messages with paho alone, at QoS 1, as many in flight as push has."""
    before = fleet.arrivals()
    window = at.settings.push.limits.window * at.settings.pulsar.command_partitions
    room = threading.Semaphore(window)
    with bare_publisher(at.settings.mqtt, "bare", "5", window) as client:
        client.on_publish = lambda *_: room.release()
        for n in range(COUNT):
            room.acquire()
            _publish(client, at.command(n % DEVICES, 3_000_000 + n // DEVICES))
        poll_for(lambda: fleet.arrivals() >= before + COUNT, 120, "all publishes at their devices", every=0.2)
    rate = _arrival_rate(fleet, before)
    print(f"  bare paho: {rate:,.0f}/s, load {os.getloadavg()[0]:.1f}", flush=True)
    return rate


def _publish(client: paho.Client, one: Command) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [
        (ORIGIN_PROPERTY, ORIGIN_PUSH),
        (COMMAND_ID_PROPERTY, one.command_id),
        (COMMAND_POSITION_PROPERTY, "0.0.0.0.0"),
    ]
    client.publish(one.mqtt_topic, one.payload, 1, properties=properties)


def _idle(at: Place, fleet: DeviceProcesses, process: psutil.Process, devices: int) -> float:
    """Return push's share of one core while devices are connected that have had a command and get no more."""
    write_many(at.settings, (at.command(n, 4_000_000) for n in range(devices)))
    poll_for(lambda: fleet.arrivals() >= devices, 120, "a command at each device", every=0.5)
    poll_for(_after(5), 30, "the last receipts")
    cpu, begin = cpu_seconds(process), time.monotonic()
    poll_for(_after(IDLE_S), IDLE_S + 30, "the end of the idle time")
    return (cpu_seconds(process) - cpu) / (time.monotonic() - begin)


def _group_rate(at: Place, fleet: DeviceProcesses, devices: int) -> float:
    """Return at how many members a second a command to all devices arrives, from the first one on."""
    write_members(at.settings, "bench", map(device_name, range(devices)))
    before = fleet.arrivals()
    payload = at.command(0, 5_000_000).payload
    write_group_commands(at.settings, [GroupCommand("bench-1", "bench", f"{at.root}/cmd/{{device}}", payload)])
    poll_for(lambda: fleet.arrivals() >= before + devices, 240, "the command at each member", every=0.5)
    return _arrival_rate(fleet, before)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end

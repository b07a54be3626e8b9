"""Many connected devices: what they cost ingest and push, and Pulsar's own latency while ingest has more than it can do.

The devices connect to Mosquitto, subscribe to their commands and publish once a minute. Push writes commands to some of
them. Memory, CPU and sockets are those of one ingest and one push process; the CPU of the brokers is beside.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from bridge.errors import RefusedError
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import LocalSettings
from bridge.settings.ingest import IngestSettings, TopicRule
from bridge.settings.links import LinkSettings
from bridge.settings.mqtt import MqttSettings
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.bench.flood import flood, prepared
from tests.bench.processes import bench_folder, cpu_seconds, pulsebridge, running
from tests.bench.push import Place, write_open_loop
from tests.bench.results import percentile
from tests.scale.lean_devices import published_by, reading_topic
from tests.scale.lean_processes import LeanDevices, lean_devices
from tests.scale.pulsar_probe import publish_latencies_ms
from tests.scale.servers import mosquittos
from tests.scale.spark_rows import spark_cpu_us
from tests.support.endpoint import Endpoint
from tests.support.push import provision, push_settings
from tests.support.stack import provisioned
from tests.support.waiting import poll_for

__all__ = ["connected"]

MINUTE_S = 60.0
IDLE_S = 20.0
WARM_S = 5.0
COMMANDS_EVERY_S = 2000.0
"""Each device gets a command after such a time, on the average; far more often than once a day, so that it is measured."""
OVERLOAD_S = 30.0
PROBE_RATE = 100.0
TOPIC = "fleet"
FLOODERS = 4


@dataclass
class _Tiers:
    ingest: psutil.Process
    push: psutil.Process
    pulsar: psutil.Process
    brokers: list[psutil.Process]

    def cpu(self) -> dict[str, float]:
        """Return the CPU time of each, in seconds."""
        brokers = sum(map(cpu_seconds, self.brokers))
        return {
            "ingest": cpu_seconds(self.ingest),
            "push": cpu_seconds(self.push),
            "pulsar": cpu_seconds(self.pulsar),
            "mosquitto": brokers,
        }

    def state(self) -> dict[str, float]:
        """Return the memory and the sockets of each."""
        found: dict[str, float] = {"mosquitto_bytes": sum(one.memory_info().rss for one in self.brokers)}
        for name, process in (("ingest", self.ingest), ("push", self.push)):
            found[f"{name}_bytes"] = process.memory_info().rss
            found[f"{name}_sockets"] = sum(1 for one in process.net_connections("tcp") if one.status == "ESTABLISHED")
        return found


def connected(devices: int, brokers: int, *, overload: bool) -> dict[str, float]:
    """Connect so many devices to so many brokers, and measure; with ``overload`` also Pulsar's latencies."""
    with (
        bench_folder() as folder,
        mosquittos(folder, brokers) as found,
        LocalStack(
            LocalSettings(quick_start=False, start_timeout="5m", mqtt_url=f"mqtt://127.0.0.1:{found[0][0]}")
        ) as stack,
        ExitStack() as run,
    ):
        ports = [port for port, _ in found]
        at, counted = run.enter_context(_tiers(folder, stack, ports))
        tiers = _Tiers(counted[0], counted[1], psutil.Process(stack.pids["pulsar"]), [process for _, process in found])
        result: dict[str, float] = {"devices": devices, "brokers": brokers}
        result |= {f"empty_{name}": value for name, value in tiers.state().items()}
        fleet = run.enter_context(lean_devices(at.root, ports, devices))
        begin = time.monotonic()
        fleet.all_there()
        result["connect_s"] = time.monotonic() - begin
        time.sleep(5)
        result |= {f"connected_{name}": value for name, value in tiers.state().items()}
        result |= {f"idle_{name}_share": value for name, value in _shares(tiers, IDLE_S).items()}
        print(f"  {devices} devices connected in {result['connect_s']:.0f} s", flush=True)
        _traffic(at, tiers, fleet, result)
        result["stored_bytes"] = _stored_bytes(at)
        if overload:
            result["spark_cpu_us"] = spark_cpu_us(at.settings, folder, _stored(at))
            _overload(at, tiers, fleet, ports[0], result)
        return result


@contextmanager
def _tiers(
    folder: Path, stack: LocalStack, ports: list[int]
) -> Iterator[tuple[Place, tuple[psutil.Process, psutil.Process]]]:
    """Run ingest and push, with a link to each broker."""
    mqtt = MqttSettings(host="127.0.0.1", port=ports[0], client_id=f"scale-{time.monotonic_ns()}")
    settings = push_settings(provisioned(stack), mqtt, command_partitions=4)
    rule = TopicRule(
        name="fleet", filter=f"{mqtt.client_id}/up/+device/reading", topic=TOPIC, device="{device}",
        command_topic=f"{mqtt.client_id}/cmd/{{device}}",
    )  # fmt: skip
    links = tuple(LinkSettings(name=f"link-{n}", port=port) for n, port in enumerate(ports))  # type: ignore[call-arg]
    settings = settings.model_copy(update={"ingest": IngestSettings(routes=(rule,), links=links)})
    provision(settings)
    with ExitStack() as run:
        processes = []
        for tier, port in zip(("ingest", "push"), free_ports(2), strict=True):
            config = folder / f"{tier}.yaml"
            dumped = settings.model_dump(mode="json", exclude_defaults=True) | {"metrics": {"port": port}}
            config.write_text(yaml.safe_dump(dumped))
            log = folder / f"{tier}.log"
            endpoint = Endpoint(port)
            process = run.enter_context(
                running(pulsebridge(tier, "--config", str(config)), log, ready=lambda e=endpoint: _ready(e))  # type: ignore[misc]
            )
            processes.append(process)
        yield Place(settings, config, folder, stack.pids), (processes[0], processes[1])


def _ready(endpoint: Endpoint) -> bool:
    try:
        return not endpoint.missing
    except OSError:
        return False


def _shares(tiers: _Tiers, seconds: float) -> dict[str, float]:
    """Return of how much of one core each takes."""
    before, begin = tiers.cpu(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    return {name: (value - before[name]) / passed for name, value in tiers.cpu().items()}


def _stored(at: Place) -> int:
    topic = at.settings.pulsar.readings_topic(TOPIC)
    with PulsarAdmin(at.settings.pulsar, timeout_s=30) as admin:
        try:
            count = admin.partition_count(topic)
            names = [f"{topic}-partition-{n}" for n in range(count)] if count else [topic]
            return sum(int(admin.stats(name)["msgInCounter"]) for name in names)
        except RefusedError:
            return 0


def _stored_bytes(at: Place) -> float:
    """Return how many bytes a message takes in Pulsar."""
    topic = at.settings.pulsar.readings_topic(TOPIC)
    with PulsarAdmin(at.settings.pulsar, timeout_s=30) as admin:
        count = admin.partition_count(topic)
        names = [f"{topic}-partition-{n}" for n in range(count)] if count else [topic]
        return sum(float(admin.stats(name)["storageSize"]) for name in names) / max(1, _stored(at))


def _traffic(at: Place, tiers: _Tiers, fleet: LeanDevices, result: dict[str, float]) -> None:
    """A message of each device within a minute, and some commands."""
    devices, rate = fleet.count, fleet.count / MINUTE_S
    # Code that was not used so far is loaded and compiled; and push knows at which broker these devices are.
    fleet.publish(rate, WARM_S)
    share, each = -(-devices // len(fleet.processes)), int(rate * WARM_S / len(fleet.processes))
    some = [
        n * share + published_by(k, min(share, devices - n * share))
        for n in range(len(fleet.processes))
        for k in range(each)
    ]
    poll_for(lambda: _stored(at) >= fleet.published, 120, "the first messages in Pulsar")
    fleet.late_ms.clear()
    before, stored, commands = tiers.cpu(), _stored(at), fleet.commands
    written: list[int] = []
    writer = threading.Thread(
        target=lambda: written.append(write_open_loop(at, some, rate=devices / COMMANDS_EVERY_S, seconds=MINUTE_S))
    )
    writer.start()
    fleet.publish(rate, MINUTE_S)
    writer.join()
    poll_for(lambda: _stored(at) >= fleet.published, 120, "all messages in Pulsar")
    poll_for(lambda: fleet.commands >= commands + written[0], 120, "all commands at their devices")
    time.sleep(2)
    late, messages = list(fleet.late_ms), _stored(at) - stored
    result["messages"], result["commands"] = messages, written[0]
    result |= {f"traffic_{name}_cpu_s": value - before[name] for name, value in tiers.cpu().items()}
    result |= {f"traffic_{name}": value for name, value in tiers.state().items()}
    result["command_p50_ms"], result["command_p99_ms"] = percentile(late, 0.5), percentile(late, 0.99)
    print(
        f"  {messages} messages and {written[0]} commands in {MINUTE_S:.0f} s: command p50 "
        f"{result['command_p50_ms']:.1f} ms, p99 {result['command_p99_ms']:.1f} ms; ingest "
        f"{result['traffic_ingest_cpu_s']:.1f} s of CPU, push {result['traffic_push_cpu_s']:.1f} s; load "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _overload(at: Place, tiers: _Tiers, fleet: LeanDevices, port: int, result: dict[str, float]) -> None:
    """Pulsar's own publish latency beside the usual traffic, and while ingest has more than it can do.

    Pulsar and the probe have a core of their own, as on another machine; everything else shares the others.
    """
    core = (psutil.cpu_count() or 1) - 1
    others = [tiers.ingest, tiers.push, *tiers.brokers, psutil.Process()]
    for process in others if core else ():  # with the devices and the publishers, which are children of this one
        _pin(process, list(range(core)))
    _pin(tiers.pulsar, [core])
    topic = at.settings.pulsar.readings_topic("probe")
    with PulsarAdmin(at.settings.pulsar, timeout_s=30) as admin:
        admin.make(topic, 0)
    url, latencies = at.settings.pulsar.service_url, dict[str, list[float]]()
    usual = threading.Thread(target=fleet.publish, args=(fleet.count / MINUTE_S, OVERLOAD_S + 10))
    usual.start()
    latencies["before"] = publish_latencies_ms(url, topic, rate=PROBE_RATE, seconds=OVERLOAD_S, core=core)
    usual.join()
    done = threading.Event()
    topics = [reading_topic(at.root, n) for n in range(100)]
    flooders = [threading.Thread(target=_flood, args=(port, topics, done, n, result)) for n in range(FLOODERS)]
    for one in flooders:
        one.start()
    time.sleep(5)
    stored, begin, cpu = _stored(at), time.monotonic(), tiers.cpu()
    latencies["overload"] = publish_latencies_ms(url, topic, rate=PROBE_RATE, seconds=OVERLOAD_S, core=core)
    passed = time.monotonic() - begin
    result["overload_stored_rate"] = (_stored(at) - stored) / passed
    result |= {f"overload_{name}_share": (value - cpu[name]) / passed for name, value in tiers.cpu().items()}
    result |= {f"overload_{name}": value for name, value in tiers.state().items()}
    done.set()
    for one in flooders:
        one.join()
    for name, late in latencies.items():
        result[f"pulsar_{name}_p50_ms"], result[f"pulsar_{name}_p99_ms"] = percentile(late, 0.5), percentile(late, 0.99)
    print(
        f"  Pulsar's publish p99 {result['pulsar_before_p99_ms']:.1f} ms beside the usual traffic, "
        f"{result['pulsar_overload_p99_ms']:.1f} ms while ingest is overloaded ({result['overload_stored_rate']:,.0f} "
        f"messages/s stored, {result['flooded']:,.0f} sent)",
        flush=True,
    )


def _pin(process: psutil.Process, cores: list[int]) -> None:
    for one in (process, *process.children(recursive=True)):
        for thread in one.threads():
            os.sched_setaffinity(thread.id, cores)


_BURST = 50_000
_sum = threading.Lock()


def _flood(port: int, topics: list[str], done: threading.Event, number: int, result: dict[str, float]) -> None:
    """Publish as fast as the broker accepts it."""
    load = prepared(topics, first=number * _BURST, count=_BURST)
    while not done.is_set():
        flood("127.0.0.1", port, load)
        with _sum:
            result["flooded"] = result.get("flooded", 0) + _BURST

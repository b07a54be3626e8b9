"""Rate and CPU cost of one ingest worker beside another bridge, in turn, three times; and how long it holds an ack.

Both are flooded through the same MQTT broker and counted in Pulsar: the rate is that of Pulsar's ``msgInCounter``,
the cost utime + stime of the whole process, and each id that the broker acknowledged must be in Pulsar. The worker
runs as users run it: mapping by a rule, envelope, ordered acknowledgements, metrics served. The other bridge is
named by ``BENCH_PEER`` (it takes gobridge's flags); it speaks MQTT 3.1.1 and maps nothing.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bridge.contract import partition_name
from bridge.errors import PulsebridgeError, RefusedError
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import EARLIEST, PulsarClient
from bridge.pulsar.provisioning_plan import subscription_step
from bridge.settings import LocalSettings, PulsarSettings
from pulsebridge.downloads.preflight import find_mosquitto
from pulsebridge.local.ports import free_ports
from pulsebridge.local.stack import LocalStack
from tests.bench.ack_latency import PlayedBroker
from tests.bench.flood import PROPERTIES, Load, Protocol, flood, prepared
from tests.bench.processes import bench_folder, cpu_seconds, pulsebridge, running
from tests.bench.results import Figure, percentile
from tests.support.waiting import poll_for

__all__ = ["measure"]

COUNT = 300_000
ROUNDS = 3
TOPICS = 100
MANY_TOPICS = 10_000
LATENCY_S = 10
PEER = "BENCH_PEER"
RUNNING = "TEST_STACK"
"""Environment variable: ``mqtt://…,pulsar://…,http://…`` of servers that run already; their Pulsar is used."""


@dataclass(frozen=True)
class _Case:
    name: str
    bridge: str
    topics: int = TOPICS
    protocol: Protocol = "3.1.1"
    properties: bytes = b""


CASES = (
    _Case("peer", "peer"),
    _Case("mqtt311", "mqtt311"),
    _Case("mqtt5", "mqtt5", protocol="5"),
    _Case("mqtt5_properties", "mqtt5", protocol="5", properties=PROPERTIES),
    _Case("peer10k", "peer", MANY_TOPICS),
    _Case("topics10k", "mqtt311", MANY_TOPICS),
)


def measure() -> tuple[list[Figure], list[str]]:
    """Return the figures ``ingest.…`` and what was left out."""
    peer = os.environ.get(PEER)
    left_out = [] if peer else [f"another bridge beside ingest: name its binary in {PEER}"]
    with ExitStack() as run:
        folder = run.enter_context(bench_folder())
        place = run.enter_context(_servers(folder, left_out))
        bench = _Bench(place, folder, peer)
        for name in ("mqtt311", "mqtt5", *(("peer",) if peer else ())):
            run.enter_context(bench.bridge(name))
        rates: dict[str, list[float]] = defaultdict(list)
        costs: dict[str, list[float]] = defaultdict(list)
        cases = [case for case in CASES if case.bridge in bench.processes]
        for case in cases:
            bench.flooded(case, COUNT // 3)  # Pulsar's JVM compiles: the first client would pay for all
        for number in range(ROUNDS):
            for case in cases:
                rate, cost = bench.flooded(case, COUNT)
                rates[case.name].append(rate)
                costs[case.name].append(cost)
                print(f"  round {number + 1} {case.name}: {rate:,.0f}/s, {cost:.1f} µs", flush=True)
        bench.compare_ids()
    middle = {name: (statistics.median(rates[name]), statistics.median(costs[name])) for name in rates}
    figures = _figures(middle)
    pace = middle["peer" if peer else "mqtt311"][0] / 2
    with bench_folder() as folder, ExitStack() as run:
        place = run.enter_context(_servers(folder, []))
        figures += _ack_latency(place, folder, peer, pace)
    return figures, left_out


def _figures(middle: dict[str, tuple[float, float]]) -> list[Figure]:
    found = []
    for name in ("mqtt311", "mqtt5", "mqtt5_properties", "topics10k"):
        beside = middle.get("peer10k" if name == "topics10k" else "peer")
        for what, unit, index in (("cpu", "µs", 1), ("rate", "1/s", 0)):
            reference = ("peer bridge", beside[index]) if beside else (None, None)
            found.append(Figure(f"ingest.{name}.{what}", middle[name][index], unit, *reference))
            if name == "mqtt5":  # the default protocol
                found.append(Figure(f"ingest.{what}", middle[name][index], unit, *reference))
    return found


@dataclass(frozen=True)
class _Place:
    """Where the servers are."""

    mqtt_port: int
    pulsar: PulsarSettings


@contextmanager
def _servers(folder: Path, left_out: list[str]) -> Iterator[_Place]:
    with ExitStack() as run:
        mosquitto = find_mosquitto()
        given = os.environ.get(RUNNING, ",,").split(",")
        urls: dict[str, str] = {"pulsar_url": given[1], "admin_url": given[2]} if given[1] else {}
        if mosquitto is None:
            left_out.append("Mosquitto in front: it is not on the PATH, Artemis is used, which is slower")
        else:
            (port,) = free_ports(1)
            (folder / "mosquitto.conf").write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 1000\n"
                "max_queued_messages 1000000\nset_tcp_nodelay true\nlog_dest stderr\nlog_type error\n"
            )
            run.enter_context(
                running(
                    [mosquitto, "-c", str(folder / "mosquitto.conf")],
                    folder / "mosquitto.log",
                    ready=lambda: _listens(port),
                )
            )
            urls["mqtt_url"] = f"mqtt://127.0.0.1:{port}"
        stack = run.enter_context(LocalStack(LocalSettings(quick_start=False, start_timeout="5m", **urls)))
        name = f"bench-{time.monotonic_ns()}"
        pulsar = PulsarSettings(
            service_url=stack.pulsar_url,
            admin_url=stack.admin_url,
            namespace=name,
            system_namespace=f"{name}-system",
        )
        try:
            yield _Place(stack.mqtt_port, pulsar)
        finally:
            if "pulsar_url" in urls:  # not ours alone: leave nothing behind
                _forget(pulsar)


def _forget(pulsar: PulsarSettings) -> None:
    with PulsarAdmin(pulsar, timeout_s=60) as admin, suppress(PulsebridgeError):
        for namespace in (pulsar.namespace, pulsar.system_namespace):
            name = f"{pulsar.tenant}/{namespace}"
            for topic in admin.request("GET", f"/persistent/{name}/partitioned"):
                admin.request("DELETE", f"/{rest_path(topic)}/partitions?force=true")
            for topic in admin.request("GET", f"/persistent/{name}"):
                if "-partition-" not in topic and "__" not in topic:
                    admin.request("DELETE", f"/{rest_path(topic)}?force=true")
            admin.request("DELETE", f"/namespaces/{name}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Bench:
    """The bridges, and what was sent to each."""

    def __init__(self, place: _Place, folder: Path, peer: str | None) -> None:
        self.processes: dict[str, psutil.Process] = {}
        self._place = place
        self._folder = folder
        self._peer = peer
        self._sent: dict[str, int] = defaultdict(int)

    @contextmanager
    def bridge(self, name: str) -> Iterator[None]:
        with (
            PulsarAdmin(self._place.pulsar) as admin,
            started(
                name, self._place, self._folder, self._peer, self._place.mqtt_port, self._arrives(name, admin)
            ) as p,
        ):
            self.processes[name] = p
            yield

    def _arrives(self, name: str, admin: PulsarAdmin) -> Callable[[], bool]:
        def arrives() -> bool:
            self._flood(_Case(name, name, protocol="5" if name == "mqtt5" else "3.1.1"), 10)
            try:
                return _count(admin, topic_of(name, self._place)) > 0
            except RefusedError:  # no such topic yet
                return False

        return arrives

    def _flood(self, case: _Case, count: int) -> None:
        flood("127.0.0.1", self._place.mqtt_port, self._load(case, count))

    def _load(self, case: _Case, count: int) -> Load:
        first = self._sent[case.bridge]
        self._sent[case.bridge] += count
        return prepared(
            [f"{case.bridge}/device-{n:05}" for n in range(case.topics)],
            first=first,
            count=count,
            protocol=case.protocol,
            properties=case.properties,
        )

    def flooded(self, case: _Case, count: int) -> tuple[float, float]:
        """Return messages per second and µs of CPU for each, of one flood after a warm-up over all topics."""
        topic, process = topic_of(case.bridge, self._place), self.processes[case.bridge]
        with PulsarAdmin(self._place.pulsar) as admin:
            self._flood(case, max(case.topics, 5_000))
            _settle(admin, topic)
            sending = threading.Thread(target=flood, args=("127.0.0.1", self._place.mqtt_port, self._load(case, count)))
            before, cpu, started_at = _count(admin, topic), cpu_seconds(process), time.monotonic()
            sending.start()
            poll_for(lambda: _count(admin, topic) - before >= count, 120, f"{count} messages", every=0.05)
            seconds = time.monotonic() - started_at
            sending.join()
            _settle(admin, topic)
            return count / seconds, (cpu_seconds(process) - cpu) / (_count(admin, topic) - before) * 1e6

    def compare_ids(self) -> None:
        """Raise AssertionError unless each bridge has all ids that the broker acknowledged in Pulsar.

        What was sent before its subscription existed is no bridge's: those floods of 10 are left out.
        """
        for name in self.processes:
            found = _ids(self._place.pulsar, topic_of(name, self._place))
            first = min(found)
            missing = set(range(first, self._sent[name])) - found
            assert not missing, f"{name}: {len(missing)} acknowledged messages are not in Pulsar"
            assert first < 1000, f"{name}: the first message in Pulsar is {first}"


def topic_of(name: str, place: _Place) -> str:
    """Return the Pulsar topic that a bridge writes to."""
    return place.pulsar.readings_topic(name)


@contextmanager
def started(
    name: str, place: _Place, folder: Path, peer: str | None, port: int, ready: Callable[[], bool]
) -> Iterator[psutil.Process]:
    """Run one bridge as users run it, metrics served. ``name`` is also the first level of its MQTT topics."""
    log = folder / f"{name}.log"
    if name == "peer":
        assert peer is not None
        with PulsarAdmin(place.pulsar) as admin:
            admin.provision_namespaces()
            admin.make(topic_of(name, place), 0)
            admin.do(subscription_step(topic_of(name, place), "bench"))
        command = [
            peer, "-clean", "-mqtt", f"tcp://127.0.0.1:{port}", "-filter", "peer/#",
            "-pulsar", place.pulsar.service_url, "-topic", topic_of(name, place), "-stat", "0",
        ]  # fmt: skip
    else:
        (metrics,) = free_ports(1)
        config = folder / f"{name}.yaml"
        config.write_text(
            f"mqtt: {{host: 127.0.0.1, port: {port}, client_id: bench-{name}, "
            f"protocol: '{'5' if name == 'mqtt5' else '3.1.1'}'}}\n"
            f"pulsar: {{service_url: '{place.pulsar.service_url}', admin_url: '{place.pulsar.admin_url}', "
            f"namespace: '{place.pulsar.namespace}', system_namespace: '{place.pulsar.system_namespace}'}}\n"
            f"ingest:\n  routes: [{{name: bench, filter: '{name}/+device', topic: {name}, device: '{{device}}'}}]\n"
            f"metrics: {{port: {metrics}}}\n"
        )
        command = pulsebridge("ingest", "--config", str(config))
    with running(command, log, ready=ready) as process:
        yield process


def _partitions(admin: PulsarAdmin, topic: str) -> list[str]:
    count = admin.partition_count(topic)
    return [partition_name(topic, n) for n in range(count)] if count else [topic]


def _count(admin: PulsarAdmin, topic: str) -> int:
    return sum(int(admin.stats(name)["msgInCounter"]) for name in _partitions(admin, topic))


def _ids(settings: PulsarSettings, topic: str) -> set[int]:
    found: set[int] = set()
    with PulsarAdmin(settings) as admin, PulsarClient(settings) as client:
        for name in _partitions(admin, topic):
            reader = client.reader(name, EARLIEST, queue=10_000)
            while reader.has_message_available():
                found.add(int(reader.read_next(30_000).data()[:12]))
            reader.close()
    return found


def _settle(admin: PulsarAdmin, topic: str) -> None:
    seen = [-1, _count(admin, topic)]

    def unchanged() -> bool:
        seen.append(_count(admin, topic))
        return seen[-1] == seen[-2] == seen[-3]

    poll_for(unchanged, 30, f"{topic} to be quiet", every=0.3)


def _ack_latency(place: _Place, folder: Path, peer: str | None, rate: float) -> list[Figure]:
    found: dict[str, list[float]] = {}
    for name in ("mqtt311", "peer") if peer else ("mqtt311",):
        with (
            PlayedBroker.listening() as broker,
            started(name, place, folder, peer, broker.port, broker.subscribed),
        ):
            topics = [f"{name}/device-{n:05}" for n in range(TOPICS)]
            broker.latencies_ms(topics, rate, int(rate * 2))
            found[name] = broker.latencies_ms(topics, rate, int(rate * LATENCY_S))
    return [
        Figure(
            f"ingest.ack_{label}",
            percentile(found["mqtt311"], share),
            "ms",
            *(("peer bridge", percentile(found["peer"], share)) if peer else (None, None)),
        )
        for label, share in (("p50", 0.5), ("p99", 0.99))
    ]

"""Rate and CPU cost of one ingest worker: flooded through the MQTT broker, counted in Pulsar.

The rate is that of Pulsar's own ``msgInCounter``, so only what Pulsar stored counts. Beside it stand the
publisher's own rate in the same run (the limit that broker and load set) and, when the path of a bridge in
another language is given, that bridge's figures, measured in turn.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from bridge.local.stack import LocalStack
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings import LocalSettings, PulsarSettings
from tests.bench.flood import flood
from tests.bench.processes import cpu_seconds, pulsebridge, running
from tests.bench.results import Figure
from tests.support.waiting import poll_for

__all__ = ["measure"]

COUNT = 60_000
TOPICS = 100
PAYLOAD = b"x" * 128
PEER = "PULSEBRIDGE_BENCH_PEER"
"""Environment variable: path of another bridge that takes gobridge's flags (-mqtt -filter -pulsar -topic)."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``ingest.rate`` and ``ingest.cpu``, and what was left out."""
    peer = os.environ.get(PEER)
    with (
        tempfile.TemporaryDirectory(prefix="pulsebridge-bench-") as folder,
        LocalStack(LocalSettings(quick_start=False)) as stack,
    ):
        ours, cost, limit = _ours(stack, Path(folder))
        if peer:
            peer_rate, peer_cost = _peer(stack, peer, Path(folder))
            return [
                Figure("ingest.rate", ours, "1/s", "peer bridge", peer_rate),
                Figure("ingest.cpu", cost, "µs", "peer bridge", peer_cost),
            ], []
    left_out = [f"another bridge beside ingest: name its binary in {PEER}"]
    return [
        Figure("ingest.rate", ours, "1/s", "publisher's acknowledged rate", limit),
        Figure("ingest.cpu", cost, "µs"),
    ], left_out


def _settings(stack: LocalStack) -> PulsarSettings:
    return PulsarSettings(service_url=stack.pulsar_url, admin_url=stack.admin_url)


def _count(admin: PulsarAdmin, topic: str) -> int:
    partitions = max(1, admin.partition_count(topic))
    names = [f"{topic}-partition-{i}" for i in range(partitions)] if admin.partition_count(topic) else [topic]
    return sum(int(admin.stats(name)["msgInCounter"]) for name in names)


def _ours(stack: LocalStack, folder: Path) -> tuple[float, float, float]:
    config = folder / "bench.yaml"
    config.write_text(
        f"mqtt: {{host: {stack.mqtt_host}, port: {stack.mqtt_port}, client_id: bench-ingest}}\n"
        f"pulsar: {{service_url: '{stack.pulsar_url}', admin_url: '{stack.admin_url}'}}\n"
        "ingest:\n  rules: [{name: bench, filter: 'bench/+device', topic: bench, device: '{device}'}]\n"
    )
    settings = _settings(stack)
    topic = settings.readings_topic("bench")
    with PulsarAdmin(settings) as admin:
        warm = [f"bench/{i}" for i in range(TOPICS)]

        def arrives() -> bool:
            flood(stack.mqtt_host, stack.mqtt_port, topics=warm, count=10, payload=PAYLOAD)
            return admin.partition_count(topic) > 0 and _count(admin, topic) > 0

        with running(
            pulsebridge("ingest", "--config", str(config)), folder / "ingest.log", ready=arrives
        ) as process:
            return _timed(stack, admin, topic, warm, process)


def _peer(stack: LocalStack, binary: str, folder: Path) -> tuple[float, float]:
    topic = "persistent://public/default/bench-peer"
    command = [
        binary, "-clean", "-mqtt", f"tcp://{stack.mqtt_host}:{stack.mqtt_port}", "-filter", "peer/#",
        "-pulsar", stack.pulsar_url, "-topic", topic, "-stat", "0",
    ]  # fmt: skip
    topics = [f"peer/{i}" for i in range(TOPICS)]
    with PulsarAdmin(_settings(stack)) as admin:
        admin.create_subscription(topic, "bench")

        def arrives() -> bool:
            flood(stack.mqtt_host, stack.mqtt_port, topics=topics, count=10, payload=PAYLOAD)
            return _count(admin, topic) > 0

        with running(command, folder / "peer.log", ready=arrives) as process:
            rate, cost, _ = _timed(stack, admin, topic, topics, process)
            return rate, cost


def _timed(stack, admin, topic, topics, process) -> tuple[float, float, float]:  # type: ignore[no-untyped-def]
    _settle(admin, topic)
    before, cpu, started = _count(admin, topic), cpu_seconds(process), time.monotonic()
    publisher: list[float] = []
    load = threading.Thread(
        target=lambda: publisher.append(
            flood(stack.mqtt_host, stack.mqtt_port, topics=topics, count=COUNT, payload=PAYLOAD).rate
        )
    )
    load.start()
    poll_for(lambda: _count(admin, topic) - before >= COUNT, 120, f"{COUNT} messages in {topic}", every=0.05)
    seconds = time.monotonic() - started
    load.join()
    stored = _count(admin, topic) - before
    return stored / seconds, (cpu_seconds(process) - cpu) / stored * 1e6, publisher[0]


def _settle(admin: PulsarAdmin, topic: str) -> None:
    seen = [-1, _count(admin, topic)]

    def unchanged() -> bool:
        seen.append(_count(admin, topic))
        return seen[-1] == seen[-2] == seen[-3]

    poll_for(unchanged, 30, f"{topic} to be quiet", every=0.5)

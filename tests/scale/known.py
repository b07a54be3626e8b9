"""Push with many devices that it knows, some of them parked, with a real Pulsar: memory, takeovers, compaction.

The records of known devices are written as a former owner would have written them at a low rate, one an entry. The parked
commands are real: push itself parks them. The figures are those of one push process with four partitions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from bridge.contract import CURSORS_TOPIC, partition_name
from bridge.contract.cursors import TERM_KEY, Term, term_record
from bridge.contract.tagged_positions import new_secret
from bridge.errors import RefusedError
from bridge.mqtt.device import DeviceClient
from bridge.mqtt.types import Message
from bridge.pulsar.admin import PulsarAdmin, rest_path
from bridge.pulsar.client import PulsarClient
from bridge.pulsar.wire.batches import head_of
from bridge.pulsar.wire.commands import WireError
from pulsebridge.local.ports import free_ports
from tests.bench.processes import bench_folder, cpu_seconds
from tests.bench.push import Place, place
from tests.bench.push_parked import announce_absence, parked_commands
from tests.scale.known_memory import EACH, PARTITIONS
from tests.scale.records import cursor_record, devices_of
from tests.support.command_writer import write_many
from tests.support.endpoint import Endpoint
from tests.support.memory import peak_memory
from tests.support.waiting import poll_for

__all__ = ["direct", "with_pulsar"]

_UNDER_WAY = 2000
_PATIENCE_S = 200.0
"""A takeover that takes longer is not waited for: other work on the machine may slow it down."""
_LOOKS_S = 65.0
"""Pulsar looks once a minute whether a topic is to be compacted."""
_IDLE = 50
"""One of so many known devices gets a command, and has nothing to do afterwards."""


def direct(known: int, parked: int) -> dict[str, float]:
    """Measure the core alone, in a process of its own."""
    command = [sys.executable, "-m", "tests.scale.known_memory", str(known), str(parked)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def with_pulsar(known: int, parked: int) -> dict[str, float]:
    """Measure push: the takeover of ``known`` devices, then with ``parked`` of them parked, before and after compaction."""
    (port,) = free_ports(1)
    os.environ.setdefault("BENCH_MQTT", "mosquitto")
    with bench_folder() as folder, place(folder, metrics_port=port) as at:
        found: dict[str, float] = {"known": known, "parked": parked, "parked_commands": parked * EACH}
        with _taken_over(at, "empty", found):
            pass
        found["write_s"] = _write_cursors(at, known)
        _await_compaction(at)
        with _taken_over(at, "known", found) as process:
            _park(at, Endpoint(port), process, parked, found)
            process.kill()
        _await_compaction(at)
        with _taken_over(at, "parked", found) as process:
            _command_some(at, process, known, parked, found)
        found |= _compact(at)
        _await_compaction(at)
        with _taken_over(at, "compacted", found):
            pass
    return found


@contextmanager
def _taken_over(at: Place, name: str, found: dict[str, float]) -> Iterator[psutil.Process]:
    """Start push, and note what the takeover of all its partitions takes, from the start of the process on."""
    begin = time.monotonic()
    with at.push(name, within_s=_PATIENCE_S) as process:
        found[f"takeover_{name}_s"] = time.monotonic() - begin
        found[f"takeover_{name}_cpu_s"] = cpu_seconds(process)
        found[f"bytes_{name}"] = process.memory_info().rss
        found[f"peak_bytes_{name}"] = peak_memory(process.pid)
        print(
            f"  {name}: taken over in {found[f'takeover_{name}_s']:.1f} s with {found[f'takeover_{name}_cpu_s']:.1f} s of "
            f"CPU; {process.memory_info().rss / 1e6:.0f} MB, at most {found[f'peak_bytes_{name}'] / 1e6:.0f} MB; load "
            f"{os.getloadavg()[0]:.1f}",
            flush=True,
        )
        yield process


@dataclass(frozen=True, slots=True)
class _Record:
    payload: bytes
    head: bytes
    event_ms: int = 0


def _write_cursors(at: Place, known: int) -> float:
    """Write a cursor of each device. Returns how long that took, in seconds."""
    begin, now_us = time.monotonic(), time.time_ns() // 1000
    room, failed = threading.Semaphore(_UNDER_WAY), list[WireError]()

    def stored(error: WireError | None) -> None:
        failed.extend([error] if error else [])
        room.release()

    topic = at.settings.pulsar.system_topic(CURSORS_TOPIC)
    with PulsarClient(at.settings.pulsar) as client:
        for partition in range(PARTITIONS):
            producer = client.batch_producer(partition_name(topic, partition))
            room.acquire()
            producer.send(
                [_Record(term_record(Term(new_secret())), head_of(TERM_KEY, {}))], stored
            )  # as a former owner
            for number in devices_of(partition, PARTITIONS, range(known)):
                key, payload = cursor_record(number, now_us)
                assert room.acquire(timeout=60), "Pulsar does not answer"
                producer.send([_Record(payload, head_of(key, {}))], stored)
            for _ in range(_UNDER_WAY):
                assert room.acquire(timeout=60), "Pulsar does not answer"
            room.release(_UNDER_WAY)
            producer.close()
    assert not failed, failed[0]
    return time.monotonic() - begin


def _park(at: Place, endpoint: Endpoint, process: psutil.Process, parked: int, found: dict[str, float]) -> None:
    begin, cpu = time.monotonic(), cpu_seconds(process)
    announce_absence(at, parked)
    write_many(at.settings, (at.command(n // EACH, n % EACH) for n in range(parked * EACH)), timeout_s=600)
    poll_for(lambda: parked_commands(endpoint) == parked * EACH, 120 + parked / 50, "all commands parked", every=0.5)
    found["park_s"], found["park_cpu_s"] = time.monotonic() - begin, cpu_seconds(process) - cpu
    found["bytes_after_parking"] = process.memory_info().rss
    found["peak_bytes_parking"] = peak_memory(process.pid)
    print(
        f"  {parked * EACH} commands parked in {found['park_s']:.0f} s with {found['park_cpu_s']:.0f} s of CPU; "
        f"{found['bytes_after_parking'] / 1e6:.0f} MB, at most {found['peak_bytes_parking'] / 1e6:.0f} MB",
        flush=True,
    )


def _command_some(at: Place, process: psutil.Process, known: int, parked: int, found: dict[str, float]) -> None:
    """Send a command to some of the known devices that are connected; one client subscribes for all of them."""
    some = range(parked, known, _IDLE)
    arrived: set[str] = set()

    def got(message: Message) -> None:
        arrived.add(message.topic)

    before, cpu = process.memory_info().rss, cpu_seconds(process)
    mqtt = at.settings.mqtt
    with DeviceClient(mqtt, f"{mqtt.client_id}-all", on_message=got) as client:
        client.subscribe(f"{at.root}/cmd/#")
        write_many(at.settings, (at.command(number, 100) for number in some))
        wanted = {at.command(number, 100).mqtt_topic for number in some}
        poll_for(lambda: wanted <= arrived, 300, "a command at each device", every=0.5)
        time.sleep(3)
        found["commanded"] = len(some)
        found["peak_bytes_commanded"] = peak_memory(process.pid)
        found["command_cpu_us"] = (cpu_seconds(process) - cpu) / len(arrived) * 1e6
        found["bytes_idle"] = process.memory_info().rss
    print(
        f"  {len(some)} devices got a command: {before / 1e6:.0f} MB before, {found['bytes_idle'] / 1e6:.0f} MB after",
        flush=True,
    )


def _compact(at: Place) -> dict[str, float]:
    """Compact the cursors partitions, one after the other. Returns what that takes, and their sizes."""
    topic, found = at.settings.pulsar.system_topic(CURSORS_TOPIC), {"cursors_bytes": 0.0, "compacted_bytes": 0.0}
    servers = [psutil.Process(pid) for pid in at.pids.values()]
    begin, cpu = time.monotonic(), sum(map(cpu_seconds, servers))
    with PulsarAdmin(at.settings.pulsar, timeout_s=60) as admin:
        for number in range(PARTITIONS):
            partition = partition_name(topic, number)
            found["cursors_bytes"] += _size(admin, partition)
            path = f"/{rest_path(partition)}/compaction"
            poll_for(
                lambda path=path: _begun(admin, path), 600, "the compaction that Pulsar began by itself", every=0.5
            )  # type: ignore[misc]
            poll_for(lambda path=path: _compacted(admin.request("GET", path)), 600, "the compaction", every=0.5)  # type: ignore[misc]
            ledger = admin.internal_stats(partition)["compactedLedger"]
            found["compacted_bytes"] += ledger["size"]
    found["compaction_s"] = time.monotonic() - begin
    found["compaction_cpu_s"] = sum(map(cpu_seconds, servers)) - cpu
    print(f"  compacted in {found['compaction_s']:.1f} s", flush=True)
    return found


def _await_compaction(at: Place) -> None:
    """Wait until Pulsar has compacted, so that it has nothing else to do when push takes over."""
    paths = [
        f"/{rest_path(partition_name(at.settings.pulsar.system_topic(CURSORS_TOPIC), number))}/compaction"
        for number in range(PARTITIONS)
    ]
    time.sleep(_LOOKS_S)
    with PulsarAdmin(at.settings.pulsar, timeout_s=60) as admin:
        poll_for(
            lambda: all(admin.request("GET", path)["status"] != "RUNNING" for path in paths),
            600, "the end of the compaction", every=0.5,
        )  # fmt: skip


def _size(admin: PulsarAdmin, partition: str) -> float:
    return float(admin.stats(partition)["storageSize"])


def _begun(admin: PulsarAdmin, path: str) -> bool:
    try:
        admin.request("PUT", path)
    except RefusedError as e:
        if "already in progress" in e.what:
            return False
        raise
    return True


def _compacted(status: Any) -> bool:
    assert status["status"] != "ERROR", status
    return bool(status["status"] == "SUCCESS")

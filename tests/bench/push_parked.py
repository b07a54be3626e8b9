"""Push with commands for 100,000 devices that are away: memory, restart, and a thousand of them that wake at once.

Their absence is announced as a will announces it; the commands are written in the order of the devices, ten each. Live
devices get commands meanwhile, open loop, before the others wake and while they do.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from bridge.local.ports import free_ports
from tests.bench.processes import cpu_seconds
from tests.bench.push import Place, latencies_ms, place, write_open_loop
from tests.bench.results import Figure, percentile
from tests.support import mqtt_packets as mqtt
from tests.support.command_writer import write_many
from tests.support.device_fleet import DeviceEvent, device_name, status_topic
from tests.support.device_processes import DeviceProcesses, device_processes
from tests.support.endpoint import Endpoint
from tests.support.folders import own_folder
from tests.support.waiting import poll_for

__all__ = ["measure"]

PARKED: Final = "PULSEBRIDGE_BENCH_PARKED"
"""Environment variable: devices that are away, 100,000 by default."""
EACH: Final = 10
WAKING: Final = 1000
LIVE: Final = 100
LIVE_RATE: Final = 50
LIVE_S: Final = 20.0
MEMORY: Final = 400 * 1024 * 1024
RESTART_MS: Final = 30_000
_WINDOW: Final = 1000
_HEAP_MB: Final = 2048
"""Of the MQTT broker: each device has topics of its own."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``push.parked_bytes`` (peak memory of the worker), ``push.parked_restart``, and what waking does."""
    away = int(os.environ.get(PARKED, "100000"))
    waking = min(WAKING, away)
    (port,) = free_ports(1)
    with (
        own_folder("bench") as folder,
        place(folder, metrics_port=port, mqtt_heap_mb=_HEAP_MB) as at,
        ExitStack() as run,
    ):
        fleets = []
        for name, spec in (("away", at.fleet(waking, sleeping=waking)), ("live", at.fleet(LIVE, first=away))):
            (folder / name).mkdir()
            fleets.append(run.enter_context(device_processes(spec, folder / name)))
        sleepers, live = fleets
        live.all_there()
        parked = _park(at, Endpoint(port), away)
        restart, restarted = _wake(at, sleepers, live, away, waking)
    before, during, replayed = restarted
    return [
        Figure("push.parked_bytes", max(parked, restart[0]), "bytes", "the bar", MEMORY),
        Figure("push.parked_restart", restart[1], "ms", "the bar", RESTART_MS),
        Figure("push.waking.live_p99", during, "ms", "live p99 before", before),
        Figure("push.waking.rate", replayed, "1/s", "push.replay_rate of all partitions", _shaped(at)),
    ], []


def _shaped(at: Place) -> float:
    return float(at.settings.push.replay_rate * at.settings.pulsar.command_partitions)


def _park(at: Place, endpoint: Endpoint, away: int) -> float:
    """Have push park all commands of all that are away. Returns its peak memory, in bytes; it is killed then."""
    with at.push("parking") as process:
        begin, empty = time.monotonic(), process.memory_info().rss
        _announce(at, away)
        wrote = write_many(
            at.settings, (at.command(n // EACH, n % EACH) for n in range(away * EACH)), timeout_s=300
        )
        print(f"  {away * EACH} commands written in {wrote:.0f} s", flush=True)
        poll_for(lambda: _parked(endpoint) == away * EACH, 900, "all commands parked", every=0.5)
        took, peak, now = time.monotonic() - begin, _peak(process), process.memory_info().rss
        print(
            f"  parked in {took:.0f} s with {cpu_seconds(process):.0f} s of CPU; memory {empty / 2**20:.0f} MiB before, "
            f"{now / 2**20:.0f} MiB now, at most {peak / 2**20:.0f} MiB; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        process.kill()
    return peak


def _parked(endpoint: Endpoint) -> int:
    return int(sum(s.value for s in endpoint.samples() if s.name == "pulsebridge_push_parked"))


def _wake(
    at: Place, sleepers: DeviceProcesses, live: DeviceProcesses, away: int, waking: int
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """Start push anew, then have some wake.

    Returns its peak memory in bytes and the time to its first delivery in ms; the p99 of live commands before and while
    devices wake, in ms, and how many commands a second those got.
    """
    write_many(at.settings, [at.command(away, 0)])
    began = time.time()
    with at.push("restarted") as process:
        poll_for(live.arrivals, 120, "a first delivery")
        first = next(event.at for event in live.events() if event.kind == "R")
        print(f"  first delivery {first / 1e6 - began:.1f} s after the restart", flush=True)
        done = threading.Event()
        devices = range(away, away + LIVE)
        start = time.time()
        write_open_loop(at, devices, rate=LIVE_RATE, seconds=LIVE_S, first=1)
        written: list[int] = []
        writer = threading.Thread(
            target=lambda: written.append(
                write_open_loop(at, devices, rate=LIVE_RATE, seconds=600, first=100_000, stop=done)
            )
        )
        woken = time.time()
        sleepers.order(f"wake {waking}")
        writer.start()
        try:
            poll_for(lambda: sleepers.arrivals() >= waking * EACH, 300, "all parked commands", every=0.2)
        finally:
            over = time.time()
            done.set()
            writer.join()
        peak = _peak(process)
        print(
            f"  woke {waking} in {over - woken:.1f} s; memory {process.memory_info().rss / 2**20:.0f} MiB, at most "
            f"{peak / 2**20:.0f} MiB; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        wanted = 1 + int(LIVE_RATE * LIVE_S) + written[0]
        poll_for(lambda: live.arrivals() >= wanted, 60, "the last live commands", every=0.5)
    before = latencies_ms(live.events(), since=start, until=woken)
    during = latencies_ms(live.events(), since=woken, until=over)
    replayed = _in_order(list(sleepers.events()))
    return (float(peak), (first / 1e6 - began) * 1000), (
        percentile(before, 0.99),
        percentile(during, 0.99),
        replayed,
    )


def _in_order(events: list[DeviceEvent]) -> float:
    """Check that each woken device got its ten in order; return how many came in a second, in all."""
    got: dict[int, list[int]] = defaultdict(list)
    times = []
    for event in events:
        if event.kind == "R":
            got[event.device].append(int(event.number.split(":")[0]))
            times.append(event.at)
    wrong = {device: numbers for device, numbers in got.items() if numbers != list(range(EACH))}
    assert not wrong, f"{len(wrong)} devices got their commands in another order: {list(wrong.items())[:3]}"
    return (len(times) - 1) / ((max(times) - min(times)) / 1e6)


def _peak(process: psutil.Process) -> int:
    """Return the most memory that a process ever had resident, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def _announce(at: Place, away: int) -> None:
    """Publish for each device that it is gone, and wait until the broker has all of it."""
    host, port = at.settings.mqtt.host, at.settings.mqtt.port
    acknowledged = 0
    received = bytearray()
    with socket.create_connection((host, port), timeout=60) as sock:
        sock.sendall(mqtt.connect(f"{at.root}-wills", "3.1.1", clean=True, keep_alive=0))
        sent = 0
        connected = False
        while acknowledged < away:
            data = sock.recv(65536)
            assert data, "the MQTT broker closed the connection"
            received += data
            for first, _ in mqtt.split(received):
                acknowledged += first == mqtt.PUBACK
                connected = connected or first == mqtt.CONNACK
            if connected:
                end = min(away, acknowledged + _WINDOW)
                topics = (status_topic(at.root, device_name(n)).encode() for n in range(sent, end))
                sock.sendall(
                    b"".join(
                        mqtt.publish("3.1.1", topic, b"offline", (sent + n) % 60_000 + 1)
                        for n, topic in enumerate(topics)
                    )
                )
                sent = end

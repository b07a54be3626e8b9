"""Push with commands for 100,000 devices that are away: memory, restart, and a thousand of them that wake at once.

Their absence is announced like a will; the commands are written in the order of the devices, ten each. Live
devices get commands meanwhile, open loop: while no device connects; while a thousand connect silently, which shows the cost
of so many connections for the MQTT broker and the machine; and while the thousand wake: within five seconds they
report that they are online.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from pulsebridge.local.ports import free_ports
from tests.bench.processes import bench_folder, cpu_seconds
from tests.bench.push import Place, latencies_ms, place, write_open_loop
from tests.bench.results import Figure, percentile
from tests.support import mqtt_packets as mqtt
from tests.support.command_writer import write_many
from tests.support.device_fleet import DeviceEvent, device_name, status_topic
from tests.support.device_processes import DeviceProcesses, device_processes
from tests.support.endpoint import Endpoint
from tests.support.waiting import poll_for

__all__ = ["announce_absence", "measure", "parked_commands"]

PARKED: Final = "BENCH_PARKED"
"""Environment variable: devices that are away, 100,000 by default."""
EACH: Final = 10
WAKING: Final = 1000
LIVE: Final = 100
LIVE_RATE: Final = 50
LIVE_S: Final = 20.0
CONNECTING_S: Final = 30.0
SETTLE_S: Final = 20.0
"""After a restart each device that is away is looked at once within half a minute."""
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
        bench_folder() as folder,
        place(folder, metrics_port=port, mqtt_heap_mb=_HEAP_MB) as at,
        ExitStack() as run,
    ):
        fleets = []
        for name, spec in (
            ("away", at.fleet(waking, sleeping=waking)),
            ("live", at.fleet(LIVE, first=away)),
        ):
            (folder / name).mkdir()
            fleets.append(run.enter_context(device_processes(spec, folder / name)))
        fleets[1].all_there()
        parked = _park(at, Endpoint(port), away)
        found = _wake(at, _Fleets(*fleets), away, waking)
    before, connecting, during = found.live_p99
    return [
        Figure("push.parked_bytes", max(parked, found.peak), "bytes", "the bar", MEMORY),
        Figure("push.parked_restart", found.restart_ms, "ms", "the bar", RESTART_MS),
        Figure("push.connecting.live_p99", connecting, "ms", "live p99 while no device connects", before),
        Figure("push.waking.live_p99", during, "ms", "live p99 while no device connects", before),
        Figure("push.waking.rate", found.rate, "1/s", "push.offline.replay_rate of all partitions", _shaped(at)),
    ], []


class _Fleets(NamedTuple):
    sleepers: DeviceProcesses
    live: DeviceProcesses


class _Found(NamedTuple):
    peak: float
    restart_ms: float
    live_p99: list[float]
    """In ms: while no device connects, while devices connect, while they wake."""
    rate: float


def _shaped(at: Place) -> float:
    return float(at.settings.push.offline.replay_rate * at.settings.pulsar.command_partitions)


def _park(at: Place, endpoint: Endpoint, away: int) -> float:
    """Have push park all commands of all that are away. Returns its peak memory, in bytes; it is killed then."""
    with at.push("parking") as process:
        begin, empty = time.monotonic(), process.memory_info().rss
        announce_absence(at, away)
        wrote = write_many(at.settings, (at.command(n // EACH, n % EACH) for n in range(away * EACH)), timeout_s=300)
        print(f"  {away * EACH} commands written in {wrote:.0f} s", flush=True)
        poll_for(lambda: parked_commands(endpoint) == away * EACH, 900, "all commands parked", every=0.5)
        took, peak, now = time.monotonic() - begin, _peak(process), process.memory_info().rss
        print(
            f"  parked in {took:.0f} s with {cpu_seconds(process):.0f} s of CPU; memory {empty / 2**20:.0f} MiB before, "
            f"{now / 2**20:.0f} MiB now, at most {peak / 2**20:.0f} MiB; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        process.kill()
    return peak


def parked_commands(endpoint: Endpoint) -> int:
    return int(sum(s.value for s in endpoint.samples() if s.name == "pulsebridge_push_parked"))


def _wake(at: Place, fleets: _Fleets, away: int, waking: int) -> _Found:
    """Restart push, let some devices connect, then wake."""
    sleepers, live = fleets
    write_many(at.settings, [at.command(away, 0)])
    began = time.time()
    with at.push("restarted") as process, ExitStack() as run:
        poll_for(live.arrivals, 120, "a first delivery")
        first = next(event.at for event in live.events() if event.kind == "R")
        print(f"  first delivery {first / 1e6 - began:.1f} s after the restart", flush=True)
        time.sleep(SETTLE_S)
        written = run.enter_context(_live_commands(at, range(away, away + LIVE)))
        times = [time.time()]
        time.sleep(LIVE_S)
        times.append(time.time())
        sleepers.order(f"connect {waking}")
        time.sleep(CONNECTING_S)
        sleepers.all_there()
        times.append(time.time())
        sleepers.order(f"wake {waking}")
        poll_for(lambda: sleepers.arrivals() >= waking * EACH, 300, "all parked commands", every=0.2)
        times.append(time.time())
        run.close()
        peak = _peak(process)
        print(
            f"  woke {waking} in {times[-1] - times[-2]:.1f} s; memory {process.memory_info().rss / 2**20:.0f} MiB, at "
            f"most {peak / 2**20:.0f} MiB; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        poll_for(lambda: live.arrivals() >= 1 + written[0], 60, "the last live commands", every=0.5)
    late = [latencies_ms(live.events(), since=a, until=b) for a, b in pairwise(times)]
    for name, one in zip(("no device connects", "devices connect", "they wake"), late, strict=True):
        print(
            f"  live while {name}: {len(one)} commands, p50 {percentile(one, 0.5):.1f} ms, "
            f"p99 {percentile(one, 0.99):.1f} ms, at most {max(one):.0f} ms",
            flush=True,
        )
    p99 = [percentile(one, 0.99) for one in late]
    return _Found(float(peak), (first / 1e6 - began) * 1000, p99, _in_order(list(sleepers.events()), times[-2]))


@contextmanager
def _live_commands(at: Place, devices: range) -> Iterator[list[int]]:
    """Write commands to ``devices``, open loop, until the block ends; then the list has how many."""
    done, written = threading.Event(), list[int]()

    def write() -> None:
        written.append(write_open_loop(at, devices, rate=LIVE_RATE, seconds=900, first=1, stop=done))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        done.set()
        writer.join()


def _in_order(events: list[DeviceEvent], woken: float) -> float:
    """Check that each woken device got its ten in order; return how many came in a second, in all. A probe may have found
    a few of them before they were ``woken``.
    """
    got: dict[int, list[int]] = defaultdict(list)
    times = []
    for event in events:
        if event.kind == "R":
            got[event.device].append(int(event.number.split(":")[0]))
            if event.at >= woken * 1e6:
                times.append(event.at)
    wrong = {device: numbers for device, numbers in got.items() if numbers != list(range(EACH))}
    assert not wrong, f"{len(wrong)} devices got their commands in another order: {list(wrong.items())[:3]}"
    return (len(times) - 1) / ((max(times) - min(times)) / 1e6)


def _peak(process: psutil.Process) -> int:
    """Return the most memory that a process ever had resident, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def announce_absence(at: Place, away: int) -> None:
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

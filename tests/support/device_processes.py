"""Fleets of devices in processes of their own: start them, control them, and read their logs at the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.device_fleet import DeviceEvent, FleetSpec, read_log
from tests.support.waiting import patient, poll_for

__all__ = ["DeviceProcesses", "device_processes"]


class DeviceProcesses:
    """Fleets that live together: each has its share of the devices."""

    def __init__(self, spec: FleetSpec, folder: Path, count: int) -> None:
        self._count = spec.count
        self._logs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._there = [0] * count
        share = -(-spec.count // count)
        for number in range(count):
            first = number * share
            place = folder / f"devices-{number}"
            place.mkdir()
            sleeping = min(max(0, spec.sleeping - first), share)
            own = replace(
                spec,
                first=spec.first + first,
                count=min(share, spec.count - first),
                seed=spec.seed + number,
                sleeping=sleeping,
            )
            own.write(place)
            self._logs.append(place / "devices.log")
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.device_fleet", str(place)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            threading.Thread(target=self._listen, args=(number,), daemon=True).start()

    def _listen(self, number: int) -> None:
        out = self._processes[number].stdout
        assert out is not None
        for line in out:
            self._there[number] = int(line.split()[1])
        self._there[number] = -1

    @property
    def there(self) -> int:
        """How many devices are connected and subscribed; raises RuntimeError when a fleet has ended by itself."""
        if min(self._there) < 0:
            raise RuntimeError("a fleet of devices has ended; see its standard error")
        return sum(self._there)

    def order(self, words: str) -> None:
        """Tell all fleets something: see ``device_fleet``."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{words}\n".encode())
            process.stdin.flush()

    def all_there(self, count: int | None = None, timeout: float = 120) -> None:
        """Wait until ``count`` devices are there, by default all."""
        wanted = self._count if count is None else count
        poll_for(lambda: self.there >= wanted, timeout, f"{wanted} devices at the MQTT broker")

    def events(self) -> Iterator[DeviceEvent]:
        """Read what all of them have logged so far."""
        for log in self._logs:
            if log.exists():
                yield from read_log(log)

    def arrivals(self) -> int:
        """Count the commands that arrived so far, repetitions included."""
        return sum(log.read_text().count("\tR\t") for log in self._logs if log.exists())

    def stop(self) -> None:
        """End the processes: a fleet ends with its standard input."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(patient(10))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def device_processes(spec: FleetSpec, folder: Path, count: int = 1) -> Iterator[DeviceProcesses]:
    """Run fleets until the block ends."""
    made = DeviceProcesses(spec, folder, count)
    try:
        yield made
    finally:
        made.stop()

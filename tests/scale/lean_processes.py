"""Processes of lean devices, one for each MQTT broker: start them, have them publish, and add up what they report."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.scale.lean_devices import LeanSpec
from tests.support.waiting import poll_for

__all__ = ["LeanDevices", "lean_devices"]


@dataclass
class _Process:
    child: subprocess.Popen[bytes]
    there: int = 0
    ended: bool = False
    done: int = 0


@dataclass
class LeanDevices:
    """All devices. The counts are of everything since they connected."""

    count: int
    published: int = 0
    acknowledged: int = 0
    commands: int = 0
    late_ms: list[float] = field(default_factory=list)
    processes: list[_Process] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, spec: LeanSpec) -> None:
        """Connect the devices of one broker, in a process of their own."""
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.scale.lean_devices", spec.encode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        process = _Process(child)
        self.processes.append(process)
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: _Process) -> None:
        assert process.child.stdout is not None
        for line in process.child.stdout:
            report = json.loads(line)
            with self._lock:
                process.there = report.get("there", process.there)
                process.done += "done" in report
                self.published += report.get("published", 0)
                self.acknowledged += report.get("acknowledged", 0)
                self.commands += report.get("commands", 0)
                self.late_ms += report.get("late_ms", ())
        process.ended = True

    @property
    def there(self) -> int:
        """How many devices are connected and subscribed. Raises RuntimeError if a process has ended."""
        if any(one.ended for one in self.processes):
            raise RuntimeError("a process of devices has ended; see its standard error")
        return sum(one.there for one in self.processes)

    def all_there(self) -> None:
        """Wait until all devices are connected."""
        poll_for(lambda: self.there >= self.count, 600, f"{self.count} devices at the MQTT brokers", every=0.5)

    def publish(self, rate: float, seconds: float) -> None:
        """Have the devices publish in turn, all of them together ``rate`` messages a second; waits for the end."""
        before = [one.done for one in self.processes]
        for one in self.processes:
            assert one.child.stdin is not None
            one.child.stdin.write(f"publish {rate / len(self.processes)} {seconds}\n".encode())
            one.child.stdin.flush()
        poll_for(
            lambda: self.there and all(one.done > was for one, was in zip(self.processes, before, strict=True)),
            seconds + 300,
            "the devices' publishes",
            every=0.2,
        )


@contextmanager
def lean_devices(root: str, ports: Sequence[int], count: int) -> Iterator[LeanDevices]:
    """Connect devices until the block ends, as many at each broker. They are not there at once."""
    devices = LeanDevices(count)
    share = -(-count // len(ports))
    try:
        for number, port in enumerate(ports):
            first = number * share
            devices.start(LeanSpec("127.0.0.1", port, root, first, min(share, count - first)))
        yield devices
    finally:
        for one in devices.processes:
            one.child.kill()
            one.child.wait()

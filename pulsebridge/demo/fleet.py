"""Replays the timeline over the devices and keeps count; the shell around ``schedule`` and ``device``.

One thread sends what is due; each device's connection has its own. The fleet ends when every publish is
acknowledged and it is told to stop: until then it goes on taking commands.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bridge.settings.mqtt import MqttSettings
from pulsebridge.demo.device import Device, now_us
from pulsebridge.demo.journal import Journal
from pulsebridge.demo.recordings import VirtualDevice
from pulsebridge.demo.schedule import Send

__all__ = ["STATUS_FILE", "Fleet", "FleetStatus", "read_status", "write_status"]

STATUS_FILE = "fleet.json"
"""Written beside the journals about four times a second, whole or not at all."""


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Counts of the fleet at one moment."""

    us: int = 0
    devices: int = 0
    published: int = 0
    acknowledged: int = 0
    refused: int = 0
    commands: int = 0
    distinct_commands: int = 0
    reconnects: int = 0
    sent_all: bool = False


class Fleet:
    """Devices on their own connections, started together. Use as a context manager."""

    def __init__(
        self,
        devices: Sequence[VirtualDevice],
        settings: MqttSettings,
        journals: Path,
        *,
        client_prefix: str = "sim-",
    ) -> None:
        self.devices = [Device(d, settings, Journal(journals, d.name), client_prefix) for d in devices]
        self.sent_all = False
        self.ready = 0
        """Devices that are connected and subscribed."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        for device in self.devices:
            device.stop()

    def start(self, timeout_s: float) -> None:
        """Connect and subscribe every device. Raises TransientError or RefusedError when one cannot."""
        for device in self.devices:
            device.start(timeout_s)
            self.ready += 1

    def replay(self, sends: Sequence[Send], stop: threading.Event, tick: Callable[[], None]) -> None:
        """Send everything when it is due; returns early when ``stop`` is set. ``tick`` is called now and then."""
        started = time.monotonic()
        position = 0
        while position < len(sends) and not stop.is_set():
            now = time.monotonic() - started
            while position < len(sends) and sends[position].due_s <= now:
                send = sends[position]
                self.devices[send.device].send(send)
                position += 1
            tick()
            if position < len(sends):
                stop.wait(min(0.05, max(0.0, sends[position].due_s - (time.monotonic() - started))))
        self.sent_all = position == len(sends)

    def status(self) -> FleetStatus:
        """Return the counts of now. Raises what ended a device's connection for good."""
        for device in self.devices:
            device.check()
        d = self.devices
        return FleetStatus(
            us=now_us(),
            devices=self.ready,
            published=sum(x.published for x in d),
            acknowledged=sum(x.acknowledged for x in d),
            refused=sum(x.refused for x in d),
            commands=sum(x.commands for x in d),
            distinct_commands=sum(len(x.command_ids) for x in d),
            reconnects=sum(x.reconnects for x in d),
            sent_all=self.sent_all,
        )


def write_status(folder: Path, status: FleetStatus) -> None:
    """Write the status file, whole or not at all."""
    partial = folder / f".{STATUS_FILE}"
    partial.write_text(json.dumps(asdict(status)), encoding="utf-8")
    partial.replace(folder / STATUS_FILE)


def read_status(folder: Path) -> FleetStatus:
    """Read the status file; all counts are 0 before there is one."""
    try:
        return FleetStatus(**json.loads((folder / STATUS_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return FleetStatus()

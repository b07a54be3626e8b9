"""``pulsebridge simulate``: the fleet as a process of its own, with its journals and its status file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from bridge.settings.mqtt import MqttSettings
from pulsebridge.demo.fleet import Fleet, FleetStatus, write_status
from pulsebridge.demo.plan import Scale, make_devices
from pulsebridge.demo.recordings import BUOY, GLUCOSE, load
from pulsebridge.demo.schedule import timeline

__all__ = ["STATUS_S", "simulate", "summary"]

STATUS_S = 0.25
CONNECT_S = 30.0


def simulate(
    settings: MqttSettings,
    scale: Scale,
    journals: Path,
    stop: threading.Event,
    *,
    client_prefix: str = "sim-",
    stay: bool = False,
    drain_s: float = 120.0,
    go: Path | None = None,
    show: Callable[[FleetStatus], None] = lambda _status: None,
) -> FleetStatus:
    """Replay the recordings at ``scale`` and return the counts at the end.

    After the last publish it waits until all are acknowledged, at most ``drain_s`` seconds. ``stay`` goes on
    taking commands until ``stop`` is set. ``go`` is a file to wait for before the first publish, once every
    device is connected. Raises TransientError when the broker does not answer.
    """
    devices, speed = make_devices(scale, {kind: load(kind) for kind in (GLUCOSE, BUOY)})
    sends = timeline(devices, speed, scale.fault_every)
    journals.mkdir(parents=True, exist_ok=True)
    with Fleet(devices, settings, journals, client_prefix=client_prefix) as fleet:
        tick = _ticker(fleet, journals, show)
        fleet.start(CONNECT_S)
        tick()
        while go is not None and not go.exists() and not stop.is_set():
            stop.wait(0.05)
        fleet.replay(sends, stop, tick)
        _drain(fleet, tick, stop, drain_s)
        while stay and not stop.is_set():
            tick()
            stop.wait(STATUS_S)
        status = fleet.status()
    write_status(journals, status)
    return status


def _ticker(fleet: Fleet, journals: Path, show: Callable[[FleetStatus], None]) -> Callable[[], None]:
    last = [0.0]

    def tick() -> None:
        if time.monotonic() - last[0] >= STATUS_S:
            last[0] = time.monotonic()
            status = fleet.status()
            write_status(journals, status)
            show(status)

    return tick


def _drain(fleet: Fleet, tick: Callable[[], None], stop: threading.Event, drain_s: float) -> None:
    deadline = time.monotonic() + drain_s
    while time.monotonic() < deadline and not stop.is_set():
        status = fleet.status()
        if status.acknowledged + status.refused >= status.published:
            return
        tick()
        stop.wait(0.05)


def summary(status: FleetStatus) -> str:
    """Return the counts as one line."""
    return (
        f"{status.devices} devices: {status.published:,} published, {status.acknowledged:,} acknowledged, "
        f"{status.commands:,} commands received, {status.reconnects} reconnects"
    )

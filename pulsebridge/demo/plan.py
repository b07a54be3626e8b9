"""The plan of a run: each device's publishes, the kills, and the expected results.

The run's manifest has it before anything starts, so that the audit can distinguish a short run from a complete one. A
fault is a separate message; its id ends in ``-x…``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pulsebridge.audit.records import Published
from pulsebridge.audit.rules import Rule, calls_of
from pulsebridge.demo.recordings import (
    BUOY,
    FAULTS,
    GLUCOSE,
    Kind,
    Reading,
    VirtualDevice,
    cut,
    encode,
    encode_fault,
    speed_for_rate,
    within,
)

__all__ = [
    "FULL",
    "KILLABLE",
    "QUICK",
    "Kill",
    "Plan",
    "Scale",
    "Send",
    "kills",
    "make_devices",
    "make_plan",
    "timeline",
]


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a run. ``rate`` is readings per second of the whole fleet, for ``seconds``."""

    wearables: int
    buoys: int
    rate: float
    seconds: float
    fault_every: int = 500
    """Number of readings after which a faulty message follows; 0 for none."""
    kills: tuple[str, ...] = ("ingest", "push", "spark")
    """Parts that are killed by default."""
    push_after: str = "commands"
    """Push is killed after the first of these: ``commands``, or ``rows`` if all commands arrive at once."""


FULL: Final = Scale(wearables=40, buoys=24, rate=250.0, seconds=86.0)
# Without the Spark driver, because its restart takes half of a quick run's minute.
QUICK: Final = Scale(20, 12, 150.0, 14.0, fault_every=100, kills=("ingest", "push"), push_after="rows")
KILLABLE: Final = ("ingest", "push", "spark", "pulsar")


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill -9, ``at_s`` seconds after the first of ``after`` (readings, rows or commands)."""

    target: str
    after: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run, and its expected results."""

    scale: Scale
    speed: float
    devices: int
    readings: int
    faults: int
    commands: int
    kills: tuple[Kill, ...] = ()


class Send(NamedTuple):
    """A publish: seconds after the start, device index, number in its sequence including faults."""

    due_s: float
    device: int
    seq: int
    reading: Reading
    fault: str = ""
    """One of ``FAULTS``; empty for a real reading."""

    def reading_id(self, device: VirtualDevice) -> str:
        """Return the id in the payload."""
        return f"{device.name}-x{self.seq:05d}" if self.fault else device.reading_id(self.reading.seq)

    def payload(self, device: VirtualDevice, sent_us: int) -> bytes:
        """Return the bytes to publish at ``sent_us``, µs since the epoch."""
        name, ts, metric = self.reading_id(device), f"{self.reading.ts.isoformat()}Z", device.kind.metric
        if self.fault:
            return encode_fault(self.fault, name, ts, metric, sent_us)
        return encode(name, ts, metric, self.reading.value, sent_us)


def make_devices(
    scale: Scale, recordings: dict[Kind, Sequence[tuple[datetime, float]]]
) -> tuple[list[VirtualDevice], float]:
    """Cut the recordings for this scale. Returns the devices with the readings of the run, and the speed factor."""
    fleet = cut(GLUCOSE, recordings[GLUCOSE], scale.wearables) + cut(BUOY, recordings[BUOY], scale.buoys)
    speed = speed_for_rate(fleet, scale.rate)
    return within(fleet, speed * scale.seconds), speed


def timeline(devices: Sequence[VirtualDevice], speed: float, fault_every: int = 0) -> list[Send]:
    """Return every publish in order of time, with a fault after ``fault_every`` readings (0: none).

    Devices start in sequence within their first interval, so that they do not send simultaneously.
    """
    due = []
    for index, device in enumerate(devices):
        offset = device.kind.interval_s / speed * index / len(devices)
        due += [Send(offset + r.due_s / speed, index, r.seq, r) for r in device.readings]
    sends: list[Send] = []
    following = [0] * len(devices)
    for number, send in enumerate(sorted(due, key=lambda s: s[:3]), 1):
        broken = fault_every and number % fault_every == 0
        for fault in ("", FAULTS[number // fault_every % len(FAULTS)]) if broken else ("",):
            sends.append(send._replace(seq=following[send.device], fault=fault))
            following[send.device] += 1
    return sends


def kills(scale: Scale, *, chaos: bool, more: Collection[str] = ()) -> tuple[Kill, ...]:
    """Return the kills while readings flow: the scale's own if ``chaos``, and ``more``.

    Each waits for its output to interrupt, so that a slow start of Spark does not cause all of them at once.
    """
    unit = scale.seconds / 10
    known = (
        Kill("ingest", "readings", unit),
        Kill("push", scale.push_after, 0.3 * unit),
        Kill("spark", "rows", 2.5 * unit),
        Kill("pulsar", "readings", 7 * unit),
    )
    return tuple(k for k in known if k.target in more or (chaos and k.target in scale.kills))


def make_plan(
    scale: Scale,
    devices: Sequence[VirtualDevice],
    speed: float,
    rules: Sequence[Rule],
    kill: tuple[Kill, ...],
) -> tuple[Plan, list[Send]]:
    """Return the plan, and the timeline of the devices."""
    sends = timeline(devices, speed, scale.fault_every)
    faults = sum(1 for send in sends if send.fault)
    readings = (
        Published(d.reading_id(r.seq), d.name, d.kind.metric, r.seq, r.ts.isoformat(), r.value, "", 0)
        for d in devices
        for r in d.readings
    )
    commands = len(calls_of(rules, readings))
    return Plan(scale, speed, len(devices), len(sends) - faults, faults, commands, kill), sends

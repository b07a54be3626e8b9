"""The plan of a run: which device sends what when, what is killed when, what must be there afterwards. Pure.

It stands in the run's manifest before anything starts, so that the audit can distinguish a short run from a whole one. A fault
is a message of its own beside the readings; its id ends in ``-x…``.
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
    """How large a run is. ``rate`` is readings per second of the whole fleet, for ``seconds``."""

    wearables: int
    buoys: int
    rate: float
    seconds: float
    fault_every: int = 500
    """After so many readings a faulty message follows; 0 for none."""
    kills: tuple[str, ...] = ("ingest", "push", "spark")
    """What is killed by default."""
    push_after: str = "commands"
    """After the first of what push is killed: ``commands``, or ``rows`` if all commands come at once."""


FULL: Final = Scale(wearables=40, buoys=24, rate=250.0, seconds=86.0)
# Without the Spark driver: its second start takes half of a quick run's minute.
QUICK: Final = Scale(20, 12, 150.0, 14.0, fault_every=100, kills=("ingest", "push"), push_after="rows")
KILLABLE: Final = ("ingest", "push", "spark", "pulsar")


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill -9, ``at_s`` seconds after the first of ``after`` (readings, rows or commands) was seen."""

    target: str
    after: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do, and how much must be there afterwards."""

    scale: Scale
    speed: float
    devices: int
    readings: int
    faults: int
    commands: int
    kills: tuple[Kill, ...] = ()


class Send(NamedTuple):
    """A publish: seconds after the start, index of the device, number in its sequence, faults counted."""

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
    """Return every publish in the order of time, with a fault after each ``fault_every`` readings (0: none).

    Devices start one after the other within their first interval, so that they do not send in step.
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
    """Return what is killed when, while readings flow: what the scale kills by itself if ``chaos``, and ``more``.

    Each waits for what it is to interrupt, so that a slow start of Spark does not bring all of them at once.
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
    """Return the plan, and the timeline that the devices follow."""
    sends = timeline(devices, speed, scale.fault_every)
    faults = sum(1 for send in sends if send.fault)
    readings = (
        Published(d.reading_id(r.seq), d.name, d.kind.metric, r.seq, r.ts.isoformat(), r.value, "", 0)
        for d in devices
        for r in d.readings
    )
    commands = len(calls_of(rules, readings))
    return Plan(scale, speed, len(devices), len(sends) - faults, faults, commands, kill), sends

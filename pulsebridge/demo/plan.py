"""The plan of a run: which devices, how fast, how many readings and commands to expect, what is killed when. Pure.

It is made and written into the run's manifest before anything starts, so that the audit can tell a short run from
a whole one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pulsebridge.audit.expected import Rule, Sample, expected_commands
from pulsebridge.demo.recordings import BUOY, GLUCOSE, Kind, VirtualDevice, cut, speed_for_rate, within
from pulsebridge.demo.schedule import Send, expected_counts, timeline

__all__ = [
    "FULL",
    "KILLABLE",
    "QUICK",
    "Kill",
    "Plan",
    "Scale",
    "kills",
    "make_devices",
    "make_plan",
    "rate_of",
]

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a run is."""

    wearables: int
    buoys: int
    rate: float
    """Readings per second of the whole fleet."""
    seconds: float
    """How long the fleet sends."""
    fault_every: int = 500
    """A faulty message is added after this many real readings; 0 for none."""
    kills: tuple[str, ...] = ("ingest", "push", "spark")
    """What is killed unless the user says otherwise."""
    push_after: str = "commands"
    """After the first of what push is killed: ``commands``, or ``rows`` where all commands come at once."""


FULL: Final = Scale(wearables=40, buoys=24, rate=250.0, seconds=86.0)
# Without the Spark driver, whose second start alone takes half of a quick run's minute.
QUICK: Final = Scale(
    wearables=20,
    buoys=12,
    rate=150.0,
    seconds=14.0,
    fault_every=100,
    kills=("ingest", "push"),
    push_after="rows",
)
KILLABLE: Final = ("ingest", "push", "spark", "pulsar")


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill -9 to come: ``at_s`` seconds after the first of ``after`` (readings, rows or commands) was seen."""

    target: str
    after: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do, and what must be there afterwards."""

    scale: Scale
    speed: float
    devices: int
    readings: int
    faults: int
    commands: int
    kills: tuple[Kill, ...] = field(default=())

    def as_manifest(self) -> dict[str, Any]:
        """Return the plan as it stands in the manifest."""
        return {"v": MANIFEST_VERSION} | asdict(self)


def make_devices(scale: Scale, recordings: dict[Kind, Sequence[Any]]) -> tuple[list[VirtualDevice], float]:
    """Cut the recordings for this scale. Returns the devices with the readings of the run, and the speed factor."""
    fleet = cut(GLUCOSE, recordings[GLUCOSE], scale.wearables) + cut(BUOY, recordings[BUOY], scale.buoys)
    speed = speed_for_rate(fleet, scale.rate)
    return within(fleet, speed * scale.seconds), speed


def kills(scale: Scale, *, chaos: bool, more: Collection[str] = ()) -> tuple[Kill, ...]:
    """Return what is killed when: one after the other, while readings flow.

    ``chaos``: what this scale kills by itself; ``more``: what is killed besides, of ``KILLABLE``. Each waits for
    what it is to interrupt, so that a slow start of Spark does not bring all of them at once.
    """
    unit = scale.seconds / 10
    known = {
        "ingest": Kill("ingest", "readings", unit),
        "push": Kill("push", scale.push_after, 0.3 * unit),
        "spark": Kill("spark", "commands", 2.5 * unit),
        "pulsar": Kill("pulsar", "readings", 7 * unit),
    }
    return tuple(
        kill for target, kill in known.items() if target in more or (chaos and target in scale.kills)
    )


def make_plan(
    scale: Scale,
    devices: Sequence[VirtualDevice],
    speed: float,
    rules: Sequence[Rule],
    kill: tuple[Kill, ...],
) -> tuple[Plan, list[Send]]:
    """Return the plan and the timeline that the fleet will follow."""
    sends = timeline(devices, speed, scale.fault_every)
    readings, faults = expected_counts(sends)
    return Plan(scale, speed, len(devices), readings, faults, _commands(devices, rules), kill), sends


def _commands(devices: Sequence[VirtualDevice], rules: Sequence[Rule]) -> int:
    total = 0
    for device in devices:
        samples = [Sample(device.reading_id(r.seq), r.ts, r.value) for r in device.readings]
        total += len(expected_commands(rules, device.name, device.kind.metric, samples))
    return total


def rate_of(wearables: int, buoys: int, speed: float) -> float:
    """Return the readings per second of such a fleet at a speed factor (1 is real time)."""
    return speed * (wearables / GLUCOSE.interval_s + buoys / BUOY.interval_s)

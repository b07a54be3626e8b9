"""Cuts two real recordings into virtual devices: one wearable's glucose, one buoy's sea-surface temperature.

The recordings come with the PyPI package ``bokeh-sampledata`` (52,281 glucose readings of one continuous monitor,
public domain; 19,226 temperatures of NERACOOS buoy B01, free to use). A device is one stretch of time of one
recording; nothing is invented, only the pace is faster. ``load`` reads the files; the rest is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from bridge.errors import ConfigError, MissingExtraError

__all__ = [
    "BUOY",
    "GLUCOSE",
    "Kind",
    "Reading",
    "VirtualDevice",
    "cut",
    "load",
    "speed_for_rate",
    "within",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One recording: how its devices are called and what they measure."""

    name: str
    prefix: str
    metric: str
    unit: str
    topic: str
    """Template of the MQTT topic that a device publishes to."""
    interval_s: float
    """Nominal time between two readings, in seconds."""
    source: str


GLUCOSE: Final = Kind(
    "wearable",
    "cgm",
    "glucose",
    "mg/dL",
    "wearables/{device}/glucose",
    300.0,
    "one wearable's continuous glucose recording, 24 March to 10 October 2010",
)
BUOY: Final = Kind(
    "buoy",
    "buoy",
    "temperature",
    "°C",
    "buoys/{device}/temperature",
    1800.0,
    "one buoy's sea-surface temperature recording, 15 February 2016 to 22 March 2017",
)

GAP_INTERVALS: Final = 3.0
"""A pause in a recording longer than this many nominal intervals is replayed as one interval."""


class Reading(NamedTuple):
    """One reading of a device: its place in the device's sequence, its own time, its value, when it is due."""

    seq: int
    ts: datetime
    value: float
    due_s: float
    """Seconds of recorded time since the device's first reading, pauses shortened."""


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """One stretch of a recording, replayed as a device of its own."""

    name: str
    kind: Kind
    readings: tuple[Reading, ...]

    @property
    def topic(self) -> str:
        """The MQTT topic that it publishes to."""
        return self.kind.topic.format(device=self.name)

    @property
    def command_topic(self) -> str:
        """The MQTT topic on which it takes commands."""
        return f"devices/{self.name}/commands"

    def reading_id(self, seq: int) -> str:
        """Return the id of one reading: the same at every send."""
        return f"{self.name}-{seq:05d}"


def load(kind: Kind) -> list[tuple[datetime, float]]:
    """Read one recording, rows without a value left out. Raises MissingExtraError without ``bokeh-sampledata``."""
    try:
        if kind is GLUCOSE:
            from bokeh_sampledata.glucose import data

            column = data["glucose"]
        else:
            from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature

            column = sea_surface_temperature["temperature"]
    except ImportError as e:
        raise MissingExtraError(
            f"the recording of the {kind.name} needs bokeh-sampledata",
            remedy="pip install 'pulsebridge[demo]'",
        ) from e
    times = column.index.tz_localize(None).to_pydatetime()
    return [(at, float(value)) for at, value in zip(times, column, strict=True) if not math.isnan(value)]


def cut(kind: Kind, rows: Sequence[tuple[datetime, float]], devices: int) -> list[VirtualDevice]:
    """Cut a recording into ``devices`` stretches of equal length, in order, each a device of its own.

    Every row is in exactly one stretch. Raises ConfigError when there are fewer rows than devices.
    """
    if devices > len(rows):
        raise ConfigError(
            f"{devices} devices asked of the {kind.name}'s recording, which has {len(rows)} readings",
            remedy="ask for fewer devices",
        )
    borders = [len(rows) * i // devices for i in range(devices + 1)] if devices else []
    return [
        VirtualDevice(f"{kind.prefix}-{number:03d}", kind, _readings(kind, rows[start:end]))
        for number, (start, end) in enumerate(pairwise(borders), 1)
    ]


def _readings(kind: Kind, rows: Sequence[tuple[datetime, float]]) -> tuple[Reading, ...]:
    due = 0.0
    found: list[Reading] = []
    for seq, (ts, value) in enumerate(rows):
        if found:
            gap = (ts - found[-1].ts) / timedelta(seconds=1)
            due += kind.interval_s if gap > GAP_INTERVALS * kind.interval_s else max(gap, 0.0)
        found.append(Reading(seq, ts, value, due))
    return tuple(found)


def speed_for_rate(devices: Iterable[VirtualDevice], rate: float) -> float:
    """Return the speed factor at which these devices together publish ``rate`` readings per second."""
    natural = sum(1.0 / device.kind.interval_s for device in devices)
    return rate / natural if natural else 1.0


def within(devices: Iterable[VirtualDevice], recorded_s: float) -> list[VirtualDevice]:
    """Return the devices with only the readings that are due within ``recorded_s`` seconds of recorded time."""
    return [
        VirtualDevice(d.name, d.kind, tuple(r for r in d.readings if r.due_s <= recorded_s)) for d in devices
    ]

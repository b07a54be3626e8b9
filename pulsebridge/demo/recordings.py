"""Virtual devices, cut from two real recordings: one wearable's glucose, one buoy's sea-surface temperature.

The package ``bokeh-sampledata`` has the recordings. They are 52,281 readings of one continuous glucose monitor (public
domain), and 19,226 temperatures of NERACOOS buoy B01 (free to use). A device is one part of one recording, replayed
faster. Only ``load`` reads files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from bridge.errors import ConfigError, MissingExtraError

__all__ = [
    "BUOY",
    "FAULTS",
    "GLUCOSE",
    "Kind",
    "Reading",
    "VirtualDevice",
    "cut",
    "encode",
    "encode_fault",
    "load",
    "speed_for_rate",
    "within",
]

FAULTS: Final = ("implausible", "no_value", "cut_short")
"""Kinds of broken payloads: a value that no sensor measures, no value, truncated JSON."""
GAP_INTERVALS: Final = 3.0
"""Longest pause in a recording, in intervals. A longer pause is replayed as one interval."""
_IMPLAUSIBLE: Final = 9999.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A recording. ``topic`` is the template of its devices' MQTT topic, ``interval_s`` the usual time between readings."""

    name: str
    prefix: str
    metric: str
    topic: str
    interval_s: float
    source: str


GLUCOSE: Final = Kind(
    "wearable",
    "cgm",
    "glucose",
    "wearables/{device}/glucose",
    300.0,
    "one wearable's continuous glucose recording, 24 March to 10 October 2010",
)
BUOY: Final = Kind(
    "buoy",
    "buoy",
    "temperature",
    "buoys/{device}/temperature",
    1800.0,
    "one buoy's sea-surface temperature recording, 15 February 2016 to 22 March 2017",
)


class Reading(NamedTuple):
    """A reading of a device. ``due_s`` is recorded time since the device's first one, in seconds, with short pauses."""

    seq: int
    ts: datetime
    value: float
    due_s: float


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """A part of a recording, replayed as a separate device."""

    name: str
    kind: Kind
    readings: tuple[Reading, ...]

    @property
    def topic(self) -> str:
        """The MQTT topic of its readings."""
        return self.kind.topic.format(device=self.name)

    @property
    def command_topic(self) -> str:
        """The MQTT topic of its commands."""
        return f"devices/{self.name}/commands"

    def reading_id(self, seq: int) -> str:
        """Return the id of one reading: the same at every send."""
        return f"{self.name}-{seq:05d}"


def load(kind: Kind) -> list[tuple[datetime, float]]:
    """Read a recording, without rows that lack a value. Raises MissingExtraError without ``bokeh-sampledata``."""
    try:
        if kind is GLUCOSE:
            from bokeh_sampledata.glucose import data as table
        else:
            from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature as table
    except ImportError as e:
        raise MissingExtraError(
            f"the recording of the {kind.name} needs bokeh-sampledata",
            remedy="pip install 'pulsebridge[demo]'",
        ) from e
    column = table[kind.metric]
    times = column.index.tz_localize(None).to_pydatetime()
    return [(at, float(value)) for at, value in zip(times, column, strict=True) if not math.isnan(value)]


def cut(kind: Kind, rows: Sequence[tuple[datetime, float]], devices: int) -> list[VirtualDevice]:
    """Cut a recording into ``devices`` parts of equal length, in order. Every row is in exactly one.

    Raises ConfigError for more devices than rows.
    """
    if devices > len(rows):
        raise ConfigError(
            f"{devices} devices are requested, but the {kind.name}'s recording has {len(rows)} readings",
            remedy="request fewer devices",
        )
    borders = [len(rows) * i // devices for i in range(devices + 1)] if devices else []
    return [
        VirtualDevice(f"{kind.prefix}-{number:03d}", kind, _readings(kind, rows[start:end]))
        for number, (start, end) in enumerate(pairwise(borders), 1)
    ]


def _readings(kind: Kind, rows: Sequence[tuple[datetime, float]]) -> tuple[Reading, ...]:
    due, found = 0.0, list[Reading]()
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
    """Return the devices with the readings of the first ``recorded_s`` seconds of recorded time."""
    return [replace(d, readings=tuple(r for r in d.readings if r.due_s <= recorded_s)) for d in devices]


def encode(reading_id: str, ts: str, metric: str, value: float | None, sent_us: int) -> bytes:
    """Return the JSON payload of a reading, sent at ``sent_us`` (µs since the epoch)."""
    measured = {} if value is None else {metric: value}
    return json.dumps({"id": reading_id, "ts": ts, **measured, "sent_us": sent_us}, separators=(",", ":")).encode()


def encode_fault(kind: str, reading_id: str, ts: str, metric: str, sent_us: int) -> bytes:
    """Return a payload with the fault ``kind``, one of ``FAULTS``."""
    value = {"implausible": _IMPLAUSIBLE, "no_value": None, "cut_short": 0.0}[kind]
    payload = encode(reading_id, ts, metric, value, sent_us)
    return payload[:-9] if kind == "cut_short" else payload

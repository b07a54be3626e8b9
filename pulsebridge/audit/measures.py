"""Times computed from the records: latencies, and the interruption of the output by each kill.

A latency begins when the device passed the publish to its MQTT client. *Device → table* ends with the commit to
measurements, *device → command* when the device journalled the command. A recovery ends when the killed part's output
increases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pulsebridge.audit.records import Records

__all__ = [
    "PARTS",
    "Latency",
    "Recovery",
    "Spread",
    "command_latencies",
    "recoveries",
    "spread",
    "table_latencies",
]

PARTS: Final = {
    "ingest": "ingest worker",
    "push": "push worker",
    "spark": "Spark driver",
    "pulsar": "Pulsar",
}
"""The parts that can be killed, by their names in the events."""


class Latency(NamedTuple):
    """Send time of a reading, µs since the epoch, and its latency in seconds."""

    sent_us: int
    seconds: float


class Spread(NamedTuple):
    """A summary of a distribution, in seconds."""

    samples: int
    p50: float
    p99: float
    max: float


class Recovery(NamedTuple):
    """Time of a kill and the duration until the output increased. ``seconds`` is None if it never did."""

    target: str
    killed_us: int
    seconds: float | None


def table_latencies(records: Records) -> list[Latency]:
    """Return device → measurements of every reading, in the order of sending."""
    sent = {p.id: p.us for p in records.published if not p.fault}
    rows = [(sent[row.id], row.us) for row in records.measurements if row.id in sent and row.us]
    return sorted(Latency(began, (us - began) / 1e6) for began, us in rows)


def command_latencies(records: Records) -> list[Latency]:
    """Return device → command at that device of every command's first copy, in order of sending."""
    cause = {e.id: records.sent[e.reading_id].us for e in records.emitted if e.reading_id in records.sent}
    first: dict[str, int] = {}
    for r in records.received:
        first[r.id] = min(r.us, first.get(r.id, r.us))
    return sorted(Latency(cause[name], (us - cause[name]) / 1e6) for name, us in first.items() if name in cause)


def spread(values: Sequence[float]) -> Spread | None:
    """Return p50, p99 and max of the values (nearest rank), None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p99 = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.99))
    return Spread(len(ordered), p50, p99, ordered[-1])


def recoveries(events: Iterable[Mapping[str, Any]]) -> list[Recovery]:
    """Return each kill of the events with its recovery.

    An event has ``e`` (kill or recovered: the part's output increases), ``target`` and ``us``, µs since the epoch.
    """
    killed: dict[str, int] = {}
    recovered: dict[str, int] = {}
    for event in events:
        {"kill": killed, "recovered": recovered}.get(event["e"], {})[event.get("target", "")] = int(event["us"])
    return [Recovery(of, us, (recovered[of] - us) / 1e6 if of in recovered else None) for of, us in killed.items()]

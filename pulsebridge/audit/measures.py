"""Times of a run, computed from the three records: latencies, and how long each kill interrupted the output. Pure.

A latency begins when the device handed the publish to its MQTT client (its journal). *Device → table* ends when
the Delta commit that holds the reading in silver appeared; *device → command* when the device journalled the command
that the reading caused. A kill's recovery ends with the first output of the killed part after its restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pulsebridge.audit.records import Records

__all__ = ["Latency", "Recovery", "Spread", "command_latencies", "recoveries", "spread", "table_latencies"]


class Latency(NamedTuple):
    """One reading's way: when it was sent, µs since the epoch, and how long it took, in seconds."""

    id: str
    sent_us: int
    seconds: float


class Spread(NamedTuple):
    """A distribution in short, in seconds."""

    samples: int
    p50: float
    p99: float
    max: float


class Recovery(NamedTuple):
    """One kill: when, and how long until the output moved again. ``seconds`` is None when it never did."""

    target: str
    killed_us: int
    seconds: float | None


def table_latencies(records: Records) -> list[Latency]:
    """Return device → silver of every reading, in the order of sending."""
    sent = {p.id: p.us for p in records.published if not p.fault}
    found = [
        Latency(row.id, sent[row.id], (row.commit_us - sent[row.id]) / 1e6)
        for row in records.silver
        if row.id in sent and row.commit_us
    ]
    return sorted(found, key=lambda x: x.sent_us)


def command_latencies(records: Records) -> list[Latency]:
    """Return device → command at that device of every command, its first copy, in the order of sending."""
    sent = {p.id: p.us for p in records.published}
    cause = {e.id: e.reading_id for e in records.emitted}
    found: dict[str, Latency] = {}
    for r in sorted(records.received, key=lambda r: r.us):
        began = sent.get(cause.get(r.id, ""))
        if began is not None and r.id not in found:
            found[r.id] = Latency(r.id, began, (r.us - began) / 1e6)
    return sorted(found.values(), key=lambda x: x.sent_us)


def spread(values: Sequence[float]) -> Spread | None:
    """Return p50, p99 and max of the values (nearest rank), None when there are none."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(len(ordered), rank(0.5), rank(0.99), ordered[-1])


def recoveries(events: Iterable[Mapping[str, Any]], records: Records) -> list[Recovery]:
    """Return each kill of the run's events with its recovery."""
    outputs = {
        "ingest": [s.publish_us for s in records.stored],
        "push": [r.confirmed_us for r in records.receipts],
        "spark": [
            *(b.commit_us for b in records.bronze),
            *(s.commit_us for s in (*records.silver, *records.quarantine)),
            *(e.publish_us for e in records.emitted),
        ],
    }
    found: list[Recovery] = []
    killed: dict[str, int] = {}
    restarted: dict[str, int] = {}
    for event in events:
        target, us = event.get("target", ""), int(event["us"])
        if event["e"] == "kill":
            killed[target] = us
        elif event["e"] == "restarted" and target in outputs and target in killed:
            restarted[target] = us
        elif event["e"] == "recovered" and target not in outputs and target in killed:
            # A message carries the time at which its producer took it, which may be while Pulsar was away: only
            # the run's own watch on Pulsar's counters tells when it stored again.
            found.append(Recovery(target, killed[target], (us - killed.pop(target)) / 1e6))
    for target, since in killed.items():
        after = [us for us in outputs.get(target, ()) if us > restarted.get(target, 1 << 62)]
        found.append(Recovery(target, since, (min(after) - since) / 1e6 if after else None))
    return sorted(found, key=lambda r: r.killed_us)

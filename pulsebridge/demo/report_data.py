"""The rows behind the report's charts, computed from a run's records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pulsebridge.audit.measures import Latency, Recovery, command_latencies, spread, table_latencies
from pulsebridge.audit.records import Records

__all__ = [
    "TITLES",
    "device_rows",
    "kill_rows",
    "latency_over_time",
    "latency_shares",
    "rate_rows",
    "start_us",
    "talkative",
]

TITLES = {"ingest": "ingest", "push": "push", "spark": "Spark driver", "pulsar": "Pulsar"}
_POINTS = 400
_COMMANDS = 10


def start_us(records: Records) -> int:
    """Return when the first reading was sent, µs since the epoch: second 0 of every chart."""
    return min((p.us for p in records.published), default=0)


def kill_rows(kills: Sequence[Recovery], start: int) -> list[dict[str, Any]]:
    """Return a mark for each kill: second, what, how long until its output moved again."""
    return [
        {
            "second": round((k.killed_us - start) / 1e6, 2),
            "end": round((k.killed_us - start) / 1e6 + (k.seconds or 0.0), 2),
            "what": f"kill -9 {TITLES.get(k.target, k.target)}",
            "back": "never" if k.seconds is None else f"{k.seconds:.1f} s",
        }
        for k in kills
    ]


def rate_rows(records: Records, start: int, step_s: int = 2) -> list[dict[str, Any]]:
    """Return readings per second at each stage, in steps of ``step_s`` seconds; steps without any count too."""
    stages: dict[str, Iterable[int]] = {
        "published by the devices": (p.us for p in records.published),
        "stored in Pulsar": (s.publish_us for s in records.stored),
        "committed to silver": (s.commit_us for s in records.silver if s.commit_us),
    }
    binned = {
        name: Counter((us - start) // 1_000_000 // step_s for us in times) for name, times in stages.items()
    }
    last = max((max(counts, default=0) for counts in binned.values()), default=0)
    return [
        {"second": step * step_s, "stage": name, "rate": counts.get(step, 0) / step_s}
        for name, counts in binned.items()
        for step in range(max(0, last) + 2)
    ]


def latency_over_time(records: Records, start: int, step_s: int = 2) -> list[dict[str, Any]]:
    """Return p50 and p99 of both latencies, by the second in which the reading was sent."""
    rows = []
    for way, latencies in _ways(records):
        bins: dict[int, list[float]] = {}
        for one in latencies:
            bins.setdefault((one.sent_us - start) // 1_000_000 // step_s, []).append(one.seconds)
        for step, values in sorted(bins.items()):
            short = spread(values)
            if short is not None:
                rows.append(
                    {
                        "second": step * step_s,
                        "way": way,
                        "p50": round(short.p50, 3),
                        "p99": round(short.p99, 3),
                        "readings": short.samples,
                    }
                )
    return rows


def latency_shares(records: Records) -> list[dict[str, Any]]:
    """Return each latency's distribution: the share of records that took at most so long."""
    rows = []
    for way, latencies in _ways(records):
        values = sorted(one.seconds for one in latencies)
        if not values:
            continue
        picks = sorted({round(i * (len(values) - 1) / (_POINTS - 1)) for i in range(_POINTS)})
        rows += [
            {"way": way, "seconds": round(max(values[i], 0.001), 4), "share": (i + 1) / len(values)}
            for i in picks
        ]
    return rows


def _ways(records: Records) -> list[tuple[str, list[Latency]]]:
    return [
        ("device → table", table_latencies(records)),
        ("device → command at the device", command_latencies(records)),
    ]


def talkative(records: Records) -> str:
    """Return the device to show: of those with most kinds of commands, one with about ten; empty without devices."""
    rules: dict[str, set[str]] = {}
    for e in records.emitted:
        rules.setdefault(e.device, set()).add(e.rule)
    counts = Counter(e.device for e in records.emitted)
    names = sorted({p.device for p in records.published})
    return max(names, key=lambda name: (len(rules.get(name, ())), -abs(counts[name] - _COMMANDS)), default="")


def device_rows(records: Records, device: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one device's readings, and its commands with the reading and the rule that caused each."""
    values = {p.id: p for p in records.published if p.device == device and p.value is not None}
    readings = [{"time": p.ts, "value": p.value} for p in values.values()]
    arrived: dict[str, int] = {}
    for r in sorted(records.received, key=lambda r: r.us):
        arrived.setdefault(r.id, r.us)
    commands = []
    for e in {e.id: e for e in records.emitted if e.device == device}.values():
        cause = values.get(e.reading_id)
        if cause is None:
            continue
        took = (arrived[e.id] - cause.us) / 1e6 if e.id in arrived else None
        commands.append(
            {
                "time": cause.ts,
                "value": cause.value,
                "rule": e.rule,
                "command": e.id[:8],
                "arrived": "did not arrive" if took is None else f"{took:.2f} s after the reading",
            }
        )
    return readings, commands

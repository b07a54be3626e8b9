"""What is known of messages that were acknowledged and are not in Pulsar: when, where, and which kills were near."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bridge.contract.partitioning import partition_of
from tests.support.fleet import Fleet

__all__ = ["Kill", "near_kills", "paging_lines", "tell_missing"]

_SHOWN = 30


class Kill(NamedTuple):
    """A kill and when its victim was up again, in seconds since the epoch."""

    victim: str
    at: float
    up: float


def tell_missing(fleet: Fleet, missing: Sequence[str], kills: Sequence[Kill], *, partitions: int) -> str:
    """Return a line for each missing message, in the order in which they were acknowledged, and sums of them."""
    names = [(int(device[1:]), int(number)) for device, _, number in (m.partition("#") for m in missing)]
    rows = sorted((fleet.confirmed_at(*name), name) for name in names)
    lines = []
    for found, (device, number) in rows[:_SHOWN]:
        lines.append(
            f"d{device:03d}#{number} acknowledged {_clock(found.at)} as the {found.nth}. of its connection "
            f"{found.connection}, {found.at - found.connected:.3f} s after CONNACK, partition "
            f"{partition_of(f'd{device:03d}', partitions)}; {near_kills(found.at, kills)}"
        )
    devices = Counter(device for _, (device, _) in rows)
    shares = Counter(partition_of(f"d{device:03d}", partitions) for _, (device, _) in rows)
    span = rows[-1][0].at - rows[0][0].at if rows else 0.0
    lines.append(
        f"{len(rows)} missing of {len(devices)} devices, at most {max(devices.values(), default=0)} of one, acknowledged "
        f"within {span:.3f} s, by partition {dict(sorted(shares.items()))}, first of their connection: "
        f"{sum(found.nth == 1 for found, _ in rows)}"
    )
    if fleet.strange:
        lines.append(f"{len(fleet.strange)} acknowledgements of what was not in flight: {fleet.strange[:10]}")
    return "\n".join(lines)


def near_kills(at: float, kills: Sequence[Kill]) -> str:
    """Tell the last kill before and the next one after a moment."""
    before = max((k for k in kills if k.at <= at), key=lambda k: k.at, default=None)
    after = min((k for k in kills if k.at > at), key=lambda k: k.at, default=None)
    kills_near = []
    if before is not None:
        up = f"up {at - before.up:.3f} s before" if before.up <= at else f"up {before.up - at:.3f} s after"
        kills_near.append(f"{before.victim} killed {at - before.at:.3f} s before, {up}")
    if after is not None:
        kills_near.append(f"{after.victim} killed {after.at - at:.3f} s after")
    return ", ".join(kills_near) or "no kill"


def paging_lines(log: Path, count: int = 20) -> str:
    """Return the last lines of the MQTT broker about paging and errors."""
    marks = ("aging", "WARN", "ERROR")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(line[:300] for line in [one for one in lines if any(m in one for m in marks)][-count:])


def _clock(at: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 1000) % 1000:03d}"

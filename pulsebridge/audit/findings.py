"""What the audit finds: one finding names the hop, what is wrong there, and the records that it is about. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = [
    "ALTERED",
    "HOP_ACK",
    "HOP_BRONZE",
    "HOP_COMMANDS",
    "HOP_PULSAR",
    "HOP_RECEIPTS",
    "HOP_RECEIVED",
    "HOP_SILVER",
    "HOP_SIZE",
    "MISSING",
    "OUT_OF_ORDER",
    "REPEATED",
    "SHORT",
    "UNEXPECTED",
    "Finding",
    "out_of_order",
    "repeated",
]

HOP_SIZE: Final = "the run"
HOP_ACK: Final = "published → acknowledged"
HOP_PULSAR: Final = "acknowledged → Pulsar"
HOP_BRONZE: Final = "Pulsar → bronze"
HOP_SILVER: Final = "bronze → silver or quarantine"
HOP_COMMANDS: Final = "readings → commands emitted"
HOP_RECEIVED: Final = "commands emitted → received"
HOP_RECEIPTS: Final = "commands emitted → receipts"

MISSING: Final = "missing"
REPEATED: Final = "repeated"
OUT_OF_ORDER: Final = "out of order"
ALTERED: Final = "altered"
"""The record is there and does not say what the record before it says."""
UNEXPECTED: Final = "unexpected"
"""The record is there and nothing before it accounts for it."""
SHORT: Final = "short"


class Finding(NamedTuple):
    """One thing that the audit found. ``fails`` is False for what at-least-once delivery allows."""

    hop: str
    kind: str
    records: tuple[str, ...]
    detail: str
    fails: bool = True


def repeated(hop: str, counts: Counter[str], what: str, *, fails: bool) -> list[Finding]:
    """Return a finding for each id that is counted more than once."""
    return [
        Finding(hop, REPEATED, (name,), f"{name} is {what} {times} times", fails)
        for name, times in counts.items()
        if times > 1
    ]


def out_of_order(
    hop: str, arrivals: Iterable[tuple[str, str]], rank: Mapping[str, int], where: str
) -> list[Finding]:
    """Return a finding for each id that came after one of its device that should follow it.

    ``arrivals`` are (device, id) in the order of arrival. Only the first copy of an id counts: redelivery in
    order repeats records, it does not disorder them. ``rank`` is each id's right place within its device.
    """
    highest: dict[str, tuple[int, str]] = {}
    seen: set[str] = set()
    found = []
    for device, name in arrivals:
        if name in seen or name not in rank:
            continue
        seen.add(name)
        top = highest.get(device)
        if top is not None and rank[name] < top[0]:
            found.append(
                Finding(hop, OUT_OF_ORDER, (name, top[1]), f"{device}: {name} comes after {top[1]} {where}")
            )
        else:
            highest[device] = (rank[name], name)
    return found

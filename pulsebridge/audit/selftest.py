"""Tests the audit on the run's own records: in a copy, one record is removed, repeated or swapped at each hop. Pure.

Each tampering must lead to a finding at that hop that was not there before and that names the tampered record;
otherwise the audit would not have seen a loss there either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from pulsebridge.audit.findings import (
    HOP_ACK,
    HOP_BRONZE,
    HOP_COMMANDS,
    HOP_PULSAR,
    HOP_RECEIPTS,
    HOP_RECEIVED,
    HOP_SILVER,
    Finding,
)
from pulsebridge.audit.joins import findings, fleet_of
from pulsebridge.audit.records import Records

__all__ = ["Trial", "self_test", "trials"]


class Trial(NamedTuple):
    """One tampering and what the audit made of it. ``named`` is the finding, empty when it saw nothing."""

    hop: str
    act: str
    records: tuple[str, ...]
    named: str

    @property
    def passed(self) -> bool:
        """Whether the audit named every tampered record."""
        return bool(self.named)


class _Hop(NamedTuple):
    hop: str
    field: str
    order: str
    """The field that two records exchange when they are swapped; empty: one is exchanged with one of silver."""
    same_device: bool
    """Whether the two are neighbours of one device (their order is judged) or of two (their contents are)."""


_HOPS = (
    _Hop(HOP_ACK, "acks", "id", True),
    _Hop(HOP_PULSAR, "stored", "place", True),
    _Hop(HOP_BRONZE, "bronze", "place", False),
    _Hop(HOP_SILVER, "silver", "value", False),
    _Hop(HOP_SILVER, "quarantine", "", False),
    _Hop(HOP_COMMANDS, "emitted", "place", True),
    _Hop(HOP_RECEIVED, "received", "n", True),
    _Hop(HOP_RECEIPTS, "receipts", "device", False),
)


def self_test(records: Records) -> list[Trial]:
    """Tamper with a copy of the records at each hop in each way; return what the audit said each time."""
    before = frozenset(findings(records))
    return [_try(records, before, *trial) for trial in trials(records)]


def trials(records: Records) -> list[tuple[str, str, tuple[str, ...], Records]]:
    """Return (hop, act, ids tampered with, tampered copy) of every trial that these records allow."""
    made: list[tuple[str, str, tuple[str, ...], Records]] = []
    for hop in _HOPS:
        rows: Sequence[Any] = _candidates(records, getattr(records, hop.field))
        if not rows:
            if hop.field != "quarantine":
                made.append((hop.hop, f"find a record in {hop.field}", ("nothing to tamper with",), records))
            continue
        label = f" in {hop.field}" if hop.hop == HOP_SILVER else ""
        victim = rows[len(rows) // 2]
        everything = getattr(records, hop.field)
        removed = tuple(r for r in everything if r.id != victim.id)
        made.append((hop.hop, f"remove{label}", (victim.id,), _with(records, hop, removed)))
        made.append(
            (hop.hop, f"repeat{label}", (victim.id,), _with(records, hop, (*everything, _again(hop, victim))))
        )
        made += _swapped(records, hop, rows, label)
    return made


def _swapped(
    records: Records, hop: _Hop, rows: Sequence[Any], label: str
) -> list[tuple[str, str, tuple[str, ...], Records]]:
    if not hop.order:
        there = _candidates(records, records.silver)
        if not there:
            return []
        aside, kept = rows[0], there[len(there) // 2]
        quarantine = tuple(kept if r is aside else r for r in records.quarantine)
        silver = tuple(aside if r is kept else r for r in records.silver)
        exchanged = replace(records, quarantine=quarantine, silver=silver)
        return [(hop.hop, "swap silver with quarantine", (aside.id, kept.id), exchanged)]
    pair = _pair(hop, rows)
    if pair is None:
        return []
    swapped = _swap(getattr(records, hop.field), *pair, hop.order)
    return [(hop.hop, f"swap{label}", (pair[0].id, pair[1].id), _with(records, hop, swapped))]


def _try(
    records: Records, before: frozenset[Finding], hop: str, act: str, ids: tuple[str, ...], tampered: Records
) -> Trial:
    fresh = [f for f in findings(tampered) if f not in before and f.hop == hop]
    named: set[str] = set()
    for finding in fresh:
        named.update(name for name in ids if name in finding.records)
    seen = "; ".join(f.detail for f in fresh[:1]) if named == set(ids) else ""
    return Trial(hop, act, ids, seen)


def _candidates(records: Records, rows: Iterable[Any]) -> list[Any]:
    """Only records of the fleet that occur once: tampering with a copy of something repeated proves nothing."""
    fleet = fleet_of(records)
    known = {p.id for p in records.published}
    counts: dict[str, int] = {}
    listed = list(rows)
    for row in listed:
        counts[row.id] = counts.get(row.id, 0) + 1
    return [r for r in listed if counts[r.id] == 1 and (getattr(r, "device", None) in fleet or r.id in known)]


def _again(hop: _Hop, victim: Any) -> Any:
    if hop.order == "place" and hop.field != "bronze":  # a second copy in Pulsar stands at a place of its own
        return victim._replace(place=victim.place._replace(ledger=victim.place.ledger + 1_000_000))
    return victim


def _pair(hop: _Hop, rows: Sequence[Any]) -> tuple[Any, Any] | None:
    if not hop.same_device:
        first = rows[len(rows) // 2]
        for other in rows:
            differs = getattr(other, hop.order) != getattr(first, hop.order)
            if differs and other.id != first.id:
                return first, other
        return None
    key: Callable[[Any], Any] = (lambda r: getattr(r, hop.order)) if hop.order != "id" else (lambda r: r.us)
    by_device: dict[str, list[Any]] = {}
    for row in sorted(rows, key=key):
        by_device.setdefault(row.device, []).append(row)
    for mine in sorted(by_device.values(), key=len, reverse=True):
        for first, second in pairwise(mine):
            # Two commands that one reading causes have no order between them.
            if getattr(first, "reading_id", "") != getattr(second, "reading_id", "-"):
                return first, second
    return None


def _swap(rows: Sequence[Any], first: Any, second: Any, field: str) -> tuple[Any, ...]:
    a, b = getattr(first, field), getattr(second, field)
    swapped = []
    for row in rows:
        if row is first:
            swapped.append(row._replace(**{field: b}))
        elif row is second:
            swapped.append(row._replace(**{field: a}))
        else:
            swapped.append(row)
    return tuple(swapped)


def _with(records: Records, hop: _Hop, rows: tuple[Any, ...]) -> Records:
    changed: dict[str, Any] = {hop.field: rows}
    return replace(records, **changed)

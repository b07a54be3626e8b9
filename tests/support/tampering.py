"""Copies of an audit's records with one message removed, repeated or swapped at each hop, and what the audit makes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from pulsebridge.audit.joins import Hop, findings
from pulsebridge.audit.records import Emitted, Records

__all__ = ["Trial", "trials", "unnoticed"]

# Of each hop: the rows that are tampered with; the field that two of them exchange; whether these are neighbours of one
# device, whose order is compared, or any two, whose contents are.
_HOPS = (
    (Hop.ACK, "acks", "id", True),
    (Hop.PULSAR, "stored", "position", True),
    (Hop.BRONZE, "bronze", "position", False),
    (Hop.MEASUREMENTS, "measurements", "value", False),
    (Hop.ALERTS, "alerts", "device", False),
    (Hop.COMMANDS, "emitted", "position", True),
    (Hop.RECEIVED, "received", "n", True),
    (Hop.RECEIPTS, "receipts", "device", False),
)


class Trial(NamedTuple):
    """A tampered copy: where, how, and the ids that the audit must name there."""

    hop: str
    act: str
    ids: tuple[str, ...]
    records: Records


def unnoticed(records: Records) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the trials in which the audit does not name every tampered message with a new finding at its hop.

    Of commands that were written again after a kill, perhaps all of them, the first copies count.
    """
    records = _once(records)
    before = frozenset(findings(records))
    return [
        (trial.hop, trial.act, trial.ids)
        for trial in trials(records)
        if not set(trial.ids)
        <= {name for f in findings(trial.records) if f not in before and f.hop == trial.hop for name in f.records}
    ]


def trials(records: Records) -> list[Trial]:
    """Return three trials for each kind of record. Raises IndexError if the records have too few of a kind."""
    made = []
    records = _once(records)
    for hop, kind, field, neighbours in _HOPS:
        everything, rows = getattr(records, kind), _candidates(records, kind)
        made += _removed_and_repeated(records, hop, kind, rows, new_position=hop in (Hop.PULSAR, Hop.COMMANDS))
        first, second = _neighbours(rows, field) if neighbours else _differing(rows, field)
        exchanged = {
            first: first._replace(**{field: getattr(second, field)}),
            second: second._replace(**{field: getattr(first, field)}),
        }
        swapped = tuple(exchanged.get(row, row) for row in everything)
        made.append(Trial(hop, f"swap in {kind}", (first.id, second.id), replace(records, **{kind: swapped})))
    aside, kept = _candidates(records, "quarantine"), _candidates(records, "measurements")
    made += _removed_and_repeated(records, Hop.MEASUREMENTS, "quarantine", aside, new_position=False)
    one, other = aside[0], kept[len(kept) // 2]
    exchanged = {one: other, other: one}
    both = {kind: tuple(exchanged.get(r, r) for r in getattr(records, kind)) for kind in ("measurements", "quarantine")}
    made.append(
        Trial(
            Hop.MEASUREMENTS,
            "swap measurements with quarantine",
            (one.id, other.id),
            replace(records, **both),
        )
    )
    return made


def _once(records: Records) -> Records:
    first: dict[str, Emitted] = {}
    for one in sorted(records.emitted, key=lambda e: e.position):
        first.setdefault(one.id, one)
    return replace(records, emitted=tuple(first.values()))


def _removed_and_repeated(
    records: Records, hop: str, kind: str, rows: Sequence[Any], *, new_position: bool
) -> list[Trial]:
    everything, victim = getattr(records, kind), rows[len(rows) // 2]
    copy = victim
    if new_position:  # a second copy in Pulsar has a position of its own
        copy = victim._replace(position=victim.position._replace(ledger=victim.position.ledger + 1_000_000))
    removed = tuple(row for row in everything if row.id != victim.id)
    return [
        Trial(hop, f"remove from {kind}", (victim.id,), replace(records, **{kind: removed})),
        Trial(hop, f"repeat in {kind}", (victim.id,), replace(records, **{kind: (*everything, copy)})),
    ]


def _candidates(records: Records, kind: str) -> list[Any]:
    """Only messages of the fleet that occur once: tampering with a copy of a repeated one proves nothing."""
    rows = getattr(records, kind)
    times = Counter(row.id for row in rows)
    fleet = [r for r in rows if getattr(r, "device", "") in records.devices or r.id in records.sent]
    return [row for row in fleet if times[row.id] == 1]


def _differing(rows: Sequence[Any], field: str) -> tuple[Any, Any]:
    first = rows[len(rows) // 2]
    return first, next(r for r in rows if getattr(r, field) != getattr(first, field) and r.id != first.id)


def _neighbours(rows: Sequence[Any], field: str) -> tuple[Any, Any]:
    key: Callable[[Any], Any] = (lambda r: r.us) if field == "id" else (lambda r: getattr(r, field))
    by_device: dict[str, list[Any]] = {}
    for row in sorted(rows, key=key):
        by_device.setdefault(row.device, []).append(row)
    return next(
        (first, second)
        for mine in sorted(by_device.values(), key=len, reverse=True)
        for first, second in pairwise(mine)
        # Two commands that one reading causes have no order between them.
        if getattr(first, "reading_id", "") != getattr(second, "reading_id", "-")
    )

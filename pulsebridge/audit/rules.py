"""Which commands the readings of a device call for: the alert rules computed again, in plain Python. Pure.

It shares nothing with the Spark job but the rules file. A rule looks at the readings of its metric in the order of the
device's time. ``below`` fires if a reading is under the limit and the one before was not, or there was none. ``falling``
fires if the value drops by more than ``per_minute`` a minute since the reading before, unless that is longer ago than
``within_minutes`` or at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bridge.errors import ConfigError
from pulsebridge.audit.records import Call, Published

__all__ = ["Rule", "Sample", "calls_of", "command_id", "expected_commands", "load_rules", "read_rules"]

_KINDS: Final = ("below", "falling")
_NOT_RECOMPUTED: Final = {"clear", "for_minutes", "over_minutes", "tell_cleared"}


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule, as far as it decides when a command is due."""

    name: str
    metric: str
    kind: str
    limit: float = 0.0
    per_minute: float = 0.0
    within_minutes: float = 0.0


class Sample(NamedTuple):
    """A reading in the journal of its device."""

    reading_id: str
    ts: datetime
    value: float


def command_id(rule: str, device: str, reading_id: str) -> str:
    """Return the id of the command that a rule makes of a reading."""
    return hashlib.sha256(f"{rule}|{device}|{reading_id}".encode()).hexdigest()[:32]


def load_rules(path: Path) -> list[Rule]:
    """Read the alert rules of a rules file. Raises ConfigError for what cannot be computed here."""
    return read_rules(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def read_rules(body: Mapping[str, Any], origin: str) -> list[Rule]:
    """Return the alert rules of a rules file's content. Raises ConfigError for what cannot be computed here."""
    rules = []
    for entry in body.get("alerts", ()):
        unknown = sorted(_NOT_RECOMPUTED & entry.keys())
        if entry["kind"] not in _KINDS:
            unknown.insert(0, f"kind {entry['kind']!r}")
        if unknown:
            raise ConfigError(
                f"{origin}: alert {entry['name']} has {', '.join(unknown)}, which the audit cannot recompute",
                remedy="use below or falling, or teach pulsebridge.audit.rules what it means",
            )
        amounts = (float(entry.get(name, 0)) for name in ("limit", "per_minute", "within_minutes"))
        rules.append(Rule(entry["name"], entry["metric"], entry["kind"], *amounts))
    return rules


def calls_of(rules: Sequence[Rule], published: Iterable[Published]) -> dict[str, Call]:
    """Return the commands that the journalled readings call for, by id."""
    samples: dict[tuple[str, str], dict[str, Sample]] = {}
    for p in published:
        if p.value is not None and not p.fault:
            sample = Sample(p.id, datetime.fromisoformat(p.ts), p.value)
            samples.setdefault((p.device, p.metric), {})[p.id] = sample
    calls: dict[str, Call] = {}
    for (device, metric), found in samples.items():
        calls |= expected_commands(rules, device, metric, list(found.values()))
    return calls


def expected_commands(
    rules: Iterable[Rule], device: str, metric: str, samples: Sequence[Sample]
) -> dict[str, Call]:
    """Return the commands that these readings of one device call for, by id."""
    ordered = sorted(samples, key=lambda s: (s.ts, s.reading_id))
    before = [None, *ordered[:-1]]
    return {
        command_id(rule.name, device, sample.reading_id): Call(device, rule.name, sample.reading_id)
        for rule in rules
        if rule.metric == metric
        for previous, sample in zip(before, ordered, strict=False)
        if _fires(rule, previous, sample)
    }


def _fires(rule: Rule, previous: Sample | None, sample: Sample) -> bool:
    if rule.kind == "below":
        return sample.value < rule.limit and (previous is None or previous.value >= rule.limit)
    if previous is None:
        return False
    minutes = (sample.ts - previous.ts).total_seconds() / 60
    return 0 < minutes <= rule.within_minutes and previous.value - sample.value > rule.per_minute * minutes

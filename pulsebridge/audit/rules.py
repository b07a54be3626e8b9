"""Recomputes the alert rules in plain Python: the commands that a device's readings require.

It shares only the rules file with the Spark job. A rule evaluates the readings of its metric in the order of the
device's time. ``below`` fires if a reading is under the limit and the previous one was not, or does not exist.
``falling`` fires if the value drops by more than ``per_minute`` a minute since the previous reading. It does not fire
if that reading is older than ``within`` or has the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from bridge.errors import ConfigError
from bridge.settings.units import Duration
from pulsebridge.audit.records import Call, Published

__all__ = ["Rule", "calls_of", "command_id", "load_rules", "read_rules"]

_KINDS: Final = ("below", "falling")
_NOT_RECOMPUTED: Final = {"clear", "for", "over", "notify_cleared"}


@dataclass(frozen=True, slots=True)
class Rule:
    """The part of an alert rule that decides about a command."""

    name: str
    metric: str
    kind: str
    limit: float = 0.0
    per_minute: float = 0.0
    within_s: float = 0.0


def command_id(rule: str, device: str, reading_id: str) -> str:
    """Return the id of a rule's command for a reading."""
    return hashlib.sha256(f"{rule}|{device}|{reading_id}".encode()).hexdigest()[:32]


def load_rules(path: Path) -> list[Rule]:
    """Read the alert rules of a rules file. Raises ConfigError for rules that cannot be recomputed."""
    return read_rules(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def read_rules(body: Mapping[str, Any], origin: str) -> list[Rule]:
    """Return the alert rules of a rules file's content. Raises ConfigError for rules that cannot be recomputed."""
    rules = []
    for entry in body.get("alerts", ()):
        unknown = sorted(_NOT_RECOMPUTED & entry.keys())
        if entry["kind"] not in _KINDS:
            unknown.insert(0, f"kind {entry['kind']!r}")
        if unknown:
            raise ConfigError(
                f"{origin}: alert {entry['name']} has {', '.join(unknown)}, which the audit cannot recompute",
                remedy="use below or falling, or add it to pulsebridge.audit.rules",
            )
        limit, per_minute = (float(entry.get(name, 0)) for name in ("limit", "per_minute"))
        within_s = float(Duration(entry.get("within", "0s")))
        rules.append(Rule(entry["name"], entry["metric"], entry["kind"], limit, per_minute, within_s))
    return rules


def calls_of(rules: Sequence[Rule], readings: Iterable[Published]) -> dict[str, Call]:
    """Return the commands that these readings require, by id. Faults require none, and repeated ids count once."""
    known: dict[tuple[str, str], dict[str, tuple[datetime, str, float]]] = {}
    for p in readings:
        if p.value is not None and not p.fault:
            known.setdefault((p.device, p.metric), {})[p.id] = (datetime.fromisoformat(p.ts), p.id, p.value)
    return {
        command_id(rule.name, device, name): Call(device, rule.name, name)
        for (device, metric), found in known.items()
        for rule in rules
        if rule.metric == metric
        for name in _firing(rule, sorted(found.values()))
    }


def _firing(rule: Rule, readings: Iterable[tuple[datetime, str, float]]) -> Iterator[str]:
    before: tuple[datetime, float] | None = None
    for ts, name, value in readings:
        if rule.kind == "below":
            if value < rule.limit and (before is None or before[1] >= rule.limit):
                yield name
        elif before is not None:
            minutes = (ts - before[0]).total_seconds() / 60
            if 0 < minutes * 60 <= rule.within_s and before[1] - value > rule.per_minute * minutes:
                yield name
        before = (ts, value)

"""The audit of a run: the records loaded, joined, measured, and put together into one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge.settings.pulsar import PulsarSettings
from pulsebridge.audit.findings import Finding
from pulsebridge.audit.joins import findings
from pulsebridge.audit.load import load_records
from pulsebridge.audit.measures import (
    Recovery,
    Spread,
    command_latencies,
    recoveries,
    spread,
    table_latencies,
)
from pulsebridge.audit.numbers import Number, numbers
from pulsebridge.audit.records import Records
from pulsebridge.audit.selftest import Trial, self_test
from pulsebridge.demo.run_folder import RunFolder

__all__ = ["Verdict", "audit_run", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the audit of one run says."""

    records: Records
    findings: tuple[Finding, ...]
    numbers: tuple[Number, ...]
    to_table: Spread | None
    to_command: Spread | None
    kills: tuple[Recovery, ...]
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each stage of the set-up, and ``time to first row``, where the run noted them."""
    trials: tuple[Trial, ...] | None = None

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail the audit."""
        return tuple(f for f in self.findings if f.fails)

    @property
    def passed(self) -> bool:
        """Whether nothing fails, and the self-test, if made, named every tampered record.

        A killed part that never moved again fails by what is missing behind it; one that had nothing left to do
        need not move.
        """
        named = self.trials is None or all(t.passed for t in self.trials)
        return not self.failing and all(n.ok for n in self.numbers) and named

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON takes it, the records left out."""
        return {
            "passed": self.passed,
            "numbers": [n._asdict() | {"ok": n.ok} for n in self.numbers],
            "failing": [f._asdict() for f in self.failing],
            "noted": len(self.findings) - len(self.failing),
            "device_to_table_s": None if self.to_table is None else self.to_table._asdict(),
            "device_to_command_s": None if self.to_command is None else self.to_command._asdict(),
            "kills": [k._asdict() for k in self.kills],
            "stages_s": dict(self.stages),
            "self_test": None
            if self.trials is None
            else [t._asdict() | {"passed": t.passed} for t in self.trials],
        }


def audit_run(run: RunFolder, *, pulsar: PulsarSettings | None = None, tamper: bool = False) -> Verdict:
    """Audit a run. ``pulsar``: read Pulsar live. ``tamper``: test the audit itself on tampered copies.

    Raises ConfigError when the folder is not one of a run.
    """
    records = load_records(run, pulsar=pulsar)
    return judge(records, list(run.lines(run.events_file)), tamper=tamper)


def judge(records: Records, events: list[dict[str, Any]], *, tamper: bool = False) -> Verdict:
    """Return the verdict on these records and events."""
    found = findings(records)
    stages = {e["name"]: float(e["s"]) for e in events if e["e"] == "stage"}
    return Verdict(
        records=records,
        findings=tuple(found),
        numbers=tuple(numbers(records, found)),
        to_table=spread([x.seconds for x in table_latencies(records)]),
        to_command=spread([x.seconds for x in command_latencies(records)]),
        kills=tuple(recoveries(events, records)),
        stages=stages,
        trials=tuple(self_test(records)) if tamper else None,
    )

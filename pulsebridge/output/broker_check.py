"""Output of ``pulsebridge check --broker``: lines for a person, JSON for a program."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bridge.display import printable
from bridge.inspect.broker.check import BrokerReport

__all__ = ["lines_of", "report_json"]


def report_json(report: BrokerReport) -> dict[str, Any]:
    """Return a report for ``--json``."""
    return {"ok": report.ok} | asdict(report)


def lines_of(report: BrokerReport) -> list[str]:
    """Return the lines of a report: what was tried, what the broker did, what follows."""
    lines = [f"MQTT broker {report.address} ({report.link})"]
    for one in report.findings:
        lines += [f"{one.state:<9}  {one.name}: {one.tried}", f"{'':<11}{one.result}"]
        lines += [f"{'':<11}→ {follow}" for follow in one.follows]
    return [printable(line) for line in lines]

"""Output of ``pulsebridge check --broker``: lines for a person, JSON for a program, a page of several brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bridge.display import printable
from bridge.inspect.broker.findings import BrokerReport

__all__ = ["lines_of", "page_of", "report_json"]


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


def page_of(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the tables of the page: results by try and broker, and what follows for each broker.

    ``reports`` are those of ``report_json``, by the broker's name and version.
    """
    names = list(dict.fromkeys(one["name"] for report in reports.values() for one in report["findings"]))
    lines = [_row(["", *reports]), _row(["---"] * (len(reports) + 1))]
    for name in names:
        cells = []
        for report in reports.values():
            found = [one for one in report["findings"] if one["name"] == name]
            cells.append(_cell(found[0]) if found else "–")
        lines.append(_row([name, *cells]))
    for broker, report in reports.items():
        lines += ["", f"## {broker}", ""]
        follows = [
            f"- {one['name']}: {follow}"
            for one in report["findings"]
            if one["state"] != "not tried"
            for follow in one["follows"]
        ]
        lines += follows or ["- nothing to change"]
    return lines


def _cell(finding: Mapping[str, Any]) -> str:
    mark = {"ok": "", "note": "", "failed": "**fails:** ", "not tried": "*not tried:* "}[finding["state"]]
    return mark + finding["result"].replace("|", "\\|")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

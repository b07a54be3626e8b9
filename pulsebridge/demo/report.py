"""Writes ``report.html``: one page that opens offline and contains the script of its charts.

``report.html`` in this package is the page, ``charts.json`` its charts as Vega-Lite. This module computes their
figures.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

from bridge.errors import MissingExtraError
from pulsebridge.audit.measures import PARTS, Latency, Spread, command_latencies, spread, table_latencies
from pulsebridge.audit.records import Records
from pulsebridge.audit.rules import Rule, load_rules
from pulsebridge.audit.verdict import Verdict
from pulsebridge.demo.run_folder import RunFolder

__all__ = ["chart_data", "render", "write_report"]

_HERE: Final = Path(__file__).parent
_STEP_S: Final = 2
_POINTS: Final = 400
_COMMANDS: Final = 10
_FINDINGS: Final = 200


def write_report(run: RunFolder, verdict: Verdict) -> None:
    """Write the report of a run. Raises MissingExtraError without vl-convert."""
    page = render(verdict, run.manifest(), load_rules(run.rules_file))
    run.report_file.write_text(page, encoding="utf-8")


def render(verdict: Verdict, manifest: dict[str, Any], rules: Sequence[Rule] = ()) -> str:
    """Return the report as one HTML page. The limits of ``rules`` are lines in the chart of one device."""
    template = Template((_HERE / "report.html").read_text(encoding="utf-8"))
    failing, device = verdict.failing, _device_to_show(verdict.records)
    findings = f"<h2>{len(failing):,} findings</h2>" if failing else ""
    if failing:
        rows = [(f.hop, f.kind, f.detail) for f in failing[:_FINDINGS]]
        findings += _table(("hop", "kind", "what"), rows)
    marks = [(n, "" if n.wanted is None else "✓" if n.ok else f"✗ of {n.wanted:,}") for n in verdict.numbers]
    return template.substitute(
        script=_script(),
        specs=(_HERE / "charts.json").read_text(encoding="utf-8").strip(),
        data=json.dumps(chart_data(verdict, device, rules), separators=(",", ":")).replace("<", "\\u003c"),
        verdict_class="passed" if verdict.passed else "failed",
        verdict="The audit passed" if verdict.passed else "The audit failed",
        tiles=_tiles(verdict),
        fleet=html.escape(_fleet(manifest)),
        device=html.escape(device),
        numbers=_table(
            ("what", "number", "", "origin"),
            [(n.name, f"{n.value:,}", mark, n.how) for n, mark in marks],
        ),
        times=_table(("what", "seconds", "origin"), verdict.times()),
        findings=findings,
    )


def _script() -> str:
    try:
        import vl_convert
    except ImportError as e:
        raise MissingExtraError("the report needs vl-convert-python", remedy="pip install 'pulsebridge[demo]'") from e
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _fleet(manifest: dict[str, Any]) -> str:
    plan = manifest["plan"]
    faults = f"; {plan['faults']:,} faulty messages were added on purpose to show the quarantine"
    return (
        f"The {plan['devices']} devices are virtual: {' and '.join(manifest['recordings'])}, each cut into parts of "
        f"time and replayed {plan['speed']:,.0f} times faster than recorded. Every reading was really "
        f"measured{faults if plan['faults'] else ''}."
    )


def _tiles(verdict: Verdict) -> str:
    values = {n.name: n.value for n in verdict.numbers}

    def p50(of: Spread | None) -> str:
        return "–" if of is None else f"{of.p50:.2f} s"

    tiles = [
        (f"{values['real readings published']:,}", "real readings"),
        (f"{values['missing'] + values['commands missing']:,}", "missing"),
        (f"{values['out of order per device'] + values['commands out of order']:,}", "out of order"),
        (f"{values['duplicates in measurements']:,}", "duplicates in measurements"),
        (f"{values['commands received']:,}", "commands at their devices"),
        (f"{len(verdict.kills)}", "kill -9 on the way"),
        (p50(verdict.to_table), "device → table, p50"),
        (p50(verdict.to_command), "device → command, p50"),
    ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(cells, "td") for cells in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


# --- the figures of the charts, by the name of their data in charts.json ------------------------------------


def chart_data(verdict: Verdict, device: str, rules: Sequence[Rule]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each chart's data. Second 0 is the time of the first reading."""
    records = verdict.records
    start = min((p.us for p in records.published), default=0)
    ways = {
        "device → table": table_latencies(records),
        "device → command at the device": command_latencies(records),
    }
    kills = [
        {
            "second": round((k.killed_us - start) / 1e6, 2),
            "end": round((k.killed_us - start) / 1e6 + (k.seconds or 0.0), 2),
            "what": f"kill -9 {PARTS.get(k.target, k.target)}",
            "back": "never" if k.seconds is None else f"{k.seconds:.1f} s",
        }
        for k in verdict.kills
    ]
    readings = [{"time": p.ts, "value": p.value} for p in records.published if p.device == device and not p.fault]
    return {
        "kills": kills,
        "rates": _rates(records, start),
        "latency": [row for way, found in ways.items() for row in _over_time(way, found, start)],
        "distribution": [row for way, found in ways.items() for row in _shares(way, found)],
        "readings": readings,
        "commands": _commands(records, device),
        "limits": [{"limit": r.limit} for r in rules if r.kind == "below"],
    }


def _rates(records: Records, start: int) -> list[dict[str, Any]]:
    """Return readings per second at each stage, in steps, also for steps without a reading."""
    stages: dict[str, Iterable[int]] = {
        "published by the devices": (p.us for p in records.published),
        "stored in Pulsar": (s.us for s in records.stored),
        "committed to measurements": (s.us for s in records.measurements if s.us),
    }
    counts = {name: Counter((us - start) // 1_000_000 // _STEP_S for us in times) for name, times in stages.items()}
    last = max((max(of, default=0) for of in counts.values()), default=0)
    return [
        {"second": step * _STEP_S, "stage": name, "rate": of[step] / _STEP_S}
        for name, of in counts.items()
        for step in range(max(0, last) + 2)
    ]


def _over_time(way: str, latencies: Sequence[Latency], start: int) -> list[dict[str, Any]]:
    """Return p50 and p99 by the second in which the reading was sent."""
    steps: dict[int, list[float]] = {}
    for one in latencies:
        steps.setdefault((one.sent_us - start) // 1_000_000 // _STEP_S, []).append(one.seconds)
    return [
        {
            "second": step * _STEP_S,
            "way": way,
            "p50": round(short.p50, 3),
            "p99": round(short.p99, 3),
            "readings": short.samples,
        }
        for step, values in sorted(steps.items())
        if (short := spread(values)) is not None
    ]


def _shares(way: str, latencies: Sequence[Latency]) -> list[dict[str, Any]]:
    """Return the share of records up to each duration."""
    values = sorted(one.seconds for one in latencies)
    picks = sorted({round(i * (len(values) - 1) / (_POINTS - 1)) for i in range(_POINTS)}) if values else []
    return [{"way": way, "seconds": round(max(values[i], 0.001), 4), "share": (i + 1) / len(values)} for i in picks]


def _device_to_show(records: Records) -> str:
    """Return a device with about ten commands, among those with the most kinds of commands."""
    rules: dict[str, set[str]] = {}
    for e in records.emitted:
        rules.setdefault(e.device, set()).add(e.rule)
    counts = Counter(e.device for e in records.emitted)
    names = sorted({p.device for p in records.published})
    return max(names, key=lambda name: (len(rules.get(name, ())), -abs(counts[name] - _COMMANDS)), default="")


def _commands(records: Records, device: str) -> list[dict[str, Any]]:
    """Return the commands of a device, each at the reading that caused it."""
    arrived: dict[str, int] = {}
    for r in records.received:
        arrived.setdefault(r.id, r.us)
    rows = []
    for e in {e.id: e for e in records.emitted if e.device == device}.values():
        cause = records.sent.get(e.reading_id)
        if cause is not None:
            took = (arrived[e.id] - cause.us) / 1e6 if e.id in arrived else None
            arrival = "did not arrive" if took is None else f"{took:.2f} s after the reading"
            row = {
                "time": cause.ts,
                "value": cause.value,
                "rule": e.rule,
                "command": e.id[:8],
                "arrived": arrival,
            }
            rows.append(row)
    return rows

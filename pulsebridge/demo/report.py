"""Writes ``report.html``: one file that opens offline, with its charts and the script that draws them inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from string import Template
from typing import Any

from bridge.errors import MissingExtraError
from bridge.settings.loading import conf_path
from pulsebridge.audit.measures import Spread
from pulsebridge.audit.verdict import Verdict
from pulsebridge.demo.report_charts import charts
from pulsebridge.demo.report_data import TITLES, talkative
from pulsebridge.demo.run_folder import RunFolder

__all__ = ["render", "write_report"]


def write_report(run: RunFolder, verdict: Verdict) -> None:
    """Write the report of a run. Raises MissingExtraError without altair and vl-convert."""
    run.report_file.write_text(render(verdict, run.manifest()), encoding="utf-8")


def render(verdict: Verdict, manifest: dict[str, Any]) -> str:
    """Return the report as one HTML page."""
    specs = charts(verdict.records, verdict.kills)
    plan = manifest["plan"]
    template = Template(conf_path("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        script=_script(),
        specs=json.dumps(specs, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        verdict_class="passed" if verdict.passed else "failed",
        verdict="The audit passed" if verdict.passed else "The audit failed",
        tiles=_tiles(verdict),
        fleet=html.escape(_fleet(plan, manifest["recordings"].values())),
        device=html.escape(talkative(verdict.records)),
        numbers=_table(
            ("what", "number", "", "how it is got"),
            [
                (
                    n.name,
                    f"{n.value:,}",
                    "" if n.wanted is None else "✓" if n.ok else f"✗ of {n.wanted:,}",
                    n.how,
                )
                for n in verdict.numbers
            ],
        ),
        times=_table(("what", "seconds", "how it is got"), _times(verdict)),
        findings=_findings(verdict),
    )


def _script() -> str:
    try:
        import vl_convert
    except ImportError as e:
        raise MissingExtraError(
            "the report needs vl-convert-python", remedy="pip install 'pulsebridge[demo]'"
        ) from e
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _fleet(plan: dict[str, Any], recordings: Iterable[str]) -> str:
    return (
        f"The {plan['devices']} devices are virtual: {' and '.join(recordings)}, each cut into stretches of time and "
        f"replayed {plan['speed']:,.0f} times faster than they were recorded. Every reading was really measured"
        + (
            f"; {plan['faults']:,} faulty messages were added on purpose to show the quarantine."
            if plan["faults"]
            else "."
        )
    )


def _tiles(verdict: Verdict) -> str:
    by_name = {n.name: n for n in verdict.numbers}
    missing = by_name["missing"].value + by_name["commands missing"].value
    disorder = by_name["out of order per device"].value + by_name["commands out of order"].value
    tiles = [
        (f"{by_name['real readings published'].value:,}", "real readings"),
        (f"{missing:,}", "missing"),
        (f"{disorder:,}", "out of order"),
        (f"{by_name['duplicates in silver'].value:,}", "duplicates in silver"),
        (f"{by_name['commands received'].value:,}", "commands at their devices"),
        (f"{len(verdict.kills)}", "kill -9 on the way"),
        (_p50(verdict.to_table), "device → table, p50"),
        (_p50(verdict.to_command), "device → command, p50"),
    ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)


def _p50(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.p50:.2f} s"


def _times(verdict: Verdict) -> list[tuple[str, str, str]]:
    rows = [
        (name, "–" if s is None else f"{s.p50:.2f} / {s.p99:.2f} / {s.max:.2f}", how)
        for name, s, how in (
            ("device → table, p50 / p99 / max", verdict.to_table, "sent by the device → commit in silver"),
            (
                "device → command at the device, p50 / p99 / max",
                verdict.to_command,
                "reading sent → its command journalled by the device",
            ),
        )
    ]
    rows += [
        (
            f"kill -9 {TITLES.get(k.target, k.target)}",
            "not back" if k.seconds is None else f"{k.seconds:.1f}",
            "kill → its first output after the restart",
        )
        for k in verdict.kills
    ]
    return rows + [
        (name.strip(), f"{seconds:.1f}", "set-up, the demo's clock")
        for name, seconds in verdict.stages.items()
    ]


def _findings(verdict: Verdict) -> str:
    if not verdict.failing:
        return ""
    rows = [(f.hop, f.kind, f.detail) for f in verdict.failing[:200]]
    return f"<h2>{len(verdict.failing):,} findings</h2>" + _table(("hop", "kind", "what"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        "<table><thead><tr>"
        + "".join(f"<th>{html.escape(h)}</th>" for h in head)
        + f"</tr></thead><tbody>{cells}</tbody></table>"
    )

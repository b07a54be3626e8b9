"""The verdict as people read it: a table of numbers with how each is got, the findings, the times."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bridge.display import printable
from pulsebridge.audit.measures import Spread
from pulsebridge.audit.verdict import Verdict

__all__ = ["render", "show"]

_SHOWN = 20
_NAMES = {"ingest": "ingest worker", "push": "push worker", "spark": "Spark driver", "pulsar": "Pulsar"}


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict."""
    console.print(render(verdict))


def render(verdict: Verdict) -> RenderableType:
    """Return the verdict as one renderable."""
    parts: list[RenderableType] = [_numbers(verdict), _times(verdict)]
    if verdict.failing:
        parts.append(_findings(verdict))
    if verdict.trials is not None:
        parts.append(_trials(verdict))
    parts.append(
        Text("The audit passed: nothing that was acknowledged is missing.", style="bold green")
        if verdict.passed
        else Text("The audit failed.", style="bold red")
    )
    return Group(*parts)


def _numbers(verdict: Verdict) -> Table:
    table = Table(title="Audit", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("how it is got", style="dim", overflow="fold")
    for n in verdict.numbers:
        mark = (
            Text("")
            if n.wanted is None
            else Text("✓", style="green")
            if n.ok
            else Text("✗", style="bold red")
        )
        value = f"{n.value:,}" if n.ok or n.wanted is None else f"{n.value:,} of {n.wanted:,}"
        table.add_row(n.name, value, mark, n.how)
    return table


def _times(verdict: Verdict) -> Table:
    table = Table(title="Times", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("how it is got", style="dim", overflow="fold")
    for name, seconds in verdict.stages.items():
        table.add_row(name, f"{seconds:.1f}", "the demo's clock")
    table.add_row(
        "device → table", _spread(verdict.to_table), "p50 / p99 / max: sent by the device → commit in silver"
    )
    table.add_row(
        "device → command at the device",
        _spread(verdict.to_command),
        "p50 / p99 / max: reading sent → its command journalled by the device",
    )
    for kill in verdict.kills:
        came_back = (
            Text("no output since", style="yellow") if kill.seconds is None else Text(f"{kill.seconds:.1f}")
        )
        table.add_row(
            f"kill -9 {_NAMES.get(kill.target, kill.target)}",
            came_back,
            "kill → its first output after the restart",
        )
    return table


def _spread(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.p50:.2f} / {spread.p99:.2f} / {spread.max:.2f}"


def _findings(verdict: Verdict) -> Table:
    table = Table(title=f"{len(verdict.failing):,} findings", title_justify="left", title_style="bold red")
    table.add_column("hop")
    table.add_column("kind")
    table.add_column("what", overflow="fold")
    for finding in verdict.failing[:_SHOWN]:
        table.add_row(finding.hop, finding.kind, Text(printable(finding.detail)))
    if len(verdict.failing) > _SHOWN:
        table.add_row("…", "", f"{len(verdict.failing) - _SHOWN:,} more: pulsebridge audit --json shows all")
    return table


def _trials(verdict: Verdict) -> Table:
    table = Table(
        title="Self-test: one record tampered with in a copy", title_justify="left", title_style="bold"
    )
    table.add_column("hop")
    table.add_column("tampering")
    table.add_column("")
    table.add_column("what the audit said", overflow="fold")
    for trial in verdict.trials or ():
        mark = Text("✓", style="green") if trial.passed else Text("✗", style="bold red")
        table.add_row(
            trial.hop,
            trial.act,
            mark,
            Text(printable(trial.named or f"nothing that names {' and '.join(trial.records)}")),
        )
    return table

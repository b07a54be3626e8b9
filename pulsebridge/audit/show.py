"""Prints a verdict: the numbers and times with their origin, and the findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.display import printable
from pulsebridge.audit.verdict import Verdict

__all__ = ["show"]

_SHOWN = 20


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict."""
    ok, bad = Text("✓", style="green"), Text("✗", style="bold red")
    _table(
        console,
        "Audit",
        ("what", "number", "", "origin"),
        (
            (
                n.name,
                f"{n.value:,}" if n.wanted is None or n.ok else f"{n.value:,} of {n.wanted:,}",
                "" if n.wanted is None else ok if n.ok else bad,
                n.how,
            )
            for n in verdict.numbers
        ),
    )
    _table(console, "Times", ("what", "seconds", "origin"), verdict.times())
    failing = verdict.failing
    if failing:
        rows = [(f.hop, f.kind, printable(f.detail)) for f in failing[:_SHOWN]]
        if len(failing) > _SHOWN:
            more = f"{len(failing) - _SHOWN:,} more: pulsebridge audit --json shows all"
            rows.append(("…", "", more))
        _table(console, f"{len(failing):,} findings", ("hop", "kind", "what"), rows)
    console.print(
        Text("The audit passed: no acknowledged message is missing.", style="bold green")
        if verdict.passed
        else Text("The audit failed.", style="bold red")
    )


def _table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in columns:
        is_figure = name in ("number", "seconds")
        table.add_column(name, justify="right" if is_figure else "left", no_wrap=is_figure, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(table)

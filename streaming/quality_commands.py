"""The commands ``pulsebridge quality run``, ``docs`` and ``rules``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.display import json_text
from bridge.options import ConfigOption, JsonOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.settings import Settings
    from streaming.predicates import Suite
    from streaming.quality_run import Asked

__all__ = ["register"]

_Table = Annotated[
    str,
    typer.Option(
        "--table",
        help="silver, quarantine, silver+quarantine (what the suite judged), or any Delta table by name or path.",
    ),
]
_Suite = Annotated[
    Path | None,
    typer.Option("--suite", metavar="FILE", help="Suite; else streaming.expectations.", show_default=False),
]
_Since = Annotated[
    str,
    typer.Option(
        metavar="AGE|TIME",
        help="Rows processed since: 90s, 15m, 2h, 3d, or an ISO time.",
        show_default=False,
    ),
]
_Until = Annotated[
    str, typer.Option(metavar="AGE|TIME", help="Rows processed before, likewise.", show_default=False)
]
_Rows = Annotated[int, typer.Option("--rows", min=0, help="The newest rows at most; 0 for all.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="Judge tables by their suite: run, docs, rules.", no_args_is_help=True)
    commands.command("run")(_run)
    commands.command("docs")(_docs)
    commands.command("rules")(_rules)
    app.add_typer(commands, name="quality")


def _run(
    config: ConfigOption = None,
    sets: SetOption = None,
    table: _Table = "silver",
    suite: _Suite = None,
    since: _Since = "",
    until: _Until = "",
    rows: _Rows = 0,
    as_json: JsonOption = False,
) -> None:
    """Judge a table, or a span of it, by the suite now, and append the verdicts to the table of results.

    Run it after the suite was edited to see what of silver would not pass any more, and with --table quarantine to see
    what holds the rows there. Nothing is moved. Exit code 1 when an expectation is not met.

    Example: pulsebridge quality run --table silver+quarantine --since 2h
    """
    _judge(settings_from(config, sets), suite, _asked(table, since, until, rows), None, as_json)


def _docs(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pages.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    table: _Table = "silver",
    suite: _Suite = None,
    since: _Since = "",
    until: _Until = "",
    rows: _Rows = 0,
) -> None:
    """Judge as run does, and write that validation as Great Expectations' Data Docs: index.html and suite.html.

    The pages load nothing from anywhere and hold counts, no values of rows. Exit code 1 when an expectation is not met.

    Example: pulsebridge quality docs --out build/docs --since 1d
    """
    _judge(settings_from(config, sets), suite, _asked(table, since, until, rows), out, False)


def _rules(
    config: ConfigOption = None,
    sets: SetOption = None,
    suite: _Suite = None,
    as_json: JsonOption = False,
) -> None:
    """Load the suite and tell which expectations split rows, and which are verdicts on the table only.

    Example: pulsebridge quality rules
    """
    from rich.console import Console

    from streaming.quality_run import show_rules

    found = _suite(settings_from(config, sets), suite)
    if as_json:
        entries = [
            {
                "rule": r.name,
                "expectation": r.expectation,
                "columns": r.columns,
                "splits_rows": bool(r.predicate),
            }
            for r in found.rules
        ]
        typer.echo(json_text({"suite": found.name, "rules": entries}, indent=2))
        return
    Console().print(show_rules(found.rules, found.name))


def _judge(settings: Settings, file: Path | None, asked: Asked, out: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from streaming.expectations import check_suite
    from streaming.local_run import local_tables
    from streaming.quality_run import judge, show

    suite = _suite(settings, file)
    check_suite(suite)  # what is wrong in it is said before Spark is started
    with local_tables(settings) as (spark, tables):
        found = judge(spark, tables, suite, asked, out)
    if as_json:
        typer.echo(json_text(found.as_json(), indent=2))
    else:
        Console().print(show(found))
        if out is not None:
            typer.echo(f"wrote {out / 'index.html'}")
    if not found.success:
        raise typer.Exit(1)


def _suite(settings: Settings, file: Path | None) -> Suite:
    from bridge.settings.loading import conf_path
    from streaming.predicates import load_suite

    return load_suite(file or settings.streaming.expectations or conf_path("expectations/silver.json"))


def _asked(table: str, since: str, until: str, rows: int) -> Asked:
    from bridge.dead_letters.showing import since_us
    from streaming.quality_run import Asked

    now = time.time_ns() // 1000
    begin, end = (since_us(text, now) if text else 0 for text in (since, until))
    return Asked(table, begin, end, rows)

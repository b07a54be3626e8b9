"""The commands ``pulsebridge quality run`` and ``rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.errors import ConfigError
from pulsebridge.cli.options import ConfigOption, JsonOption, SetOption, settings_from
from pulsebridge.cli.tables import job_of
from pulsebridge.output.text import json_text

if TYPE_CHECKING:
    from streaming.checkpoints import Verdict

__all__ = ["register"]

_Table = Annotated[str, typer.Argument(help="The table, as it was declared.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="Suites of Great Expectations: run, rules.", no_args_is_help=True)
    commands.command("run")(_run)
    commands.command("rules")(_rules)
    app.add_typer(commands, name="quality")


def _run(table: _Table, config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Validate all rows of a table and of its quarantine by its current suite; update the Data Docs.

    It moves no row: `pulsebridge tables rebuild` does that. Exit code 1 if an expectation is not met.

    Example: pulsebridge quality run measurements
    """
    from streaming.quality import all_verdicts

    with job_of(settings_from(config, sets)) as job:
        name = job.pipeline.tables[table].suite if table in job.pipeline.tables else None
        if name is None:
            raise ConfigError(f"table {table!r} has no suite", remedy="name one in its declaration: suite")
        found = all_verdicts(job.spark, job.reader, table, job.suites.suite(name))
    if as_json:
        typer.echo(json_text([v.as_dict() for v in found], indent=2))
    else:
        typer.echo("\n".join(f"{'ok  ' if v.success else 'FAIL'}  {_line(v)}" for v in found))
    if not all(v.success for v in found):
        raise typer.Exit(1)


def _rules(
    suite: Annotated[str, typer.Argument(help="The suite; default: all of the project.")] = "",
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the expectations of suites that split rows, and those that only evaluate the table.

    Example: pulsebridge quality rules measurements
    """
    from streaming.loading import pipeline_of
    from streaming.suites import Suites

    settings = settings_from(config, sets)
    pipeline_of(settings)  # custom expectations of the user are in modules
    suites = Suites(settings.streaming.suites)
    rules = [(name, rule) for name in ([suite] if suite else suites.names()) for rule in suites.suite(name).rules]
    if as_json:
        fields = ("expectation", "columns", "severity", "splits")
        found = [{"suite": name, "rule": r.name, **{field: getattr(r, field) for field in fields}} for name, r in rules]
        typer.echo(json_text(found, indent=2))
        return
    for name, rule in rules:
        typer.echo(f"{name}  {rule.name}  {rule.expectation}  {rule.severity if rule.splits else 'verdict only'}")


def _line(verdict: Verdict) -> str:
    rows = "" if verdict.evaluated is None else f"  {verdict.unexpected} of {verdict.evaluated} rows"
    return f"{verdict.rule.name}{rows}{'  ' + verdict.observed if verdict.observed else ''}"

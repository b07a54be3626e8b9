"""The commands ``pulsebridge quarantine list``, ``show`` and ``replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from pulsebridge.cli.options import ConfigOption, SetOption, settings_from
from pulsebridge.cli.tables import carry_out, job_of, moment
from pulsebridge.output.text import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streaming.job import Job

__all__ = ["register"]

_Table = Annotated[str, typer.Option("--table", help="Rows of this table.")]
_Rule = Annotated[str, typer.Option("--rule", help="Rows that failed this rule.")]
_Device = Annotated[str, typer.Option("--device", help="Rows of this device.")]
_Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Rows validated since, ISO 8601, UTC.")]
_SHOWN_BYTES: Final = 160
_NONE: Final = "no row is quarantined"
# fmt: off


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    commands = typer.Typer(help="Rows that failed a rule: list, show, replay.", no_args_is_help=True)
    for name, command in (("list", _list), ("show", _show), ("replay", _replay)):
        commands.command(name)(command)
    app.add_typer(commands, name="quarantine")


def _list(
    config: ConfigOption = None, sets: SetOption = None,
    table: _Table = "", rule: _Rule = "", device: _Device = "", since: _Since = "",
) -> None:
    """Count quarantined rows by table and rule; a row counts for each rule that it failed.

    Example: pulsebridge quarantine list --since 2026-01-01
    """
    from pyspark.sql import functions as F

    with job_of(settings_from(config, sets)) as job:
        rows = _rows(job, table, rule, device, since).select("table", F.explode("failed_rules").alias("rule"))
        found = rows.groupBy("table", "rule").count().orderBy(F.desc("count"), "table", "rule").collect()
    typer.echo(text_of([f"{row['count']:>9}  {row['table']}  {row['rule']}" for row in found] or [_NONE]))


def _show(
    config: ConfigOption = None, sets: SetOption = None,
    table: _Table = "", rule: _Rule = "", device: _Device = "", since: _Since = "",
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many to show, the newest first.")] = 10,
) -> None:
    """Show quarantined rows with reason and payload.

    Example: pulsebridge quarantine show --table readings --rule undecodable
    """
    from pulsebridge.output.dead_letters import body_of

    lines = []
    with job_of(settings_from(config, sets)) as job:
        newest = _rows(job, table, rule, device, since).orderBy("validated_at", ascending=False)
        for row in newest.limit(rows).collect():
            lines.append(f"{row['validated_at']}  {row['table']}  {row['mqtt_topic']}  {', '.join(row['failed_rules'])}")
            payload = bytes(row["payload"] or (row["row"] or "").encode())
            lines += [f"    {line}" for line in (row["reason"], *body_of(payload, _SHOWN_BYTES))]
    typer.echo(text_of(lines or [_NONE]))


def _replay(
    config: ConfigOption = None, sets: SetOption = None,
    table: _Table = "", rule: _Rule = "", device: _Device = "", since: _Since = "",
) -> None:
    """Revalidate messages that have quarantined rows, by the current declarations and suites.

    The messages are read from bronze. Valid rows move to their table; the others stay, with the rules that they fail
    now. If the job runs, it executes the request; restart it first if a declaration or a suite has changed.

    Example: pulsebridge quarantine replay --table readings --rule undecodable
    """
    with job_of(settings_from(config, sets)) as job:
        tables = _rows(job, table, rule, device, since).select("table").distinct().collect()
        for name in sorted(row[0] for row in tables):
            carry_out(job, "replay", name, rule=rule, device=device, since=moment(since))
    if not tables:
        typer.echo(_NONE)


def _rows(job: Job, table: str, rule: str, device: str, since: str) -> DataFrame:
    from streaming.upkeep import selected

    rows = job.reader.table("quarantine").read(job.spark)
    return rows.where(selected({"table": table, "rule": rule, "device": device, "since": moment(since)}))

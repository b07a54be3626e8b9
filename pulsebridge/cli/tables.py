"""The commands ``pulsebridge tables rebuild``, ``forget`` and ``optimise``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.display import printable
from bridge.errors import ConfigError, PulsebridgeError
from pulsebridge.cli.options import ConfigOption, SetOption, settings_from

if TYPE_CHECKING:
    from bridge.settings import Settings
    from streaming.job import Job

__all__ = ["carry_out", "job_of", "moment", "register"]

_LEFT: Final = (
    "old files of the tables, for time travel, until VACUUM: --vacuum, or `tables optimise` after 7 days "
    "(delta.deletedFileRetentionDuration)",
    "bounds of columns in the tables' logs, which may name the device, for 30 days (delta.logRetentionDuration)",
    "the state of alerts, until the device was offline for streaming.alert_state_expiry",
    "messages that a driver of commands (--part commands) has not read yet: their alerts follow later",
    "Pulsar, system namespace: commands, receipts, alerts and dead letters of the device as long as its retention; the "
    "newest record of each key of compacted topics without end",
)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    tables = typer.Typer(help="Maintenance of the tables, with the job running or stopped.", no_args_is_help=True)
    for name, command in (("rebuild", _rebuild), ("forget", _forget), ("optimise", _optimise)):
        tables.command(name)(command)
    app.add_typer(tables, name="tables")


def _rebuild(
    table: Annotated[str, typer.Argument(help="The table, as it was declared.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Messages that arrived since, ISO 8601, UTC.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Messages that arrived before.")] = "",
    device: Annotated[str, typer.Option(help="Messages of this device.")] = "",
) -> None:
    """Rebuild rows of a table and its quarantine from bronze, by its current declaration and suite.

    Rows of messages that bronze lacks stay as they are. Views update automatically; a view given as the table is
    recomputed as a whole. If the job runs, it executes the request; restart it first if a declaration or a suite has
    changed.

    Example: pulsebridge tables rebuild readings --since 2026-01-01 --device band-17
    """
    first, end = moment(since), moment(until)
    if first and end and datetime.fromisoformat(first) >= datetime.fromisoformat(end):
        raise ConfigError(f"--until {until} is not after --since {since}", remedy="swap them, or leave one out")
    with job_of(settings_from(config, sets)) as job:
        carry_out(job, "rebuild", table, since=first, until=end, device=device)


def _forget(
    device: Annotated[str, typer.Argument(help="The device, as the tables have it.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Delete old files and earlier versions too.")] = False,
) -> None:
    """Delete the rows of a device in every table, and print its remaining data elsewhere.

    Stop the device first, because its later messages are stored as usual. The flows process the available messages
    first.

    Example: pulsebridge tables forget band-17 --vacuum
    """
    settings = settings_from(config, sets)
    if not yes:
        typer.confirm(f"Delete every row of device {printable(device)} for good?", abort=True)
    with job_of(settings) as job:
        carry_out(job, "forget", device=device, vacuum=vacuum)
    typer.echo("\n  ".join(("remaining data:", *_LEFT[vacuum:], *_in_pulsar(settings))))


def _optimise(
    table: Annotated[str, typer.Argument(help="The table; default: all.")] = "",
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Merge small files and cluster rows (OPTIMIZE), and delete files that were unused for days (VACUUM).

    Example: pulsebridge tables optimise readings
    """
    with job_of(settings_from(config, sets)) as job:
        carry_out(job, "optimise", table)


def carry_out(job: Job, kind: str, table: str = "", **arguments: Any) -> None:
    """Execute a request and print its result; ignore empty arguments."""
    from streaming.upkeep import Upkeep

    upkeep = Upkeep(job)
    result = upkeep.settle(upkeep.ask(kind, table, **{name: value for name, value in arguments.items() if value}))
    typer.echo(printable(result))


@contextmanager
def job_of(settings: Settings) -> Iterator[Job]:
    """Yield the pipeline in a session like the job's; none of its flows runs. Spark prints to a log of its own, because
    the job may run in the same folder, and nothing to stdout.
    """
    from rich.console import Console

    from pulsebridge.spark_session import job_session
    from streaming.job import Job
    from streaming.loading import pipeline_of

    pipeline = pipeline_of(settings)  # an error in the files is reported before Spark starts
    log = settings.streaming.spark.log
    spark_settings = settings.streaming.spark.model_copy(update={"log": log.with_stem(f"{log.stem}-upkeep")})
    streaming = settings.streaming.model_copy(update={"spark": spark_settings})
    # The session's start redirects the descriptor of stderr, but not its copy.
    with os.fdopen(os.dup(2), "w") as console, Console(file=console).status("starting Spark"):
        spark = job_session(settings.model_copy(update={"streaming": streaming}), console=2)
    try:
        yield Job(spark, settings, pipeline)
    finally:
        spark.stop()


def moment(text: str) -> str:
    """Return a time with its zone, UTC by default; empty stays empty. Raises ConfigError if it is not ISO 8601."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None  # Python 3.10 knows no Z
    except ValueError as e:
        raise ConfigError(f"{text!r} is not a time", remedy="give one in ISO 8601, like 2026-01-01T12:00") from e
    return "" if found is None else (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).isoformat()


def _in_pulsar(settings: Settings) -> list[str]:
    """Return a line for each namespace: how long Pulsar keeps messages that all subscriptions have read."""
    from bridge.pulsar.admin import PulsarAdmin

    lines = []
    with PulsarAdmin(settings.pulsar) as admin:
        for namespace in settings.pulsar.readings_namespaces:
            try:
                found = admin.request("GET", f"/namespaces/{namespace}").get("retention_policies") or {}
                minutes, size = found.get("retentionTimeInMinutes") or 0, found.get("retentionSizeInMB") or 0
                kept = "without end" if minutes < 0 else f"for {minutes} minutes and 4 hours more at most"
                kept += f", or until a topic has {size} MB" if size > 0 else ""
                kept = kept if minutes and size else "until every subscription has read them"
            except PulsebridgeError as e:
                kept = f"for an unknown time: {e.what}"
            lines.append(f"Pulsar, {namespace}: messages of the device {kept}")
    return lines

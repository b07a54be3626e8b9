"""The commands ``pulsebridge tables rebuild`` and ``forget``: they submit ``streaming/tables_job.py`` to Spark."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.options import ConfigOption, SetOption

if TYPE_CHECKING:  # building the models takes longer than showing a help page
    from bridge.settings import Settings

__all__ = ["register"]

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the counts and change nothing.")]
_Print = Annotated[bool, typer.Option("--print", help="Print the spark-submit command and stop.")]


class Rebuilt(str, Enum):
    """What can be rebuilt."""

    silver = "silver"
    gold = "gold"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    tables = typer.Typer(help="Care of the tables beside the running jobs.", no_args_is_help=True)
    tables.command("rebuild")(_rebuild)
    tables.command("forget")(_forget)
    app.add_typer(tables, name="tables")


def _rebuild(
    table: Annotated[
        Rebuilt,
        typer.Argument(
            help="silver, with quarantine and what is made of it; gold, with device_latest, alone."
        ),
    ],
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Begin of the span, ISO 8601; UTC without a zone.")
    ],
    end: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Its end, from which on nothing is rebuilt.")
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
    dry_run: _DryRun = False,
    print_only: _Print = False,
) -> None:
    """Recompute silver and quarantine of a span from bronze, by the decoders and the suite as they are now.

    The span is one of arrival at ingest; of gold alone it is one of event time, in whole days. The jobs may run; restart them first where rules were edited, since they keep
    those that they began with. Rows that are right stay untouched, each table changes in one transaction, no command
    comes of it, and what was killed is done by a second run. Gold and device_latest are recomputed from silver for the
    days of event time that changed; readings that were too late for their window are in it then.

    Example: pulsebridge tables rebuild silver --from 2026-01-01 --to 2026-01-02 --dry-run
    """
    from streaming.job import plan_of
    from streaming.rebuild import Span

    Span.parse(begin, end)
    plan_of(_settings(config, sets))  # what is wrong in the files is said before Spark is started
    flags = ["--dry-run"] if dry_run else []
    _submit(["rebuild", table.value, "--from", begin, "--to", end, *flags], config, sets, print_only)


def _forget(
    device: Annotated[str, typer.Argument(help="The device, as the column device has it.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: _DryRun = False,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="How long to wait for queries that are behind, in seconds.")
    ] = 60.0,
    print_only: _Print = False,
) -> None:
    """Delete every row of a device in every table, and say what is left of it where, and until when.

    The jobs may run. Stop the device first: what it publishes afterwards is stored as before.

    Example: pulsebridge tables forget band-17
    """
    _settings(config, sets)
    if not (yes or dry_run or print_only):
        typer.confirm(f"Delete every row of device {device} for good?", abort=True)
    flags = ["--dry-run"] if dry_run else ["--wait", f"{wait_s:g}"]
    # Options first, then --: a device may be called anything.
    _submit(["forget", *flags], config, sets, print_only, ["--", device])


def _settings(config: Path | None, sets: list[str] | None) -> Settings:
    from bridge.options import settings_from

    return settings_from(config, sets)


def _submit(
    arguments: Sequence[str],
    config: Path | None,
    sets: list[str] | None,
    print_only: bool,
    last: Sequence[str] = (),
) -> None:
    from streaming.spark_submit import become_submit, config_arguments

    given = [*arguments, *config_arguments(config, sets), *last]
    job = Path(__file__).with_name("tables_job.py")
    become_submit(_settings(config, sets), given, job=job, print_only=print_only)

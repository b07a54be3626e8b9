"""The command ``pulsebridge stream``: writes the spark-submit line of the jobs for this machine and becomes it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bridge.options import ConfigOption, SetOption
from streaming.spark_submit import become_submit, config_arguments
from streaming.submission import Target

__all__ = ["register"]


class Query(str, Enum):
    """The queries by name."""

    bronze = "bronze"
    silver = "silver"
    alerts = "alerts"
    gold = "gold"
    latest = "latest"


def register(app: typer.Typer) -> None:
    """Add the commands of this tier to the command line."""
    from streaming import quality_commands, quarantine_commands, tables_commands

    tables_commands.register(app)
    quality_commands.register(app)
    quarantine_commands.register(app)

    @app.command("stream", help=_HELP)
    def stream(
        config: ConfigOption = None,
        sets: SetOption = None,
        only: Annotated[
            list[Query] | None,
            typer.Option("--only", help="Run this query only; may be repeated. Default: streaming.queries."),
        ] = None,
        available_now: Annotated[
            bool, typer.Option("--available-now", help="Process what is there, then end.")
        ] = False,
        print_only: Annotated[
            bool, typer.Option("--print", help="Print the spark-submit command and stop.")
        ] = False,
    ) -> None:
        _stream(config, sets, [name.value for name in only or ()], available_now, print_only)

    @app.command("package")
    def package(
        target: Annotated[Target, typer.Option("--for", help="The kind of cluster.")] = Target.standalone,
        out: Annotated[
            Path,
            typer.Option("--out", metavar="FILE", help="The packed file; the rest goes into its folder."),
        ] = Path("dist/pulsebridge.pex"),
        extras: Annotated[
            list[str] | None,
            typer.Option("--extra", help="An extra to pack; may be repeated. Default: spark and avro."),
        ] = None,
        master: Annotated[
            str | None, typer.Option("--master", help="The cluster of the printed submission.")
        ] = None,
    ) -> None:
        """Pack the jobs with what they need for a Spark cluster, and print how to submit them there.

        For standalone, yarn and k8s that is one file (PEX), which needs a Python of the same minor version on each
        machine and nothing installed; for databricks the wheel and a job in JSON. Spark itself is not packed. Verdicts
        of Great Expectations need --extra quality, payloads in CBOR, zstd or protobuf --extra decoders.

        Example: pulsebridge package --for yarn --extra spark --extra quality
        """
        _package(target, out, extras, master)

    app.command("warm-up")(_warm_up)


_HELP = """Run the Spark jobs: bronze, silver with quarantine, alerts, gold with the readings that were late, and the latest state.

Examples: pulsebridge stream · pulsebridge stream --available-now · pulsebridge stream --only gold --print
"""


def _warm_up(config: ConfigOption = None, sets: SetOption = None) -> None:
    """Make Spark start faster on this machine: its JVM keeps the classes that jobs use, 0.2 GB, beside the packages.

    Takes about a minute, once for an environment; `pulsebridge stream`, notebooks and tests then find it.

    Example: pulsebridge warm-up
    """
    from bridge.options import settings_from
    from streaming.class_data import make_archive

    file = make_archive(settings_from(config, sets).local.cache_dir)
    typer.echo(f"wrote {file}, {file.stat().st_size / 1e6:.0f} MB")


def _package(target: Target, out: Path, extras: list[str] | None, master: str | None) -> None:
    from bridge.settings.loading import conf_path
    from streaming import packing, submission
    from streaming.session import delta_jars, spark_defaults

    wanted = extras or packing.EXTRAS
    job: dict[str, object] = {}
    if target is Target.databricks:
        artefact = packing.build_wheel(out.absolute().parent)
        job = submission.databricks_job(artefact.name, packing.needs_of(wanted), spark_defaults())
    else:
        artefact = packing.pack(out, extras=wanted)
    jars = [] if target is Target.databricks else delta_jars()
    written = submission.write_beside(
        target, artefact, jars=jars, properties=conf_path("spark-defaults.conf"), job=job
    )
    for file in (artefact, *written):
        typer.echo(f"# wrote {file}")
    for note in submission.notes(target):
        typer.echo(f"# {note}")
    if target is not Target.databricks:
        typer.echo(
            f"cd {shlex.quote(str(artefact.parent))} && "
            f"{submission.line(target, artefact, master or target.master, jars)}"
        )


def _stream(
    config: Path | None, sets: list[str] | None, only: Sequence[str], available_now: bool, print_only: bool
) -> None:
    from bridge.options import settings_from
    from streaming.job import plan_of

    settings = settings_from(config, sets)
    plan_of(settings)  # what is wrong in the files is said before Spark is started
    arguments = config_arguments(config, sets)
    for name in only:
        arguments += ["--only", name]
    if available_now:
        arguments.append("--available-now")
    become_submit(settings, arguments, print_only=print_only)

"""The commands ``pulsebridge stream``, which runs the job on this machine, and ``pulsebridge package`` for clusters."""

from __future__ import annotations

import os
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from pulsebridge.cli.options import ConfigOption, SetOption
from pulsebridge.submission import Target

__all__ = ["Part", "config_arguments", "register"]


class Part(str, Enum):
    """The flows of a pipeline that one driver runs."""

    commands = "commands"
    tables = "tables"


def register(app: typer.Typer) -> None:
    """Add the commands of this tier to the command line."""
    from pulsebridge.cli import quality as quality_commands
    from pulsebridge.cli import quarantine as quarantine_commands
    from pulsebridge.cli import tables as tables_commands

    tables_commands.register(app)
    quality_commands.register(app)
    quarantine_commands.register(app)

    @app.command("stream", help=_HELP)
    def stream(
        config: ConfigOption = None,
        sets: SetOption = None,
        only: Annotated[
            list[str] | None,
            typer.Option("--only", help="Run this flow only; may be repeated. Default: all."),
        ] = None,
        part: Annotated[
            Part | None,
            typer.Option("--part", help="Run the flows of commands only, or those into tables. Default: both."),
        ] = None,
        available_now: Annotated[
            bool, typer.Option("--available-now", help="Process the available messages, then end.")
        ] = False,
        print_only: Annotated[
            bool, typer.Option("--print", help="Print the spark-submit command for a cluster and stop.")
        ] = False,
    ) -> None:
        arguments = config_arguments(config, sets)
        for name in only or ():
            arguments += ["--only", name]
        if part is not None:
            arguments += ["--part", part.value]
        if available_now:
            arguments.append("--available-now")
        _stream(arguments, print_only=print_only)

    @app.command("package")
    def package(
        config: ConfigOption = None,
        target: Annotated[Target, typer.Option("--for", help="The kind of cluster.")] = Target.standalone,
        out: Annotated[
            Path,
            typer.Option("--out", metavar="FILE", help="The packed file; other files go into its folder."),
        ] = Path("dist/pulsebridge.pex"),
        extras: Annotated[
            list[str] | None,
            typer.Option("--extra", help="An extra to pack; may be repeated. Default: spark and avro."),
        ] = None,
        master: Annotated[str | None, typer.Option("--master", help="The cluster of the printed submission.")] = None,
    ) -> None:
        """Pack the job and its settings for a Spark cluster; print the submission.

        For standalone, yarn and k8s it packs one file (PEX); each machine needs only a Python of the same minor
        version. For databricks it writes the wheel and a job in JSON. Spark itself is not packed. Suites of Great
        Expectations need --extra quality, payloads in CBOR, zstd or protobuf --extra decoders.

        Example: pulsebridge package --for yarn --extra spark --extra quality
        """
        _package(config, target, out, extras, master)


_HELP = """Run the Spark pipeline: tables, views and alerts.

A separate driver gives commands the lowest latency: run `--part commands`, and `--part tables` as another process, on
one machine with `--set streaming.spark.nice=5`; each with a different metrics.port.

Examples: pulsebridge stream · pulsebridge stream --available-now · pulsebridge stream --only gold
"""


def config_arguments(config: Path | None, sets: list[str] | None) -> list[str]:
    """Return the arguments that pass the configuration file and settings of this command to the job."""
    found = [] if config is None else ["--config", str(config)]
    for pair in sets or ():
        found += ["--set", pair]
    return found


def _stream(arguments: list[str], *, print_only: bool) -> None:
    if print_only:
        from bridge.settings.loading import conf_path
        from pulsebridge.downloads.spark_jars import delta_jars
        from streaming import job

        words = ["spark-submit", "--properties-file", str(conf_path("spark-defaults.conf"))]
        words += ["--jars", ",".join(map(str, delta_jars())), str(Path(job.__file__))]
        typer.echo(shlex.join([*words, *arguments]))
        return
    from pulsebridge.spark_session import job_session
    from streaming.job import main

    sys.exit(main(arguments, job_session))


def _package(config: Path | None, target: Target, out: Path, extras: list[str] | None, master: str | None) -> None:
    from bridge.settings.loading import conf_path, file_of
    from pulsebridge import packing, submission
    from pulsebridge.downloads.spark_jars import delta_jars
    from pulsebridge.job_files import job_files
    from streaming.session import spark_defaults

    wanted = extras or packing.EXTRAS
    files = job_files(file_of(config, os.environ))
    job: dict[str, object] = {}
    if target is Target.databricks:
        artefact = packing.build_wheel(out.absolute().parent)
        job = submission.databricks_job(artefact.name, packing.needs_of(wanted), spark_defaults())
    else:
        artefact = packing.pack(out, extras=wanted)
    jars = [] if target is Target.databricks else delta_jars()
    written = submission.write_files(
        target, artefact, files=files, jars=jars, properties=conf_path("spark-defaults.conf"), job=job
    )
    for file in (artefact, *written):
        typer.echo(f"# wrote {file}")
    for note in submission.notes(target, files):
        typer.echo(f"# {note}")
    if target is not Target.databricks:
        typer.echo(
            f"cd {shlex.quote(str(artefact.parent))} && "
            f"{submission.line(target, artefact, master or target.master, jars)}"
        )

"""The command ``pulsebridge stream``: writes the spark-submit line of the jobs for this machine and becomes it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.errors import MissingExtraError
from bridge.options import ConfigOption, SetOption

if TYPE_CHECKING:  # building the models takes longer than showing a help page
    from bridge.settings import Settings

__all__ = ["register", "submit_command", "submit_environment"]


class Query(str, Enum):
    """The queries by name."""

    bronze = "bronze"
    silver = "silver"
    alerts = "alerts"


def submit_command(
    settings: Settings, arguments: Sequence[str], *, jars: Sequence[Path], job: Path | None = None
) -> list[str]:
    """Return the spark-submit command of the jobs. ``arguments`` are the job's own; ``jars`` are Delta's.

    Raises MissingExtraError when pyspark is not installed.
    """
    from importlib.util import find_spec

    from bridge.settings.loading import conf_path

    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "the Spark jobs need pyspark", remedy="pip install 'pulsebridge[local,quality]'"
        )
    streaming = settings.streaming
    return [
        str(Path(found.origin).parent / "bin" / "spark-submit"),
        "--master",
        streaming.master,
        "--driver-memory",
        streaming.driver_memory,
        "--properties-file",
        str(conf_path("spark-defaults.conf")),
        "--conf",
        f"spark.driver.extraJavaOptions={java_options()}",
        "--jars",
        ",".join(map(str, jars)),
        str(job or Path(__file__).with_name("job.py")),
        *arguments,
    ]


def java_options() -> str:
    """Return the driver's JVM options: those of conf/spark-defaults.conf, and where its log's settings are."""
    from bridge.settings.loading import conf_path
    from streaming.session import spark_defaults

    log = conf_path("spark-log4j2.properties")
    return f"{spark_defaults()['spark.driver.extraJavaOptions']} -Dlog4j2.configurationFile={log}"


def submit_environment() -> dict[str, str]:
    """Return the environment of spark-submit: driver and workers are this very Python, with the same packages."""
    packages = str(Path(__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": f"{packages}{os.pathsep}{path}" if path else packages,
        # A busy machine takes its time to start a Python worker.
        "SPARK_AUTH_SOCKET_TIMEOUT": os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "60"),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


def register(app: typer.Typer) -> None:
    """Add the commands of this tier to the command line."""

    @app.command("stream", help=_HELP)
    def stream(
        config: ConfigOption = None,
        sets: SetOption = None,
        only: Annotated[
            list[Query] | None,
            typer.Option("--only", help="Run this query only; may be repeated. Default: all three."),
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
        out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path(
            "dist/pulsebridge.pex"
        ),
        extras: Annotated[
            list[str] | None,
            typer.Option("--extra", help="An extra to pack; may be repeated. Default: spark and avro."),
        ] = None,
        master: Annotated[str, typer.Option("--master", help="The cluster of the printed submission.")] = (
            "spark://HOST:7077"
        ),
    ) -> None:
        """Pack Pulsebridge with what it needs into one file (PEX) for a standalone Spark cluster.

        The machines need a Python of the same minor version and nothing installed. Spark itself is not packed.

        Example: pulsebridge package --extra spark --extra quality
        """
        from streaming import packing
        from streaming.session import delta_jars

        pex = packing.pack(out, extras=extras or packing.EXTRAS)
        words = packing.submit_words(pex, master, delta_jars())
        typer.echo(f"cd {shlex.quote(str(pex.parent))} && {shlex.join([*words, 'JOB.py'])}")


_HELP = """Run the Spark jobs: bronze, silver with quarantine, and alerts.

Examples: pulsebridge stream · pulsebridge stream --available-now · pulsebridge stream --only bronze --print
"""


def _stream(
    config: Path | None, sets: list[str] | None, only: Sequence[str], available_now: bool, print_only: bool
) -> None:
    from bridge.options import settings_from
    from streaming.job import plan_of
    from streaming.session import delta_jars

    settings = settings_from(config, sets)
    plan_of(settings)  # what is wrong in the files is said before Spark is started
    arguments: list[str] = []
    if config is not None:
        arguments += ["--config", str(config)]
    for pair in sets or ():
        arguments += ["--set", pair]
    for name in only:
        arguments += ["--only", name]
    if available_now:
        arguments.append("--available-now")
    command = submit_command(settings, arguments, jars=delta_jars(settings.local.cache_dir))
    if print_only:
        typer.echo(shlex.join(command))
        return
    sys.stdout.flush()
    # This process becomes spark-submit, so that a signal to it reaches the driver.
    os.execve(command[0], command, submit_environment())

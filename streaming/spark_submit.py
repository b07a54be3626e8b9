"""spark-submit on this machine: its command line, its environment, and becoming it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bridge.errors import MissingExtraError

if TYPE_CHECKING:  # building the models takes longer than showing a help page
    from bridge.settings import Settings

__all__ = ["become_submit", "config_arguments", "java_options", "submit_command", "submit_environment"]


def config_arguments(config: Path | None, sets: Sequence[str] | None) -> list[str]:
    """Return the arguments that hand configuration file and settings of this command on to the job."""
    found = [] if config is None else ["--config", str(config)]
    for pair in sets or ():
        found += ["--set", pair]
    return found


def become_submit(
    settings: Settings, arguments: Sequence[str], *, job: Path | None = None, print_only: bool = False
) -> None:
    """Become spark-submit with these arguments of the job, or only print its command.

    Raises MissingExtraError when pyspark is not installed.
    """
    from streaming.session import delta_jars

    command = submit_command(settings, arguments, jars=delta_jars(settings.local.cache_dir), job=job)
    if print_only:
        typer.echo(shlex.join(command))
        return
    sys.stdout.flush()
    # This process becomes spark-submit, so that a signal to it reaches the driver.
    os.execve(command[0], command, submit_environment(settings.streaming.master))


def submit_command(
    settings: Settings, arguments: Sequence[str], *, jars: Sequence[Path], job: Path | None = None
) -> list[str]:
    """Return the spark-submit command of the jobs. ``arguments`` are the job's own; ``jars`` are Delta's.

    Raises MissingExtraError when pyspark is not installed.
    """
    from importlib.util import find_spec

    from bridge.settings.loading import conf_path
    from streaming.session import JAVA_OPTIONS, spark_defaults, spark_settings

    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "the Spark jobs need pyspark", remedy="pip install 'pulsebridge[local,quality]'"
        )
    streaming = settings.streaming
    # spark-submit reads one file of settings: the rest goes by the line.
    own = dict(spark_settings(streaming.master).items() - spark_defaults().items())
    own |= {"spark.driver.memory": streaming.driver_memory, JAVA_OPTIONS: java_options(streaming.master)}
    return [
        str(Path(found.origin).parent / "bin" / "spark-submit"),
        "--master",
        streaming.master,
        "--properties-file",
        str(conf_path("spark-defaults.conf")),
        *(word for name in sorted(own) for word in ("--conf", f"{name}={own[name]}")),
        "--jars",
        ",".join(map(str, jars)),
        str(job or Path(__file__).with_name("job.py")),
        *arguments,
    ]


def java_options(master: str) -> str:
    """Return the driver's JVM options for a master: those of the settings, where its log's settings are, shared classes."""
    from bridge.settings.loading import conf_path
    from streaming.class_data import with_shared_classes
    from streaming.session import JAVA_OPTIONS, spark_settings

    log = conf_path("spark-log4j2.properties")
    options = spark_settings(master).get(JAVA_OPTIONS, "")
    return with_shared_classes(f"{options} -Dlog4j2.configurationFile={log}".lstrip())


def submit_environment(master: str) -> dict[str, str]:
    """Return the environment of spark-submit: driver and workers are this very Python, with the same packages."""
    from bridge.python_start import local_python
    from streaming.session import on_this_machine

    here = local_python()
    packages = str(Path(__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYSPARK_PYTHON": here if on_this_machine(master) else sys.executable,
        "PYSPARK_DRIVER_PYTHON": here,
        "PYTHONPATH": f"{packages}{os.pathsep}{path}" if path else packages,
        # A busy machine takes its time to start a Python worker.
        "SPARK_AUTH_SOCKET_TIMEOUT": os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "60"),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }

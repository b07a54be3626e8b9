"""Spark sessions whose driver is this process, for `pulsebridge stream`, notebooks and tests: with Delta's jars from the
cache, and the settings of one machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from bridge.errors import TerminalError
from bridge.settings import Settings
from pulsebridge.captured_output import printing_to
from pulsebridge.downloads.spark_jars import delta_jars
from pulsebridge.local.processes import last_lines
from pulsebridge.niceness import lower_priority
from sources.python_start import local_python
from streaming.session import check_session, register, session_builder, spark_settings, submitted_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bridge.settings.streaming import Profile

__all__ = ["JAVA_OPTIONS", "job_session", "local_session"]

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
"""Name of the setting with the options of the driver's JVM."""
_LOG_S: Final = 0.5
"""Seconds in which a thread copies the last lines of a process that ended."""
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Name of the setting with the class that writes checkpoints."""


def job_session(settings: Settings, *, console: int = 1, more: Mapping[str, str | None] | None = None) -> SparkSession:
    """Return the job's session: of spark-submit or a Spark Connect server, else of this process.

    A session of this process prints to ``streaming.spark.log``, and lines of our log to the file descriptor ``console``.
    ``more``: its further Spark settings. Raises ConfigError if Delta is not on the class path, MissingExtraError without
    pyspark, TerminalError if Java does not start.
    """
    if "SPARK_REMOTE" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ:
        return submitted_session()
    jars = delta_jars(settings.local.cache_dir)
    given = settings.streaming.spark
    lower_priority(given.nice)
    session_builder()  # says so where pyspark is missing
    from pyspark.errors import PySparkRuntimeError

    own: dict[str, str | None] = {"spark.driver.memory": f"{given.driver_memory // 1024**2}m", **(more or {})}
    if "://" in settings.streaming.root:
        own[_CHECKPOINTS] = None
    try:
        with printing_to(given.log, console):
            spark = local_session(jars=jars, master=given.master, profile=given.profile, more=own)
    except PySparkRuntimeError as e:
        if e.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        time.sleep(_LOG_S)
        printed = "; ".join(last_lines(given.log, 3).splitlines())
        raise TerminalError(
            f"Java ended before Spark ran: {printed or 'it printed nothing'}",
            remedy=f"all that it printed is in {given.log}; `java -version` must say 17 or 21",
        ) from e
    check_session(spark)
    return spark


def local_session(
    name: str = "pulsebridge",
    *,
    jars: Sequence[Path] | None = None,
    master: str = "local[2]",
    profile: Profile = "latency",
    more: Mapping[str, str | None] | None = None,
) -> SparkSession:
    """Return a session whose driver is this process, with Delta's jars from the cache. ``more``: settings that replace
    those of the files; None: Spark's own default.
    """
    # The workers must run the same Python with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", local_python() if f"{master}[".startswith("local[") else sys.executable)
    if master.startswith("local"):
        # Spark would listen at the address of this machine's name, which a container or a laptop may not know.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = session_builder().appName(name).master(master)
    pairs = {
        **spark_settings(master, profile),
        "spark.jars": ",".join(map(str, delta_jars() if jars is None else jars)),
    }
    if _spark_version() < (4, 1) and _CHECKPOINTS in pairs:
        pairs[_CHECKPOINTS] = pairs[_CHECKPOINTS].replace(".checkpointing.", ".")
    for key, value in {**pairs, **(more or {})}.items():
        if value is not None:
            builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _spark_version() -> tuple[int, int]:
    from pyspark import __version__

    major, minor = __version__.split(".")[:2]
    return int(major), int(minor)

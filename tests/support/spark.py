"""One Spark session for all tests of a run: Delta, the source and the sinks are known to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.folders import made_folder
from tests.support.waiting import patient, poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings.streaming import Profile

__all__ = ["build_session", "running_session", "stop_session"]

DELTA_JARS = "PB_DELTA_JARS"
"""Environment: a folder with Delta's jars, instead of the cache."""


def build_session(
    folder: Path,
    more: Mapping[str, str] | None = None,
    master: str = "local[2]",
    profile: Profile = "latency",
    *,
    lasting: bool = False,
) -> SparkSession:
    """Return a local session whose warehouse and scratch files are below ``folder``; the caller stops it.

    Its JVM has the simple compiler only, as a job's has. ``lasting``: it has the better one too, which takes a fifth less
    time in the first ten minutes of a JVM that has a core to itself.
    """
    from pulsebridge.spark_session import JAVA_OPTIONS, local_session
    from streaming.session import spark_settings

    jars = os.environ.get(DELTA_JARS)
    for name in ("events", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    java_options = spark_settings(master)[JAVA_OPTIONS]
    if lasting:
        java_options = java_options.replace("-XX:TieredStopAtLevel=1 ", "")
    return local_session(
        "pulsebridge-tests",
        master=master,
        profile=profile,
        jars=None if jars is None else sorted(Path(jars).glob("*.jar")),
        more={
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "scratch"),
            JAVA_OPTIONS: f"{java_options} -Djava.io.tmpdir={folder / 'tmp'}",
            "spark.eventLog.enabled": "true",  # a test looks for secrets in it
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "ERROR",
            **(more or {}),
        },
    )


@contextmanager
def running_session() -> Iterator[SparkSession]:
    """Give a session for many tests to share; starting one takes seconds. Its files and its JVM go with it."""
    folder = made_folder("spark")
    try:
        spark = build_session(folder, lasting=True)
        try:
            yield spark
        finally:
            stop_session(spark)
    finally:
        poll_for(lambda: _removed(folder), 30, f"{folder} to be removed")


def _removed(folder: Path) -> bool:
    # The last Python workers may still be deleting files of their own.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def stop_session(spark: SparkSession) -> None:
    """Stop the session and its JVM, which would otherwise live as long as this process."""
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait(timeout=patient(60))
    type(spark.sparkContext)._gateway = None
    type(spark.sparkContext)._jvm = None

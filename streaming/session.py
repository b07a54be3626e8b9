"""Creates Spark sessions with Delta, the source and the sinks, for job, notebooks and tests.

``conf/spark-defaults.conf`` has the settings of every deployment, ``conf/spark-local.conf`` those of one small machine.
``conf/spark-throughput.conf`` and ``conf/spark-commands.conf`` add those for large batches and for commands alone.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import ConfigError, MissingExtraError
from bridge.settings.loading import conf_path
from sources.python_start import local_python
from streaming.captured_output import printing_to
from streaming.niceness import lower_priority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import Settings
    from bridge.settings.streaming import Profile

__all__ = ["JAVA_OPTIONS", "delta_jars", "job_session", "local_session", "spark_defaults", "spark_settings"]

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
"""Name of the setting with the options of the driver's JVM."""
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Name of the setting with the class that writes checkpoints."""


def spark_settings(master: str, profile: Profile = "latency") -> dict[str, str]:
    """Return Spark's settings for a master. ``conf/spark-defaults.conf``, and on one machine ``conf/spark-local.conf``
    and the profile's file have them.
    """
    found = spark_defaults()
    if f"{master}[".startswith("local["):
        found |= _pairs("spark-local.conf") | (_pairs(f"spark-{profile}.conf") if profile != "latency" else {})
    return found


def spark_defaults() -> dict[str, str]:
    """Return the pairs of ``conf/spark-defaults.conf``."""
    return _pairs("spark-defaults.conf")


def _pairs(name: str) -> dict[str, str]:
    found = {}
    for line in conf_path(name).read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            key, _, value = text.partition(" ")
            found[key] = value.strip()
    return found


def delta_jars(cache_dir: Path | None = None) -> list[Path]:
    """Return Delta's jars from the cache, downloaded once. Spark does not resolve them at its start."""
    from streaming.downloads.spark_jars import delta_jars as cached

    return list(cached(cache_dir))


def job_session(settings: Settings) -> SparkSession:
    """Return the job's session: of spark-submit or a Spark Connect server, else of this process.

    A session of this process prints to ``streaming.spark.log``. Raises ConfigError if Delta is not on the class path,
    MissingExtraError without pyspark.
    """
    streaming = settings.streaming
    if "SPARK_REMOTE" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ:
        spark: SparkSession = _builder().getOrCreate()
        _register(spark)
    else:
        jars = delta_jars(settings.local.cache_dir)
        lower_priority(streaming.spark.nice)
        more: dict[str, str | None] = {"spark.driver.memory": f"{streaming.spark.driver_memory // 1024**2}m"}
        if "://" in streaming.root:
            more[_CHECKPOINTS] = None
        with printing_to(streaming.spark.log):
            spark = local_session(jars=jars, master=streaming.spark.master, profile=streaming.spark.profile, more=more)
    _check_delta(spark)
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # Spark also prints a rejected query as JSON. The job logs the error in one line.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
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
    builder = _builder().appName(name).master(master)
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
    _register(spark)
    return spark


def _spark_version() -> tuple[int, int]:
    from pyspark import __version__

    major, minor = __version__.split(".")[:2]
    return int(major), int(minor)


def _check_delta(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    try:
        spark.sql("SELECT 1").collect()
        if "DeltaCatalog" not in (spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""):
            raise ConfigError(
                "Delta Lake is not Spark's catalog",
                remedy="pass spark-submit --properties-file conf/spark-defaults.conf and --jars with Delta's jars",
            )
    except PySparkException as e:
        raise ConfigError(
            f"Delta Lake is not on Spark's class path: {str(e).splitlines()[0]}",
            remedy="run `pulsebridge stream`, or pass --jars with Delta's jars",
        ) from e


def _register(spark: SparkSession) -> None:
    import sinks
    import sources

    sources.register(spark)
    sinks.register(spark)


def _builder() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "the Spark jobs need pyspark",
            remedy="pip install 'pulsebridge[local,quality]', or run them by spark-submit",
        ) from e
    return SparkSession.builder

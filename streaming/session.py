"""Spark sessions of a job, with source and sinks: of spark-submit or of a Spark Connect server.

``conf/spark-defaults.conf`` has the settings of every deployment, ``conf/spark-local.conf`` those of one small machine.
``conf/spark-throughput.conf`` and ``conf/spark-commands.conf`` add those for large batches and for commands alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError, MissingExtraError
from bridge.settings.loading import conf_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings.streaming import Profile

__all__ = ["check_session", "register", "session_builder", "spark_defaults", "spark_settings", "submitted_session"]


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


def submitted_session() -> SparkSession:
    """Return the session of spark-submit or of a Spark Connect server.

    Raises ConfigError if Delta is not on the class path, MissingExtraError without pyspark.
    """
    spark: SparkSession = session_builder().getOrCreate()
    register(spark)
    check_session(spark)
    return spark


def check_session(spark: SparkSession) -> None:
    """Raise ConfigError if the session has no Delta Lake. From here on Spark's own loggers are silent."""
    _check_delta(spark)
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # Spark also prints a rejected query as JSON. The job logs the error in one line.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


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


def register(spark: SparkSession) -> None:
    """Make the session know the source and the sinks."""
    import sinks
    import sources

    sources.register(spark)
    sinks.register(spark)


def session_builder() -> Any:
    """Return pyspark's builder of sessions. Raises MissingExtraError without pyspark."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "the Spark jobs need pyspark",
            remedy="pip install 'pulsebridge[local,quality]', or run them by spark-submit",
        ) from e
    return SparkSession.builder

"""Makes Spark sessions that know Delta, the source and the sinks: for the job, notebooks and tests.

Settings that belong to the deployment stand in ``conf/spark-defaults.conf``; the same file serves them all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError, MissingExtraError
from bridge.settings.loading import conf_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["delta_jars", "job_session", "local_session", "spark_defaults"]


def spark_defaults() -> dict[str, str]:
    """Return the pairs of ``conf/spark-defaults.conf``."""
    found = {}
    for line in conf_path("spark-defaults.conf").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, _, value = text.partition(" ")
            found[name] = value.strip()
    return found


def delta_jars(cache_dir: Path | None = None) -> list[Path]:
    """Return Delta's jars from the cache, downloaded once; never resolved at Spark's start."""
    from bridge.local.spark_jars import delta_jars as cached

    return list(cached(cache_dir))


def job_session(root: str) -> SparkSession:
    """Return the session of a job that spark-submit runs, with formats and progress file registered.

    Raises ConfigError when Delta is not on the class path.
    """
    spark: SparkSession = _builder().getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    loader = lang.Thread.currentThread().getContextClassLoader()
    try:
        lang.Class.forName("org.apache.spark.sql.delta.catalog.DeltaCatalog", True, loader)
    except _java_error() as e:
        raise ConfigError(
            "Delta Lake is not on Spark's class path",
            remedy="run `pulsebridge stream`, or give --jars with Delta's jars",
        ) from e
    _register(spark)
    from streaming.progress import ProgressFile, progress_file

    path = progress_file(root)
    if path is not None:
        spark.streams.addListener(ProgressFile(path))
    return spark


def local_session(
    name: str = "pulsebridge",
    *,
    jars: Sequence[Path] | None = None,
    master: str = "local[2]",
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session in this process, for notebooks and tests, with Delta's jars from the cache."""
    # The workers must be this very Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    pairs = spark_defaults()
    pairs["spark.jars"] = ",".join(map(str, delta_jars() if jars is None else jars))
    pairs.update(more or {})
    builder = _builder().appName(name).master(master)
    for key, value in pairs.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _register(spark)
    return spark


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


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JJavaError

    error: type[Exception] = Py4JJavaError
    return error

"""Makes Spark sessions that know Delta, the source and the sinks: for the job, notebooks and tests.

Settings of the jobs stand in ``conf/spark-defaults.conf``, for clusters too. One machine adds ``conf/spark-local.conf``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bridge.errors import ConfigError, MissingExtraError
from bridge.python_start import local_python
from bridge.settings.loading import conf_path
from streaming.class_data import with_shared_classes
from streaming.local_logs import use_local_log_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "JAVA_OPTIONS",
    "delta_jars",
    "is_local",
    "job_session",
    "local_session",
    "on_this_machine",
    "spark_defaults",
    "spark_settings",
]

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
"""Name of the setting with the options of the driver's JVM."""
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"


_OFTEN_USED: Final = ("PythonErrorUtils", "PythonSQLUtils", "PythonUtils", "functions")
"""Classes that pyspark names without their package, time and again."""


def spark_defaults() -> dict[str, str]:
    """Return the pairs of ``conf/spark-defaults.conf``."""
    return _pairs("spark-defaults.conf")


def spark_settings(master: str) -> dict[str, str]:
    """Return Spark's settings for a master: ``conf/spark-defaults.conf``, and on one machine ``conf/spark-local.conf``."""
    return spark_defaults() | (_pairs("spark-local.conf") if on_this_machine(master) else {})


def on_this_machine(master: str) -> bool:
    """Whether driver and executors are one process: ``local``, ``local[2]``, ``local[*]``."""
    return f"{master}[".startswith("local[")


def _pairs(name: str) -> dict[str, str]:
    found = {}
    for line in conf_path(name).read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            key, _, value = text.partition(" ")
            found[key] = value.strip()
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
    _find_classes_once(spark)
    _register(spark)
    if is_local(root, str(spark._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS"))):
        _start_fewer_processes(spark)
        use_local_log_store(spark)
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
    os.environ.setdefault("PYSPARK_PYTHON", local_python() if on_this_machine(master) else sys.executable)
    pairs = spark_settings(master)
    pairs[JAVA_OPTIONS] = with_shared_classes(pairs.get(JAVA_OPTIONS, ""))
    pairs["spark.jars"] = ",".join(map(str, delta_jars() if jars is None else jars))
    pairs.update(more or {})
    builder = _builder().appName(name).master(master)
    for key, value in pairs.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _find_classes_once(spark)
    _register(spark)
    _start_fewer_processes(spark)
    use_local_log_store(spark)
    return spark


def is_local(root: str, default: str) -> bool:
    """Whether a folder lies on a disk of this machine; ``default`` is the file system of names without a scheme."""
    return (urlsplit(root).scheme or urlsplit(default).scheme) == "file"


def _find_classes_once(spark: SparkSession) -> None:
    """Keep the classes that pyspark uses for columns, lists and progress where Python finds them.

    It asks the JVM for each of them at each use, by a name without a package, and the JVM looks through all of Spark's
    jars, once for each package that it may be of: a quarter of the CPU of jobs with small batches.
    """
    jvm: Any = spark.sparkContext._jvm
    for name in _OFTEN_USED:
        found = getattr(jvm, name)
        if type(found).__name__ == "JavaClass":  # another Spark may have it elsewhere
            setattr(jvm, name, found)


def _start_fewer_processes(spark: SparkSession) -> None:
    """Write checkpoints to local disks by Hadoop's older interface, unless the session says otherwise.

    Both write beside and rename. Without its native library, Hadoop's newer one starts eleven processes for that
    (``readlink`` and ``chmod``), the older one two: 30 ms less for each of the two logs of a micro-batch.
    """
    if spark.conf.get(_CHECKPOINTS, None) is not None:
        return
    lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    for package in ("streaming.checkpointing", "streaming"):  # Spark 4.1 moved it
        name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        try:
            lang.Class.forName(name)
        except _java_error():
            continue
        spark.conf.set(_CHECKPOINTS, name)
        return


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

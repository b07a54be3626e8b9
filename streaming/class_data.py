"""Class data sharing: Spark's JVM maps the classes that jobs use from a file, checked and linked already.

A quarter of what the JVM of a short job does is to read, check and link some twenty thousand classes anew. It can keep
them (JEP 350), made by a run that uses what jobs use and valid for the environment in which it was made: the JVM
compares its own version and the class path, and starts as ever where they are others. The file is large, so that it
is made only when asked for, and lies in the environment itself, with which it goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.errors import TerminalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive_file", "make_archive", "with_shared_classes"]

_QUIET: Final = "-Xlog:cds*=off"
"""An archive for others is no news to people who start a job."""
_TRAINING_S: Final = 600


def archive_file() -> Path:
    """Return where this environment's archive is, once it is made."""
    return Path(sys.prefix) / "share" / "pulsebridge" / f"spark-{version('pyspark')}.jsa"


def with_shared_classes(options: str) -> str:
    """Return the options of a driver's JVM on this machine, with the archive where there is one."""
    file = archive_file()
    return f'{options} {_QUIET} "-XX:SharedArchiveFile={file}"' if file.is_file() else options


def make_archive(cache_dir: Path | None = None) -> Path:
    """Run what jobs run, once, and keep the classes that it used. Returns the archive, which replaces an older one.

    ``cache_dir`` is where Delta's jars are. Takes about a minute. Raises TerminalError when Spark did not end
    well or wrote none, and whatever fetching Delta's jars raises.
    """
    from streaming.session import delta_jars

    jars = delta_jars(cache_dir)
    file = archive_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=file.parent, prefix="making-")
    except OSError as e:
        raise TerminalError(
            f"{file.parent} cannot be written: {e.strerror}", remedy="use an environment of your own (venv)"
        ) from e
    with folder as name:
        made = Path(name) / file.name
        _train(made, jars)
        made.replace(file)
    return file


def _train(made: Path, jars: list[Path]) -> None:
    command = [sys.executable, "-m", "streaming.class_data", str(made), *map(str, jars)]
    packages = str(Path(__file__).resolve().parent.parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH", ""))))
    }
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TRAINING_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise TerminalError(
            f"Spark did not end within {_TRAINING_S} s", remedy="try again when the machine has less to do"
        ) from e
    if ended.returncode or not made.is_file():
        lines = (ended.stderr or ended.stdout).splitlines()
        why = [line for line in lines if line[:1].isalpha() and ": " in line] or [
            f"it ended with {ended.returncode}"
        ]
        raise TerminalError(
            f"Spark made no archive of its classes: {why[-1]}",
            remedy="see whether `pulsebridge check` finds Java and Spark in order; jobs run without an archive, too",
        )


def _use_what_jobs_use(spark: SparkSession, folder: Path) -> None:
    """Write, read and merge Delta tables in streams as the queries do, by Python, Arrow and a state store."""
    from pyspark.sql import functions as F

    def merged(rows: DataFrame, _batch: int) -> None:
        rows.write.format("delta").mode("append").partitionBy("day").save(str(folder / "silver"))
        (
            into.alias("t")
            .merge(rows.dropDuplicates(["k", "day"]).alias("s"), "t.k = s.k and t.day = s.day")
            .whenMatchedUpdateAll("s.id > t.id")
            .whenNotMatchedInsertAll()
            .execute()
        )

    from delta.tables import DeltaTable

    events = spark.range(200).select(
        "id",
        (F.col("id") % 7).alias("k"),
        F.timestamp_seconds(F.col("id") * 60).alias("at"),
        F.to_date(F.timestamp_seconds(F.col("id") * 60)).alias("day"),
        F.to_json(F.struct("id")).cast("binary").alias("payload"),
    )
    events.limit(0).write.format("delta").partitionBy("day").save(str(folder / "latest"))
    into = DeltaTable.forPath(spark, str(folder / "latest"))
    for _turn in range(2):
        events.write.format("delta").mode("append").save(str(folder / "bronze"))
        bronze = spark.readStream.format("delta").load(str(folder / "bronze"))
        plain = bronze.withColumn(
            "n", F.get_json_object(F.col("payload").cast("string"), "$.id").cast("double")
        )
        counted = (
            plain.withWatermark("at", "1 hour")
            .groupBy(F.window("at", "1 hour"), "k")
            .agg(F.avg("n").alias("mean"), F.count("*").alias("count"))
        )
        queries = [
            plain.mapInArrow(lambda batches: batches, plain.schema).writeStream.foreachBatch(merged),
            counted.writeStream.format("delta").option("path", str(folder / "gold")),
        ]
        for number, query in enumerate(queries):
            query = query.option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            query.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.format("delta").load(str(folder / "silver")).where("day >= '1970-01-01'")
    rows.groupBy("day").agg(F.max("n"), F.min("at")).orderBy("day").toPandas()
    into.history().collect()
    into.optimize().executeCompaction()


def _main(made: str, *jars: str) -> None:
    from streaming.session import JAVA_OPTIONS, local_session, spark_settings

    options = spark_settings("local[2]")[JAVA_OPTIONS]
    with tempfile.TemporaryDirectory(prefix="pulsebridge-classes-") as name:
        folder = Path(name)
        spark = local_session(
            jars=list(map(Path, jars)),
            more={
                JAVA_OPTIONS: f'{options} -XX:ArchiveClassesAtExit="{made}"',
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder / "scratch"),
                "spark.log.level": "ERROR",
            },
        )
        try:
            _use_what_jobs_use(spark, folder)
        finally:
            gateway: Any = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()  # it writes the archive as it ends


if __name__ == "__main__":
    _main(*sys.argv[1:])

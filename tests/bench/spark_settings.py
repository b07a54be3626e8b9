"""What each setting of ``conf/spark-local.conf`` does to a batch of 100, 20,000 and 1,000,000 rows.

The product of ``silver.py`` without keys, with all settings and with each of them replaced by Spark's own value in turn.
A figure is the time of a batch; its reference is that with all settings, so a ratio above 1 is what the line saves.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

from bridge.settings import PulsarSettings
from pulsebridge.spark_session import JAVA_OPTIONS
from streaming.session import spark_settings
from tests.bench.results import Figure
from tests.bench.silver import SIZES, filled_topics, product
from tests.support.spark import build_session, stop_session

__all__ = ["measure"]

LOCAL: Final = spark_settings("local[2]")
_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
WITHOUT: Final = {
    "all": {},
    "compiler": {JAVA_OPTIONS: LOCAL[JAVA_OPTIONS].replace("-XX:TieredStopAtLevel=1 ", "")},
    "wholeStage": {"spark.sql.codegen.wholeStage": "true"},
    "factoryMode": {"spark.sql.codegen.factoryMode": "FALLBACK"},
    "adaptive": {"spark.sql.adaptive.enabled": "true"},
    "shuffle": {"spark.sql.shuffle.partitions": "200"},
    "snapshot": {"spark.databricks.delta.snapshotPartitions": "50"},
    "checkpoint": {"spark.sql.streaming.checkpointFileManagerClass": _FILES},
    "explainMode": {"spark.sql.ui.explainMode": "formatted"},
    "ui": {"spark.ui.enabled": "true", "spark.ui.port": "0"},
    "columnarReader": {"spark.sql.parquet.columnarReaderBatchSize": "4096"},
}
"""The value that Spark or Delta ships, by the name of the figure."""
ONCE_A_BATCH: Final = ("shuffle", "snapshot", "checkpoint", "explainMode", "ui")
"""What these lines save does not depend on the rows: they are not measured with a million, which takes minutes."""


def measure() -> tuple[list[Figure], list[str]]:
    """Return ``settings.<line>.<rows>``."""
    took: dict[tuple[str, int], float] = {}
    with filled_topics() as (_, folder, settings, topics):
        for line, changed in WITHOUT.items():
            for size, seconds in _session(line, changed, settings, topics, folder / line).items():
                took[line, size] = seconds
                print(f"  without {line}, {size:,} rows: {seconds:.2f} s", flush=True)
    return [
        Figure(f"settings.{line}.{size}", seconds, "s", "with all of conf/spark-local.conf", took["all", size])
        for (line, size), seconds in took.items()
    ], []


def _session(
    line: str, changed: dict[str, str], settings: PulsarSettings, topics: dict[int, str], folder: Path
) -> dict[int, float]:
    """Return the seconds of a batch of each size, in a session of its own."""
    folder.mkdir()
    # The tests' own session has another compiler.
    more = {"spark.eventLog.enabled": "false", JAVA_OPTIONS: LOCAL[JAVA_OPTIONS]}
    spark = build_session(folder, more | changed)
    try:
        return {
            size: median(
                product(spark, settings, topics[size], size, warm + timed, folder / f"{line}-{size}", distinct=False)[
                    warm:
                ]
            )
            for size, (warm, timed) in SIZES.items()
            if size < max(SIZES) or line not in ONCE_A_BATCH
        }
    finally:
        stop_session(spark)

"""A user's job for a cluster: Pulsar into Delta tables, by a stream and by a batch query, with no call to register.

Run by spark-submit as ``cluster_job.py OPTIONS_AS_JSON FOLDER``; writes what it found to ``FOLDER/found.json``. It knows
Spark alone: nothing of this project is imported here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

MODULES = ("bridge", "sources", "pulsar", "pyarrow", "pyspark")


def probe(_: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Runs in a task: what Python is this, and where do its packages come from?"""
    import importlib
    import importlib.util
    import os
    import sys

    yield {
        "cwd": str(Path.cwd()),
        "prefix": sys.prefix,
        "base": sys.base_prefix,
        "path": sys.path,
        "files": {name: importlib.import_module(name).__file__ for name in MODULES},
        "tests": importlib.util.find_spec("tests") is not None,
        "environment": {name: os.environ.get(name) for name in ("VIRTUAL_ENV", "PYTHONPATH")},
    }


def values(frame: DataFrame) -> list[str]:
    """Return the payloads of a table, sorted."""
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def main(options: dict[str, str], folder: Path) -> None:
    """Run both queries and note what is in their tables."""
    spark = SparkSession.builder.getOrCreate()
    batch = {name: value for name, value in options.items() if name != "predefinedSubscription"}
    rows = spark.read.format("pulsebridge").options(**batch).load()
    rows.write.format("delta").save(str(folder / "batch"))
    stream = spark.readStream.format("pulsebridge").options(**options).load()
    query = (
        stream.writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "stream"))
    )
    query.awaitTermination()
    found = {
        "batch": values(spark.read.format("delta").load(str(folder / "batch"))),
        "stream": values(spark.read.format("delta").load(str(folder / "stream"))),
        "batches": [progress.numInputRows for progress in query.recentProgress if progress.numInputRows],
        "probes": spark.sparkContext.parallelize(range(8), 8).mapPartitions(probe).collect(),
    }
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))

"""A driver with a query into a table that never ends: a query that fails is started again. Run as a process of its own."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from bridge.settings import Settings
from tests.chaos.source_world import query_of
from tests.support.spark import build_session

__all__ = ["run"]


def run(settings: Settings, options: dict[str, str], folder: Path) -> None:
    """Write the pid of the JVM to the file ``jvm`` once a query runs; print what a query, or its start, failed with."""
    spark = build_session(folder / "spark")
    gateway: Any = spark.sparkContext._gateway
    while True:
        try:
            query = query_of(spark, settings, options).start()
            (folder / "jvm").write_text(str(gateway.proc.pid))
            query.awaitTermination()
        except PySparkException as e:  # on a busy machine, Spark does not wait long enough for a Python process
            print(f"{time.strftime('%H:%M:%S')} the query failed: {e}", flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run(Settings.model_validate(json.loads(given["settings"])), given["options"], Path(given["folder"]))

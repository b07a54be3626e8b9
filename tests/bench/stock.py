"""A session with the settings that Spark ships, and jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["stock_session"]


def stock_session(folder: Path, jars: Sequence[Path], more: Mapping[str, str] | None = None) -> SparkSession:
    """Return a local session on two cores that knows the source, with ``more`` settings; the caller stops it."""
    from pyspark.sql import SparkSession

    import sinks
    import sources

    os.environ["PYSPARK_PYTHON"] = sys.executable  # registering the source changes it, as for its users
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("stock")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "scratch"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in (more or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    sources.register(spark)
    sinks.register(spark)
    return spark

"""A pipeline in a process that is killed at a step of a batch: ``python -c … FOLDER LIMIT``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import pipelines as dp
from tests.support.killed_process import run_killed
from tests.support.pipelines import PipelineWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SOURCE", "declared", "killed_at", "main"]

SOURCE = "n int, device string, value double"


def declared(limit: float) -> Callable[[], None]:
    """Declare tables with and without keys, whose rows fail beyond a limit, a view, and the newest row of each device."""

    def rows() -> DataFrame:
        from pyspark.sql import functions as F

        place = F.struct(
            F.lit("t").alias("topic"), F.lit(0).alias("partition"), F.lit(1).cast("bigint").alias("ledger"),
            F.col("n").cast("bigint").alias("entry"), F.lit(0).alias("index"), F.lit(0).alias("element"),
        )  # fmt: skip
        fault = F.when(F.col("value") > limit, F.lit("too much"))
        return dp.read_stream("source").select(
            "n", "device", "value", fault.alias("_fault"), F.col("n").cast("string").cast("binary").alias("_payload"),
            place.alias("_position"),
        )  # fmt: skip

    def declare() -> None:
        dp.table(rows, name="appended")
        dp.table(rows, name="keyed", keys=["device", "n"])

        @dp.materialized_view(keys=["device"])
        def counted() -> DataFrame:
            from pyspark.sql import functions as F

            return dp.read("appended").groupBy("device").agg(F.count("*").alias("n"))

        dp.create_streaming_table("newest", schema="n int, device string, value double")
        dp.create_auto_cdc_flow("newest", "keyed", ["device"], "n")

    return declare


def killed_at(point: str, folder: Path, limit: float) -> None:
    """Run the pipeline in a process that kills itself at a point."""
    run_killed("tests.support.killed_batches", point, str(folder), str(limit))


def main() -> None:
    """Run the pipeline to the end of what is there."""
    from tests.support.spark import build_session

    folder, limit = Path(sys.argv[1]), float(sys.argv[2])
    world: Any = PipelineWorld(build_session(folder / "driver"), folder)
    world.run(declared(limit))

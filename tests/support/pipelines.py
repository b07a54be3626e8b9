"""Pipelines of tests: declared by a function, over a table of messages that the test fills, run to the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.settings import Settings, StreamingSettings
from streaming import pipelines as dp
from streaming.job import Job
from streaming.tables import Table
from tests.support.merging import merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PipelineWorld"]


class PipelineWorld:
    """A folder with tables, and a pipeline over them."""

    def __init__(self, spark: SparkSession, root: Path, **streaming: Any) -> None:
        self.spark = spark
        self.settings = Settings(
            streaming=StreamingSettings(
                **merged({"root": str(root / "lakehouse"), "trigger": {"views_interval": "0s"}}, streaming)
            )
        )
        self.counts: list[tuple[str, int, int]] = []

    def table(self, name: str) -> Table:
        """Return where a table is."""
        from streaming.tables import table_of

        return table_of(name, self.settings.streaming)

    def fill(self, name: str, rows: list[Any], schema: str) -> None:
        """Append rows to a table that no flow fills, with its change data feed on."""
        from pyspark.sql.types import StructType

        from streaming.tables import create

        table = self.table(name)
        create(self.spark, table, StructType.fromDDL(schema))
        table.append(self.spark.createDataFrame(rows, schema).coalesce(1))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a table, all unless some are named, in their order."""
        frame: DataFrame = self.table(name).read(self.spark)
        wanted = columns or tuple(frame.columns)
        return sorted((tuple(row) for row in frame.select(*wanted).collect()), key=repr)

    def job(self, declare: Callable[[], None], *only: str) -> Job:
        """Return a job of what the function declares, prepared."""
        with dp.declaring(dp.Pipeline()) as pipeline:
            declare()
        pipeline.check()
        found = Job(self.spark, self.settings, pipeline, only, lambda *of: self.counts.append(of))
        found.prepare()
        return found

    def run(self, declare: Callable[[], None], *only: str) -> None:
        """Run to the end of what is there, as a driver that was just started."""
        self.job(declare, *only).run(threading.Event(), available_now=True)

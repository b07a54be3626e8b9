"""A driver of ``pulsebridge_commands`` in a process of its own: a task that fails and comes in another order, then a kill.

Run as ``FOLDER OPTIONS``: the query reads the rows of FOLDER/rows. Its task fails once, when Pulsar has confirmed the
rows of the first devices, and is tried again with its devices in the reverse order; when it has succeeded, in the commit
of the sink and before Spark writes the batch to its commit log, this driver and its JVM are killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from sinks.commands import CommandsSink
from sinks.writers import StreamWriter, Task, Written
from tests.support.spark import build_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["FORMAT", "main"]

FORMAT = "commands_until_killed"


class KilledAtCommit(CommandsSink):
    """The sink, but for what its tasks and its commit are made to go through."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return _KilledAtCommit(super().streamWriter(schema, overwrite)._task)


class _KilledAtCommit(StreamWriter):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._mark = Path(os.environ["PB_FAILED"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        rows = pa.Table.from_batches(list(iterator))
        devices = sorted(set(rows["device"].to_pylist()), reverse=self._mark.exists())
        if not self._mark.exists():
            self._mark.touch()
            super().write(self._of(rows, devices[:2]))
            raise RuntimeError("the task fails when its first devices were written")
        return super().write(self._of(rows, devices))

    def _of(self, rows: pa.Table, devices: list[str]) -> Iterator[pa.RecordBatch]:
        for device in devices:
            yield from rows.filter(pc.equal(rows["device"], device)).to_batches()

    def commit(self, messages: Any, batchId: int) -> None:
        jvm = next(p for p in psutil.Process().parents() if "java" in p.name())
        driver = jvm.parent()
        assert driver is not None
        for process in (jvm, driver):
            process.send_signal(signal.SIGKILL)


def main() -> None:
    """Run the query until it is killed."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ["PB_FAILED"] = str(folder / "failed")
    spark = build_session(folder / "spark", master="local[1,2]")  # a task may fail once
    spark.dataSource.register(KilledAtCommit)
    rows = str(folder / "rows")
    frame = spark.readStream.schema(spark.read.parquet(rows).schema).parquet(rows)
    query = frame.writeStream.format(FORMAT).options(**options)
    query = query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()


if __name__ == "__main__":
    from tests.support import commands_driver  # by its name, or Spark's workers would not find it

    commands_driver.main()

"""A driver that is killed during a batch: run as a process of its own, and again in the test's session.

Each batch is written to a folder named by its number, so a batch that is run again replaces itself; what it had
written before the kill is kept beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["rows_of", "run", "written"]

COLUMNS = ("value", "partition", "ledger_id", "entry_id", "batch_index")


def run(
    spark: SparkSession,
    options: dict[str, str],
    folder: Path,
    *,
    fail_in: int | None = None,
    kill_in: int | None = None,
    kill_at_end: bool = False,
) -> None:
    """Run the query to the present end. After batch ``fail_in`` was written the query fails, after batch ``kill_in``
    this driver and its JVM are killed; at the end, when all is committed, before the query gets the order to stop.
    """

    def kill() -> None:
        gateway: Any = spark.sparkContext._gateway
        os.kill(gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def write(rows: DataFrame, batch: int) -> None:
        out = folder / "rows" / str(batch)
        if out.exists():
            shutil.copy(out, folder / f"before-{batch}")
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(sorted([bytes(r.value).decode(), *r[1:]] for r in rows.select(*COLUMNS).collect())))
        if batch == fail_in:
            raise RuntimeError("the batch fails after it was written")
        if batch == kill_in:
            kill()

    frame = spark.readStream.format("pulsebridge").options(**options).load()
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    try:
        assert started.awaitTermination(90), "the query did not end"
        if kill_at_end:
            kill()
    finally:
        started.stop()


def written(folder: Path) -> list[list[Any]]:
    """Return all rows of all batches."""
    return [row for batch in sorted((folder / "rows").iterdir()) for row in json.loads(batch.read_text())]


def rows_of(path: Path) -> list[list[Any]]:
    """Return the rows of one batch."""
    return list(json.loads(path.read_text()))


if __name__ == "__main__":
    from tests.support.spark import build_session

    given = json.loads(sys.argv[1])
    where = Path(given["folder"])
    killed = {"kill_in": given.get("kill_in"), "kill_at_end": given.get("kill_at_end", False)}
    run(build_session(where / "spark"), given["options"], where, **killed)

"""A driver of its own for a query into bronze, to be killed with its JVM and all that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.settings import Settings
from tests.support.waiting import poll_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["run", "running", "started"]


@contextmanager
def running(settings: Settings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query in processes of their own, which are killed in the end; given once the query is started."""
    folder.mkdir(parents=True)
    given = json.dumps({"settings": settings.model_dump_json(), "folder": str(folder)})
    with (folder / "log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", __name__, given], stdout=log, stderr=log, start_new_session=True
        )
    try:
        poll_for(lambda: (folder / "started").exists() or driver.poll() is not None, 90, "the query of the driver")
        assert driver.poll() is None, (folder / "log").read_text()[-2000:]
        yield driver
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def started(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the built-in flow bronze as the job does; it ends by itself when all is read."""
    from streaming.job import Job
    from streaming.loading import pipeline_of

    job = Job(spark, settings, pipeline_of(settings))
    job.prepare()
    (flow,) = job.pipeline.flows.values()
    job._start(flow, available_now=True)
    (query,) = job.queries[flow.name]
    return query


def run(settings: Settings, folder: Path) -> None:
    """Read all that is there into bronze."""
    from tests.support.spark import build_session

    query = started(build_session(folder / "spark"), settings)
    (folder / "started").touch()
    query.awaitTermination()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    run(Settings.model_validate(json.loads(arguments["settings"])), Path(arguments["folder"]))

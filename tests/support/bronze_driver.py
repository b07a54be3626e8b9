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

from bridge.settings import Settings
from tests.support.waiting import poll_for

__all__ = ["run", "running"]


@contextmanager
def running(settings: Settings, topic: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query in processes of their own, which are killed in the end; given once the query is started."""
    folder.mkdir(parents=True)
    given = json.dumps({"settings": settings.model_dump_json(), "topic": topic, "folder": str(folder)})
    with (folder / "log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", __name__, given], stdout=log, stderr=log, start_new_session=True
        )
    try:
        poll_for(
            lambda: (folder / "started").exists() or driver.poll() is not None, 90, "the query of the driver"
        )
        assert driver.poll() is None, (folder / "log").read_text()[-2000:]
        yield driver
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def run(settings: Settings, topic: str, folder: Path) -> None:
    """Read all that is there into bronze."""
    from streaming import bronze
    from streaming.tables import Tables
    from tests.support.spark import build_session

    spark = build_session(folder / "spark")
    tables = Tables.of(settings.streaming)
    query = bronze.query(bronze.source(spark, settings, [topic]), tables)
    started = query.trigger(availableNow=True).start(tables.bronze.where)
    (folder / "started").touch()
    started.awaitTermination()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    run(Settings.model_validate_json(told["settings"]), told["topic"], Path(told["folder"]))

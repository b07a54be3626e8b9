"""Spark inside a command: a local session for as long as the command needs it, with the settings' tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.settings import Settings
    from streaming.tables import Tables

__all__ = ["local_tables"]


@contextmanager
def local_tables(settings: Settings) -> Iterator[tuple[SparkSession, Tables]]:
    """Give a local session and the tables. A session that this process has already is taken, and left as it is."""
    from pyspark.sql import SparkSession
    from rich.console import Console

    from streaming.session import JAVA_OPTIONS, delta_jars, local_session, on_this_machine
    from streaming.spark_submit import java_options
    from streaming.tables import Tables

    tables = Tables.of(settings.streaming)
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running, tables
        return
    streaming = settings.streaming
    master = streaming.master if on_this_machine(streaming.master) else "local[2]"
    with Console(file=sys.stderr).status("starting Spark"):
        spark = local_session(
            jars=delta_jars(settings.local.cache_dir),
            master=master,
            more={
                "spark.driver.memory": streaming.driver_memory,
                JAVA_OPTIONS: java_options(master),
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            },
        )
    try:
        yield spark, tables
    finally:
        spark.stop()

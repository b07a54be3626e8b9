"""Turns SIGTERM and SIGINT into a request to stop, in a driver that is two processes: spark-submit's JVM and Python.

The signal usually reaches the JVM, whose default is to tear everything down in mid-batch.
``stop_between_batches`` stops queries without that.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["StopRequest", "stop_between_batches"]


def stop_between_batches(
    queries: Iterable[StreamingQuery],
    timeout_s: float = 60.0,
    *,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Stop queries, each as soon as its batch has ended; no batch of another one waits for that. After ``timeout_s`` a
    query is stopped in its batch. When ``enough`` says so, those that still run are left running.

    A query that is behind begins the next batch within the same millisecond. So one that has begun a batch since is
    stopped too: it plans what to read, and what it has planned it reads when it starts again.
    """
    running = {query: _batch(query) for query in queries if query.isActive}
    deadline = time.monotonic() + timeout_s
    while running and not enough():
        late = time.monotonic() >= deadline
        for query, batch in list(running.items()):
            if late or not query.isActive or not query.status["isTriggerActive"] or _batch(query) != batch:
                query.stop()
                del running[query]
        time.sleep(0.02)


def _batch(query: StreamingQuery) -> int:
    """Return the number of the batch that ended last, -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


class StopRequest:
    """Set when somebody asked the job to end; waiting on it never blocks longer than asked."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def listen(self, spark: SparkSession) -> None:
        """Take SIGTERM and SIGINT, in Python and in the JVM. Call it on Python's main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._in_python)
        context: Any = spark.sparkContext
        from pyspark import java_gateway

        started: Any = java_gateway.ensure_callback_server_started
        started(context._gateway)
        handler = _JvmHandler(self)
        for name in ("TERM", "INT"):
            sun: Any = context._jvm.sun.misc
            sun.Signal.handle(sun.Signal(name), handler)

    def _in_python(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()

    def ask(self) -> None:
        """Ask the job to end."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until somebody asked, at most ``timeout_s`` seconds; return whether somebody did."""
        return self._asked.wait(timeout_s)


class _JvmHandler:
    """Called by the JVM's signal thread through py4j."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    def handle(self, number: Any) -> None:
        self._request.ask()

    class Java:
        """What py4j reads."""

        implements = ["sun.misc.SignalHandler"]

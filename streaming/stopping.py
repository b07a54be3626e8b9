"""Turns SIGTERM and SIGINT into a request to stop, in a driver that is two processes: spark-submit's JVM and Python.

The signal usually reaches the JVM, whose default is to tear everything down in mid-batch. It decides nothing else.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StopRequest"]


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

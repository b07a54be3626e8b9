"""Lets a change of tables through: who makes it asks the jobs of a root to pause, and they do, between two batches.

Delta refuses a change that read what a query has added to meanwhile, and queries that commit every second may always be
first. Nothing is lost or doubled without a pause; it only lets the change end. So a pause is a file that anybody may
lose: it names for how many seconds it is wanted, and a job that sees it counts them on its own clock, then goes on and
removes it. One that was killed in the middle of a change holds nobody for longer.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streaming.conflicts import retrying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LONGEST_S", "HoldFile", "HoldWatch", "Pause", "write_between"]

_EVERY_S: Final = 1.0
_REFUSALS: Final = 3
_WASTED_S: Final = 10.0
_PAUSE_S: Final = 60.0
T = TypeVar("T")
LONGEST_S: Final = 600.0
"""The longest pause that a job grants, in seconds."""


class Pause:
    """Decides whether to pause, from what the file says and a clock that runs evenly. Pure."""

    def __init__(self) -> None:
        self._name = ""
        self._until = 0.0

    def wanted(self, text: str, now_s: float) -> bool | None:
        """Whether to pause at ``now_s``, None when nobody asks; ``text`` is what the file says, empty where none is."""
        try:
            found = json.loads(text)
            name, seconds = str(found["id"]), min(float(found["seconds"]), LONGEST_S)
        except (ValueError, KeyError, TypeError):
            return None  # none, or not written to its end
        if name != self._name:
            self._name, self._until = name, now_s + seconds
        return now_s < self._until


class HoldFile:
    """The file by which a pause is asked for, on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path: Any = jvm.org.apache.hadoop.fs.Path(f"{root}/checkpoints/.hold")
        self._system: Any = self._path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def ask(self, seconds: float) -> None:
        """Ask every job of the root to pause for so many seconds from when it sees this."""
        stream = self._system.create(self._path, True)
        try:
            stream.write(bytearray(json.dumps({"id": str(uuid.uuid4()), "seconds": seconds}).encode()))
        finally:
            stream.close()

    def lift(self) -> None:
        """Let the jobs go on."""
        self._system.delete(self._path, False)

    def text(self) -> str:
        """Return what the file says, empty where there is none."""
        from py4j.protocol import Py4JJavaError

        try:
            if not self._system.exists(self._path):
                return ""
            stream = self._system.open(self._path)
            try:
                return bytes(stream.readAllBytes()).decode(errors="replace")
            finally:
                stream.close()
        except Py4JJavaError:
            return ""  # taken away just now


class HoldWatch:
    """The job's side: looks at the file once a second."""

    def __init__(self, spark: SparkSession, root: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = HoldFile(spark, root)
        self._pause = Pause()
        self._clock = clock
        self._looked = float("-inf")
        self._wanted = False

    def wanted(self) -> bool:
        """Whether the queries are to pause now."""
        now = self._clock()
        if now - self._looked >= _EVERY_S:
            self._looked = now
            answer = self._pause.wanted(self._file.text(), now)
            self._wanted = bool(answer)
            if answer is False:
                self._file.lift()  # whoever asked was killed, or takes too long
        return self._wanted


def write_between(write: Callable[[], T], what: str, hold: HoldFile) -> T:
    """Make a change to a table between the batches of running queries: after three refusals, or after refusals that
    cost ten seconds, the jobs are asked to pause. Returns what ``write`` returns. Raises TransientError naming ``what``
    when other writers are always first.
    """
    asked: list[int] = []
    began = time.monotonic()

    def refused(attempt: int) -> None:
        if attempt >= _REFUSALS or time.monotonic() - began >= _WASTED_S:
            asked.append(attempt)
            hold.ask(_PAUSE_S)
            if len(asked) == 1:
                time.sleep(2 * _EVERY_S)  # until the jobs have seen it, and are at the end of a batch

    try:
        return retrying(write, what, for_s=LONGEST_S, refused=refused)
    finally:
        if asked:
            hold.lift()

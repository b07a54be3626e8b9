"""Why a query failed: in one line, and whether starting it again can help; and a batch that is cut by a stop."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge import errors
from bridge.errors import TerminalError, TransientError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchFailed", "Batches", "Cause", "cause_of"]

_FREE: Final = ("DELTA_SCHEMA_CHANGED", "Python worker failed to connect back")
"""Nothing is wrong then: a table that is read has new columns, or a busy machine was slow to start a Python worker."""
_NAMED: Final = re.compile(r"\[(?!FOREACH_BATCH|STREAM_FAILED)[A-Z0-9_.]+\] .*")
"""An error of Spark or Delta by its class, in the text of another one."""
_RAISED: Final = re.compile(r"[\w.]*(Error|Exception)\b: .*")
_BATCH: Final = re.compile(r"BatchFailed: (batch \d+)")
_CUT: Final = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled job group")
"""What Spark says in a batch whose query is stopped."""


class BatchFailed(Exception):
    """Raised from the error of a micro-batch: its text names the batch."""


@dataclass(frozen=True)
class Batches:
    """Writes micro-batches: an error names its batch, and a batch that is cut by a stop ends with few words.

    Spark 4.2 tells a stop from a failure by a regular expression over the text of the error, which needs more stack than
    a thread has for a traceback with Java's: a StackOverflowError on the console. What is raised here is what it looks for.
    """

    write: Callable[[DataFrame, int], None]

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch."""
        try:
            self.write(batch, number)
        except Exception as e:
            if not any(mark in str(e) for mark in _CUT):
                raise BatchFailed(f"batch {number}") from e
        else:
            return
        raise RuntimeError(
            "py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException"
        )


@dataclass(frozen=True)
class Cause:
    """Why a query failed."""

    text: str
    terminal: bool
    """Whether trying again cannot help."""
    remedy: str | None = None
    transient: bool = False
    """Whether it ends without anybody's action, however long it takes."""
    free: bool = False
    """Whether nothing is wrong, and a start for this does not count."""
    where: str = ""
    """The batch, in words, if it is known."""


def cause_of(failure: Any, last: Any = None) -> Cause:
    """Read the cause from Spark's error: our own error where one is named in the worker's traceback.

    ``last`` is the progress of the query's last batch, for errors that name no batch.
    """
    text = str(failure)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    batch = _BATCH.search(text)
    where = f" in {batch.group(1)}" if batch else f" after batch {last.batchId}" if last else ""
    for line in reversed(lines):
        kind, mark, what = line.removeprefix("bridge.errors.").partition(": ")
        known = getattr(errors, kind, None) if line.startswith("bridge.errors.") and mark else None
        if known is not None:
            what, _, remedy = what.partition(" — ")
            terminal, transient = issubclass(known, TerminalError), issubclass(known, TransientError)
            return Cause(what, terminal, remedy or None, transient, where=where)
    named = _NAMED.search(text) or next((m for line in reversed(lines) if (m := _RAISED.match(line))), None)
    said = named.group(0) if named is not None else lines[0] if lines else "no message"
    return Cause(said, False, free=any(mark in text for mark in _FREE), where=where)

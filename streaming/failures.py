"""Finds a failed query's cause, and whether a restart can help. Also handles batches cut by a stop."""

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

_FREE: Final = "DELTA_SCHEMA_CHANGED"
"""The query is not at fault: a table that it reads has new columns."""
_LATE: Final = "Python worker failed to connect back"
"""The machine is busy: Spark gives a Python worker ten seconds to start, and has no setting for it."""
_NAMED: Final = re.compile(r"\[(?!FOREACH_BATCH|STREAM_FAILED)[A-Z0-9_.]+\] .*")
"""An error of Spark or Delta by its class, within the text of another error."""
_RAISED: Final = re.compile(r"[\w.]*(Error|Exception)\b: .*")
_BATCH: Final = re.compile(r"BatchFailed: (batch \d+)")
_CUT: Final = ("InterruptedException", "InterruptedIOException", "ClosedByInterruptException", "cancelled job group")
"""Marks of Spark in a batch whose query is stopped."""


class BatchFailed(Exception):
    """Raised from the error of a micro-batch; its text names the batch."""


@dataclass(frozen=True)
class Batches:
    """Writes micro-batches. An error names its batch; a batch that is cut by a stop raises a short error.

    Spark 4.2 recognises a stop by a regular expression over the text of the error. For a traceback with Java's this
    needs more stack than a thread has: a StackOverflowError on the console. The short error matches that expression.
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
    """Cause of a query's failure."""

    text: str
    terminal: bool
    """Whether a restart cannot help."""
    remedy: str | None = None
    transient: bool = False
    """Whether it ends without an action of an operator, after any time."""
    free: bool = False
    """Whether the query is not at fault, so that the restart does not count."""
    where: str = ""
    """The batch, in words, if known."""


def cause_of(failure: Any, last: Any = None) -> Cause:
    """Read the cause from Spark's error: our own error if the worker's traceback names one.

    ``last`` is the progress of the query's last batch, for errors that do not name a batch.
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
    text_of_error = named.group(0) if named is not None else lines[0] if lines else "no message"
    return Cause(text_of_error, False, transient=_LATE in text, free=_FREE in text, where=where)

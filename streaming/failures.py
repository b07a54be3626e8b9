"""Why a query failed: in one line, and whether starting it again can help; and a batch that is cut by a stop."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge import errors
from bridge.errors import TerminalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Cause", "EndsBriefly", "cause_of"]

_FREE: Final = ("DELTA_SCHEMA_CHANGED", "DELTA_STREAM", "Python worker failed to connect back")
"""Nothing is wrong then: a table that is read has new columns, or a busy machine was slow to start a Python worker."""
_NAMED: Final = re.compile(r"\[(?!FOREACH_BATCH|STREAM_FAILED)[A-Z0-9_.]+\] .*")
"""An error of Spark or Delta by its class, in the text of another one."""
_RAISED: Final = re.compile(r"[\w.]*(Error|Exception)\b: .*")


_CUT: Final = (
    "InterruptedException",
    "InterruptedIOException",
    "ClosedByInterruptException",
    "cancelled job group",
)
"""What Spark says in a batch whose query is stopped."""


@dataclass(frozen=True)
class EndsBriefly:
    """Writes micro-batches; one that is cut by a stop ends with few words.

    Spark 4.2 tells a stop from a failure by a regular expression over the text of the error, which needs more stack than
    a thread has for a traceback with Java's: a StackOverflowError on the console. What is raised here is what it looks for.
    """

    batches: Callable[[DataFrame, int], None]

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one micro-batch."""
        try:
            self.batches(batch, number)
        except Exception as e:
            if not any(mark in str(e) for mark in _CUT):
                raise
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
    free: bool = False
    """Whether a start for this does not count."""
    where: str = ""


def cause_of(failure: Any) -> Cause:
    """Read the cause from Spark's error: our own error where one is named in the worker's traceback."""
    text = str(failure)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        kind, mark, what = line.removeprefix("bridge.errors.").partition(": ")
        known = getattr(errors, kind, None) if line.startswith("bridge.errors.") and mark else None
        if known is not None:
            return Cause(what, issubclass(known, TerminalError))
    named = _NAMED.search(text) or next((m for line in reversed(lines) if (m := _RAISED.match(line))), None)
    said = named.group(0) if named is not None else lines[0] if lines else "no message"
    return Cause(said, False, free=any(mark in text for mark in _FREE))

"""Why a query failed: in one line, and whether starting it again can help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from bridge import errors
from bridge.errors import TerminalError

__all__ = ["Cause", "cause_of"]

_FREE: Final = ("DELTA_SCHEMA_CHANGED", "DELTA_STREAM", "Python worker failed to connect back")
"""Nothing is wrong then: a table that is read has new columns, or a busy machine was slow to start a Python worker."""
_NAMED: Final = re.compile(r"\[(?!FOREACH_BATCH|STREAM_FAILED)[A-Z0-9_.]+\] .*")
"""An error of Spark or Delta by its class, in the text of another one."""
_RAISED: Final = re.compile(r"[\w.]*(Error|Exception)\b: .*")


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

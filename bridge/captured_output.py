"""Writes to a file what Spark's JVM and its Python workers print, so that the console shows the job's own log alone."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO, Final

from bridge.errors import ConfigError

__all__ = ["printing_to"]

_OURS: Final = re.compile(rb'\d\d:\d\d:\d\d \[|\{"(?!ts")')
"""How a line of our own log begins: the source logs in a Python process of Spark, whose own JSON begins with ``ts``."""
_MOST_BYTES: Final = 10 * 2**20
_STANDARD: Final = (1, 2)


@contextmanager
def printing_to(file: Path) -> Iterator[None]:
    """Let processes that start within the block print to a file, for as long as they live; lines of our own log go to
    the console.

    Raises ConfigError if the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        out = RotatingFileHandler(file, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{file} cannot be written: {e}", remedy="correct streaming.spark_log") from e
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    kept = [os.dup(number) for number in _STANDARD]
    copying = threading.Thread(
        target=_copy, args=(os.fdopen(reading, "rb"), os.fdopen(os.dup(1), "wb", 0), out), daemon=True
    )
    copying.start()
    try:
        for number in _STANDARD:
            os.dup2(writing, number)
        os.close(writing)
        yield
    finally:
        for number, before in zip(_STANDARD, kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def _copy(printed: BinaryIO, console: BinaryIO, out: logging.Handler) -> None:
    with printed, console:
        for line in printed:
            if _OURS.match(line):
                console.write(line)
            else:
                text = line.decode(errors="backslashreplace").rstrip("\n")
                out.handle(logging.makeLogRecord({"msg": text}))
    out.close()

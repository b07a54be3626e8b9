"""Writes the output of Spark's JVM and Python workers to a file; the console shows only our log."""

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
"""Begin of a line of our log. The source logs in a Python process of Spark, whose own JSON begins with ``ts``."""
_MOST_BYTES: Final = 10 * 2**20
_STANDARD: Final = (1, 2)


@contextmanager
def printing_to(file: Path, console: int = 1) -> Iterator[None]:
    """Redirect the output of processes that start within the block to a file.

    Lines of our log go to the file descriptor ``console``. Raises ConfigError if the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        out = RotatingFileHandler(file, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{file} cannot be written: {e}", remedy="correct streaming.spark.log") from e
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    originals = [os.dup(number) for number in _STANDARD]
    copying = threading.Thread(
        target=_copy, args=(os.fdopen(reading, "rb"), os.fdopen(os.dup(console), "wb", 0), out), daemon=True
    )
    copying.start()
    try:
        for number in _STANDARD:
            os.dup2(writing, number)
        os.close(writing)
        yield
    finally:
        for number, original in zip(_STANDARD, originals, strict=True):
            os.dup2(original, number)
            os.close(original)


def _copy(printed: BinaryIO, console: BinaryIO, out: logging.Handler) -> None:
    with printed, console:
        for line in printed:
            if _OURS.match(line):
                console.write(line)
            else:
                text = line.decode(errors="backslashreplace").rstrip("\n")
                out.handle(logging.makeLogRecord({"msg": text}))
    out.close()

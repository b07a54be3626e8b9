"""Starts Spark's Python processes on this machine from the installed packages instead of from Spark's zipped copy.

Spark puts ``pyspark.zip`` and one of its jars before all else in the module path of each Python that it starts. Modules
from a zip without bytecode are compiled at every start: a second of CPU for each query's planner, for each kind of
worker and for each submitted driver. Where pyspark is installed by pip the zip holds the same modules, so a launcher
takes those entries out of ``PYTHONPATH`` and becomes Python. On other machines there is no such file: it is for local
masters alone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

__all__ = ["launcher", "local_python", "start_from_packages"]

_LAUNCHER: Final = """#!/bin/sh
# Written by Pulsebridge: Spark's Python without the zipped copy of the installed pyspark; may be deleted at any time
# when no Spark runs.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    {pyspark}/*) ;;
    *) kept=${{kept:+$kept:}}$entry ;;
  esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def launcher(python: Path, pyspark: Path) -> str:
    """Return the text of a launcher of ``python``, for the package folder ``pyspark`` that it has installed."""
    return _LAUNCHER.format(python=shlex.quote(str(python)), pyspark=shlex.quote(str(pyspark)))


def local_python(folder: Path | None = None) -> str:
    """Return what ``PYSPARK_PYTHON`` should be for a local master: a launcher of this Python in ``folder`` (default: in
    the cache), or this Python itself where none can be had.
    """
    found = find_spec("pyspark")
    # In a driver of spark-submit, pyspark may itself come from the zip.
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return sys.executable
    text = launcher(Path(sys.executable), Path(found.origin).parent)
    if folder is None:
        from bridge.local.distributions import default_cache_dir

        folder = default_cache_dir() / "launchers"
    path = folder / f"python-{sha256(text.encode()).hexdigest()[:16]}"
    with suppress(OSError):
        if not path.is_file():
            _write(path, text)
    # A home without the right to execute, or without room.
    return str(path) if os.access(path, os.X_OK) else sys.executable


def start_from_packages(spark: Any) -> None:
    """Have the Python processes of a session on this machine start as ``local_python`` does, from now on, where Spark
    would start this very Python for them.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is None or not context.master.startswith("local["):
        return
    here = Path(sys.executable)
    chosen = Path(shutil.which(context.pythonExec) or "/")
    if chosen.parent == here.parent and chosen.samefile(here):
        context.pythonExec = local_python()


def _write(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""Starts Spark's local Python processes from the installed packages, not from Spark's zipped copy.

Spark puts ``pyspark.zip`` and one of its jars first in the module path of each Python that it starts. Python compiles
modules of a zip without bytecode at each start. That costs a second of CPU for each query's planner, each kind of
worker and each submitted driver. If pip has installed pyspark, the zip has the same modules. So a launcher removes
those entries from ``PYTHONPATH`` and executes Python. Other machines lack the launcher, so only local masters use it.
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

from bridge.user_folders import default_cache_dir

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
    """Return the text of a launcher of ``python``, for its installed package folder ``pyspark``."""
    return _LAUNCHER.format(python=shlex.quote(str(python)), pyspark=shlex.quote(str(pyspark)))


def local_python(folder: Path | None = None) -> str:
    """Return the value of ``PYSPARK_PYTHON`` for a local master.

    It is a launcher of this Python in ``folder`` (default: in the cache), or this Python if that is not possible.
    """
    found = find_spec("pyspark")
    # In a driver of spark-submit, pyspark itself may be in the zip.
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return sys.executable
    text = launcher(Path(sys.executable), Path(found.origin).parent)
    if folder is None:
        folder = default_cache_dir() / "launchers"
    path = folder / f"python-{sha256(text.encode()).hexdigest()[:16]}"
    with suppress(OSError):
        if not path.is_file():
            _write(path, text)
    # The home may not allow execution, or may be full.
    return str(path) if os.access(path, os.X_OK) else sys.executable


def start_from_packages(spark: Any) -> None:
    """Use ``local_python`` for the later Python processes of a local session.

    It applies if Spark would start this Python for them.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect lacks it
    if context is None or not context.master.startswith("local["):
        return
    here = Path(sys.executable)
    chosen = Path(shutil.which(context.pythonExec) or "/")
    if chosen.parent == here.parent and chosen.samefile(here):
        context.pythonExec = local_python()


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
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

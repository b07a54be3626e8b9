"""Java programs of tests and measurements: the jars come by their coordinates, once, into the user's download cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bridge.user_folders import default_cache_dir
from pulsebridge.downloads.distributions import locked
from pulsebridge.downloads.ivy import Artifact, resolve
from pulsebridge.downloads.preflight import find_java

__all__ = ["jars", "java_home"]


def java_home() -> Path:
    found, _ = find_java()
    if found is None:
        raise RuntimeError("no Java 17 or 21 found")
    return found.home


def jars(name: str, artifacts: Sequence[Artifact], excluded: Sequence[str] = ()) -> Path:
    """Return the folder with the jars of artifacts. Raises TransientError when they cannot be fetched."""
    cache = default_cache_dir()
    folder = cache / "bench" / name
    with locked(cache / "locks" / name):
        if not folder.is_dir():
            work, out = cache / "downloads" / name, folder.with_name(f".{name}-{time.time_ns()}")
            resolve(
                artifacts,
                java=java_home(),
                work=work,
                cache=work / "ivy",
                retrieve=str(out / "[artifact]-[revision].[ext]"),
                types=("jar", "bundle"),
                excluded=excluded,
            )
            out.rename(folder)
            shutil.rmtree(work)
    return folder

"""Samples the processes of a soak, its disk, lag and latency, and decides which of them grow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from tests.soak.growth import grows

__all__ = ["LIMITS", "disk_bytes", "growing", "sample_of"]

_MB: Final = 2**20
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "memory": (0.1, 30 * _MB),
    "files": (0.1, 15),
    "threads": (0.1, 8),
    "disk": (0.1, 100 * _MB),
    "disk_per_message": (0.1, 500),
    "lag": (0.5, 500),
    "latency": (0.5, 1.0),
}
"""By kind: the share and the amount by which a value may rise after the warm-up; bytes, messages or seconds."""
_OF_JVMS: Final[Mapping[str, tuple[float, float]]] = {"memory": (0.25, 300 * _MB), "threads": (0.25, 30)}
"""Limits of processes with a JVM: a heap grows until it is collected, a pool of threads with the load."""
_FEWEST: Final = 20
_JVMS: Final = ("mqtt", "pulsar", "stream")


def sample_of(roots: Mapping[str, int]) -> dict[str, float]:
    """Return memory (PSS, bytes), open files and threads of the process trees with these roots, as ``kind name``."""
    found: dict[str, float] = {}
    for name, pid in roots.items():
        with suppress(psutil.NoSuchProcess):
            tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            for process in tree:
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    memory, files, threads = process.memory_full_info().pss, process.num_fds(), process.num_threads()
                    for kind, value in (("memory", memory), ("files", files), ("threads", threads)):
                        found[f"{kind} {name}"] = found.get(f"{kind} {name}", 0) + value
    return found


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder that may change meanwhile."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += (Path(place) / file).lstat().st_size
    return total


def growing(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the values that grow after the warm-up, and of those with too few samples to know it."""
    names = sorted({name for one in samples for name in one if name != "at"})
    return [name for name in names if _grows(name, _values(samples, name))]


def _values(samples: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [one[name] for one in samples if one.get(name) is not None]


def _grows(name: str, values: Sequence[float]) -> bool:
    if len(values) < _FEWEST:
        return True
    kind, _, of = name.partition(" ")
    share, least = (_OF_JVMS if of in _JVMS else LIMITS).get(kind, LIMITS[kind])
    return grows(values, share=share, least=least)


def medians(samples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the first and the last value of each name after the warm-up: medians of an eighth of the samples."""
    found = {}
    for name in names:
        values = _values(samples, name)
        values = values[len(values) // 4 :]
        size = max(1, len(values) // 8)
        if not values:
            continue
        found[name] = (sorted(values[:size])[size // 2], sorted(values[-size:])[size // 2])
    return found

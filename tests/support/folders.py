"""Temporary folders that name the process they belong to, so that what is left of them counts as its leak alone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["OWNER", "PREFIX", "is_ours", "made_folder", "own_folder"]

PREFIX = "pulsebridge-"
OWNER = "owner.pid"
"""File with the id of the process that made the folder; the local stack writes it, too."""


def made_folder(kind: str) -> Path:
    """Make a folder of this process; the caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
    (folder / OWNER).write_text(str(os.getpid()), encoding="ascii")
    return folder


@contextmanager
def own_folder(kind: str) -> Iterator[Path]:
    """Make a folder of this process for as long as the block runs."""
    folder = made_folder(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def is_ours(folder: Path) -> bool:
    """Whether this process made the folder. One that another process is just making has no owner yet."""
    try:
        return int((folder / OWNER).read_text(encoding="ascii")) == psutil.Process().pid
    except (OSError, ValueError):
        return False

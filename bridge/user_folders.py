"""The user's folders of this project."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["default_cache_dir", "default_stack_dir"]


def default_cache_dir() -> Path:
    """Return the user's cache folder of this project."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/pulsebridge"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pulsebridge"


def default_stack_dir() -> Path:
    """Return the folder of the local servers' data, in the user's data folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/pulsebridge/stack"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "pulsebridge/stack"

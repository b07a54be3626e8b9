"""Locations of settings: the files of ``conf/``, the user's file, the environment variables.

``conf/`` is in a checkout or in an installed wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bridge.errors import ConfigError

__all__ = ["DEFAULT_FILE", "PREFIX", "conf_path"]

PREFIX: Final = "PULSEBRIDGE_"
"""The prefix of environment variables."""
DEFAULT_FILE: Final = Path("pulsebridge.yaml")
"""Read from the working directory if neither ``--config`` nor the variable names a file."""


def conf_path(name: str) -> Path:
    """Return the path of a file of Pulsebridge: in ``conf/`` of a checkout, or in ``bridge/_conf`` of a wheel.

    Raises ConfigError if the file does not exist.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_conf", package.parent / "conf"):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"this installation lacks the file {name}", remedy="reinstall pulsebridge")

"""Where settings stand: the files of ``conf/``, in a checkout or inside an installed wheel; the user's file and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bridge.errors import ConfigError

__all__ = ["DEFAULT_FILE", "PREFIX", "conf_path"]

PREFIX: Final = "PULSEBRIDGE_"
"""Of environment variables."""
DEFAULT_FILE: Final = Path("pulsebridge.yaml")
"""Read from the working directory when neither ``--config`` nor the variable names a file."""


def conf_path(name: str) -> Path:
    """Return the path of a file that comes with Pulsebridge: ``conf/`` in a checkout, ``bridge/_conf`` in a wheel.

    Raises ConfigError when there is no such file.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_conf", package.parent / "conf"):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"no file {name} comes with this installation", remedy="reinstall pulsebridge")

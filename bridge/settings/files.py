"""Where the files of ``conf/`` are: in a checkout, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

from bridge.errors import ConfigError

__all__ = ["conf_path"]


def conf_path(name: str) -> Path:
    """Return the path of a file that comes with Pulsebridge: ``conf/`` in a checkout, ``bridge/_conf`` in a wheel.

    Raises ConfigError when there is no such file.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_conf", package.parent / "conf"):
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"no file {name} comes with this installation", remedy="reinstall pulsebridge")

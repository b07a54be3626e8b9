"""The files that a job on a cluster needs beside its code: its settings, and what these name by a relative path.

They become one folder. The job starts in it, so its paths are valid as in a local run. Files that executors read too,
such as those of TLS and of secrets, are not packed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridge.errors import ConfigError
from bridge.settings import Settings
from bridge.settings.fields import FILE_SUFFIX, field_at, is_secret, parts_of
from bridge.settings.loading import DEFAULT_FILE, content_of
from pulsebridge.submission import FOLDER

__all__ = ["JobFiles", "job_files"]

_NOT_COPIED: Final = shutil.ignore_patterns(FOLDER, "__pycache__", "data_docs", "validations")
"""Also the results that Great Expectations writes into its project."""
_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class JobFiles:
    """The settings file, and the relative paths of the files and folders that it names. ``notes``: what the user must
    provide on the cluster.
    """

    settings: Path | None = None
    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def copy_to(self, folder: Path) -> None:
        """Copy them into the folder ``FOLDER`` of a folder. Paths are relative to the working directory."""
        target = folder / FOLDER
        target.mkdir(parents=True, exist_ok=True)
        if self.settings is not None:
            shutil.copy(self.settings, target / DEFAULT_FILE)
        for path in self.paths:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target / path, ignore=_NOT_COPIED, dirs_exist_ok=True)
            else:
                shutil.copy(path, target / path)


def job_files(settings: Path | None) -> JobFiles:
    """Return the files that a settings file names. It reads no secret, because this machine may lack their files.

    Raises ConfigError if the settings file is not valid YAML, or names a relative path that does not exist.
    """
    if settings is None:
        return JobFiles(notes=(f"no settings: start this command beside {DEFAULT_FILE}, or give --config",))
    paths, notes = [], []
    for at, text in _texts(content_of(settings), ()):
        name = ".".join(map(str, at))
        if at == ("streaming", "root") and "://" not in text and not Path(text).is_absolute():
            notes.append(
                f"{name}: {text} is a folder of {FOLDER} there, without the tables that are here; give a URI or an "
                "absolute path that all machines have"
            )
        elif _executors_read(at):
            notes.append(f"{name}: {text} is not packed: give an absolute path that driver and executors have")
        elif at[:2] == ("streaming", "modules") and not text.endswith(".py"):
            notes.append(f"{name}: install the module {text} on driver and executors, or add it to --py-files")
        elif _driver_reads(at):
            path = Path(text).expanduser()
            if path.is_absolute() or ".." in path.parts:
                notes.append(f"{name}: {text} is not packed, only paths below this folder are; the driver must have it")
            elif not path.exists():
                raise ConfigError(f"{name}: {text} does not exist in {Path.cwd()}", remedy="correct the path")
            else:
                paths.append(path)
    return JobFiles(settings, tuple(dict.fromkeys(paths)), tuple(notes))


def _texts(node: Any, at: _Path) -> Iterator[tuple[_Path, str]]:
    """Yield path and value of each text in settings."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _texts(value, (*at, key if isinstance(node, list) else str(key)))
    elif isinstance(node, str):
        yield at, node


def _executors_read(at: _Path) -> bool:
    name = str(at[-1])
    secret = field_at(Settings, (*at[:-1], name.removesuffix(FILE_SUFFIX))) if name.endswith(FILE_SUFFIX) else None
    return (secret is not None and is_secret(secret.annotation)) or (at[0] == "pulsar" and _is_path(at))


def _driver_reads(at: _Path) -> bool:
    return at[0] == "streaming" and at[1:2] != ("spark",) and (at[1:2] == ("modules",) or _is_path(at))


def _is_path(at: _Path) -> bool:
    known = field_at(Settings, at)
    return known is not None and Path in parts_of(known.annotation)

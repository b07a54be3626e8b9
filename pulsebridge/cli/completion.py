"""Completion of words in the shell: paths of settings, and names of devices."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout, suppress
from threading import Thread
from typing import Final

import typer

__all__ = ["complete_device", "complete_setting"]

_PATIENCE_S: Final = 3.0
_MOST: Final = 100
_SAFE: Final = re.compile(r"[A-Za-z0-9_][\w.:@/+-]*", re.ASCII)
"""Names that no shell expands: a device chooses its own."""


def complete_setting(incomplete: str) -> list[str]:
    """Return the paths of settings that begin so, each with ``=``."""
    from bridge.settings import Settings
    from bridge.settings.fields import leaves

    paths = (".".join(path) for path, _ in leaves(Settings))
    return [f"{path}=" for path in paths if path.startswith(incomplete)]


def complete_device(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of devices that begin so, as far as Pulsar gives them in three seconds; none on any error."""
    found: set[str] = set()
    reading = Thread(target=_read_devices, args=(context.params, incomplete, found), daemon=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the shell takes each line for a word
        reading.start()
        reading.join(_PATIENCE_S)
    return sorted(found.copy())


def _read_devices(given: dict[str, object], incomplete: str, found: set[str]) -> None:
    from bridge.settings.loading import load_with_origins
    from pulsebridge.cli.devices import push_topics

    with suppress(Exception):
        settings = load_with_origins(given.get("config"), given.get("sets") or ()).settings  # type: ignore[arg-type]
        with push_topics(settings) as topics:
            for partition in range(topics.partitions):
                for device in topics.records(partition).devices():
                    if device.device.startswith(incomplete) and _SAFE.fullmatch(device.device):
                        found.add(device.device)
                    if len(found) == _MOST:
                        return

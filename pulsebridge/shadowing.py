"""Shadowing check: whether another distribution shadows an import package of Pulsebridge.

The names of the packages are generic. For example, ``mosaicml-streaming`` installs a ``streaming`` as well; the
distribution that pip installs last overwrites the files of the other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

__all__ = ["DISTRIBUTION", "PACKAGES", "package_folders", "shadowed", "shadowed_here"]

DISTRIBUTION: Final = "pulsebridge"
PACKAGES: Final = ("bridge", "sources", "sinks", "streaming", "sparkplug", "pulsebridge")


def shadowed(folders: Mapping[str, Path | None], owners: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each package that does not belong to Pulsebridge alone.

    ``folders``: the folder of each package, None if Python does not find it. ``owners``: the distributions that
    installed files under each name. All packages belong in the parent folder of ``bridge``.
    """
    problems = []
    home = folders.get("bridge")
    for package in PACKAGES:
        others = sorted({o for o in owners.get(package, ()) if o.lower() != DISTRIBUTION})
        folder = folders.get(package)
        if others:
            problems.append(f"the package {package} is also installed by {', '.join(others)}")
        elif folder is None:
            problems.append(f"the package {package} is not found")
        elif home is not None and folder.parent != home.parent:
            problems.append(f"Python imports the package {package} from {folder}, not from {home.parent}")
    return problems


def package_folders() -> dict[str, Path | None]:
    """Return the folder in which Python finds each package of Pulsebridge, without importing them."""
    found: dict[str, Path | None] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        found[package] = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    return found


def shadowed_here() -> list[str]:
    """Return the result of ``shadowed`` for this interpreter."""
    return shadowed(package_folders(), packages_distributions())

"""Merges mappings of settings, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merged"]


def merged(usual: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``usual`` with ``changes``; of a value that is a mapping in both, only the given keys change."""
    found = dict(usual)
    for name, value in changes.items():
        before = found.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return found

"""Loads rarely needed modules of a library at their first use.

Spark starts a Python process for each query, and imports in that process delay the query's start.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["load_late"]

_loading = threading.RLock()


class _Late(ModuleType):
    """A module that the first use of an attribute loads. (``importlib.util.LazyLoader`` loads it at its import.)"""

    def __getattr__(self, name: str) -> Any:
        with _loading:
            spec = self.__dict__.pop("_late", None)
            if spec is not None:
                try:
                    spec.loader.exec_module(self)
                except BaseException:
                    self._late = spec
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]
        return ModuleType.__getattribute__(self, name)


def load_late(*names: str) -> None:
    """Load modules at the first use of one of their attributes. Loaded and missing modules are left unchanged."""
    for name in names:
        try:
            spec = None if name in sys.modules else find_spec(name)
        except ImportError:  # its package is missing
            continue
        if spec is None or spec.loader is None:
            continue
        module: Any = module_from_spec(spec)
        module.__class__ = _Late
        module._late = spec
        sys.modules[name] = module
        package, _, own = name.rpartition(".")
        if package:
            setattr(sys.modules[package], own, module)

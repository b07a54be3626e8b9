"""Imports the user's modules by name or file, here and in Spark's processes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from bridge.errors import ConfigError, PulsebridgeError
from streaming import pipelines as dp

__all__ = ["import_module", "load_sources", "sources_of"]


def import_module(name: str) -> None:
    """Import a module of the user's, by name or by its file. Each call runs its declarations.

    Raises ConfigError in one line for its exception.
    """
    where = f"streaming.modules: {name!r}"
    try:
        if name.endswith(".py"):
            path = Path(name).expanduser().absolute()
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise ConfigError(f"{where}: file {path} does not exist", remedy="correct the path")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            from pyspark import cloudpickle

            by_value: Any = cloudpickle.register_pickle_by_value
            by_value(module)  # Spark's workers cannot import it by its name
        elif name in sys.modules:
            importlib.reload(sys.modules[name])
        else:
            importlib.import_module(name)
    except PulsebridgeError:
        raise
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        without_spark = isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] == "pyspark"
        raise ConfigError(
            f"{where} cannot be imported: {type(e).__name__}: {e} ({at.filename}:{at.lineno})",
            remedy="pip install 'pulsebridge[local,quality]', or run it by spark-submit"
            if without_spark
            else "correct the module, or install what it needs on the driver",
        ) from e


def sources_of(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return name and text of the modules that were imported from a file."""
    from pyspark import cloudpickle

    by_value: Any = cloudpickle.list_registry_pickle_by_value
    found = [(name, Path(str(sys.modules[name].__file__))) for name in names if name in by_value()]
    return tuple((name, path.read_text(encoding="utf-8")) for name, path in found)


def load_sources(sources: Iterable[tuple[str, str]]) -> None:
    """Create missing modules from their text, in a process of Spark. Their declarations have no effect here."""
    for name, text in sources:
        if name not in sys.modules:
            sys.modules[name] = module = ModuleType(name)
            with dp.declaring(dp.Pipeline()):
                exec(compile(text, name, "exec"), module.__dict__)

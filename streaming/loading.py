"""Builds the pipeline that settings ask for: built-in tables, declared ones, and those of the user's modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError, PulsebridgeError
from streaming import built_in
from streaming import pipelines as dp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bridge.settings import Settings, TopicRule
    from bridge.settings.tables import TableDeclaration

__all__ = ["pipeline_of"]


def pipeline_of(settings: Settings) -> dp.Pipeline:
    """Return what the settings declare. Raises ConfigError, in one line, for a module or a declaration that will not do."""
    from streaming.decoding import declared_tables

    with dp.declaring(dp.Pipeline()) as pipeline:
        # Alerts look at the columns of tables: they come last.
        chosen = settings.streaming.built_in
        built_in.declare(settings, [name for name in chosen if name != "alerts"])
        for table in declared_tables(settings):
            _declare(table, settings.ingest.all_rules)
        for name in settings.streaming.modules:
            _import(name)
        if "alerts" in chosen:
            built_in.declare(settings, ["alerts"])
    pipeline.check()
    return pipeline


def _declare(table: TableDeclaration, rules: Sequence[TopicRule]) -> None:
    def rows() -> DataFrame:
        return dp.decoded(table.decoding)

    # A row without an id of its own is known by its place in Pulsar, of which there is one: nothing is looked up.
    said = [one for one in table.decoding if one.id is not None] or any(r.reading_id for r in rules)
    keys = table.keys if table.keys != type(table).model_fields["keys"].default or said else ()

    dp.table(
        rows,
        name=table.name,
        comment=table.comment,
        cluster_by=table.cluster_by,
        table_properties=table.table_properties,
        keys=keys,
        suite=table.suite,
        schema_evolution=table.schema_evolution,
    )


def _import(name: str) -> None:
    """Import a module of the user's, by name or by its file. What it declares counts each time."""
    where = f"streaming.modules: {name!r}"
    try:
        if name.endswith(".py"):
            path = Path(name).expanduser().absolute()
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise ConfigError(f"{where}: there is no such file", remedy="correct the path")
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
        raise ConfigError(
            f"{where} cannot be imported: {type(e).__name__}: {e} ({at.filename}:{at.lineno})",
            remedy="correct the module, or install what it needs on the driver",
        ) from e

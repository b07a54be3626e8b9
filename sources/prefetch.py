"""How Spark takes rows from the planner together with its partitions. The one module that uses a private name of Spark.

Spark does this for readers made by ``simpleStreamReader``: it keeps the rows in its block manager, and a task of another
executor, or one that is tried again, takes them from there. It knows such a reader by a class of its own
(``partitions_func`` in ``pyspark/sql/streaming/python_streaming_source_runner.py``), and then calls ``getCache``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

__all__ = ["prefetching"]


@cache
def prefetching() -> type | None:
    """Return the class of the readers from which Spark takes rows, None where it has none."""
    try:
        internal = import_module("pyspark.sql.datasource_internal")
    except ImportError:
        return None
    found = getattr(internal, "_SimpleStreamReaderWrapper", None)
    return found if isinstance(found, type) and hasattr(found, "getCache") else None

"""What the Spark at hand lets a Python source do: 4.0 and 4.1 lack some of what 4.2 has.

Asked of the modules, not of version numbers: vendors' Sparks take single changes from later ones.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import GroupedData
from pyspark.sql.datasource import DataSourceReader

if TYPE_CHECKING:
    from sources.options import SourceOptions

__all__ = ["SparkFeatures", "lacking_in_batch", "lacking_in_stream", "spark_features"]


@dataclass(frozen=True)
class SparkFeatures:
    """What a Spark can do for this source."""

    version: str
    limits: bool
    """Limits per trigger, Trigger.AvailableNow in several batches, the source's own part of the progress (4.2)."""
    filters: bool
    """Filters are pushed to batch queries (4.1)."""
    filters_kept_apart: bool
    """What was pushed is kept with each scan (after 4.2.0). Before SPARK-58551, which brought ``pushLimit``, all uses
    of a DataFrame shared what was pushed last: with a self-union, or the next query, rows were missing."""
    state: bool
    """``transformWithState`` takes rows of Python (4.1); the query alerts counts on it."""


def spark_features() -> SparkFeatures:
    """Return what the installed Spark can do."""
    import pyspark

    return SparkFeatures(
        version=pyspark.__version__,
        limits=importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None,
        filters=hasattr(DataSourceReader, "pushFilters"),
        filters_kept_apart=hasattr(DataSourceReader, "pushLimit"),
        state=hasattr(GroupedData, "transformWithState"),
    )


def lacking_in_stream(spark: SparkFeatures, options: SourceOptions) -> str | None:
    """Return a sentence on what a streaming query has to do without, None when it has everything."""
    if spark.limits:
        return None
    limits = options.limits
    given = {
        "maxBytesPerTrigger": limits.size,
        "maxEntriesPerTrigger": limits.entries,
        "maxRowsPerTrigger": limits.rows,
        "minRowsPerTrigger": limits.least_rows,
    }
    idle = [name for name, value in given.items() if value is not None]
    said = f"no limits per trigger ({', '.join(idle)}: no effect)" if idle else "no limits per trigger"
    return (
        f"Spark {spark.version} lacks for Python sources: {said}, Trigger.AvailableNow takes all in one batch, "
        "no lag in the query's progress"
    )


def lacking_in_batch(spark: SparkFeatures, options: SourceOptions) -> str | None:
    """Return a sentence on what a batch query asked for and does not get, None when it gets everything."""
    if spark.filters or not options.push_filters:
        return None
    return f"Spark {spark.version} lacks for Python sources: filters are not pushed (pushFilters: no effect)"

"""Detects features of the installed Spark for Python sources: 4.0 and 4.1 lack some.

Inspects modules, not version numbers, because vendors backport single changes.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import GroupedData
from pyspark.sql.datasource import DataSourceReader

from bridge.errors import ConfigError

if TYPE_CHECKING:
    from sources.options import SourceOptions

__all__ = ["SparkFeatures", "lacking_in_batch", "lacking_in_stream", "require_state", "spark_features"]


@dataclass(frozen=True)
class SparkFeatures:
    """The features of a Spark for this source."""

    version: str
    limits: bool
    """Limits per trigger, Trigger.AvailableNow in several batches, the source's figures in the progress (4.2)."""
    filters: bool
    """Filters are pushed to batch queries (4.1)."""
    filters_per_scan: bool
    """Pushed filters are stored with each scan (after 4.2.0, SPARK-58551, which added ``pushLimit``). Before, all uses
    of a DataFrame shared the last filters: a self-union, or the next query, lacked rows."""
    state: bool
    """``transformWithState`` accepts rows of Python (4.1). Alert rules with state and the tables of Sparkplug need it."""


def spark_features() -> SparkFeatures:
    """Return the features of the installed Spark."""
    import pyspark

    return SparkFeatures(
        version=pyspark.__version__,
        limits=importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None,
        filters=hasattr(DataSourceReader, "pushFilters"),
        filters_per_scan=hasattr(DataSourceReader, "pushLimit"),
        state=hasattr(GroupedData, "transformWithState"),
    )


def require_state(what: str) -> None:
    """Raise ConfigError if the installed Spark lacks ``transformWithState``, which ``what`` (plural) need."""
    found = spark_features()
    if not found.state:
        raise ConfigError(f"{what} need Spark 4.1 or later, this is {found.version}", remedy="install a newer pyspark")


def lacking_in_stream(spark: SparkFeatures, options: SourceOptions) -> str | None:
    """Return a sentence on features that a streaming query lacks, None without any."""
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
    limits_lacking = f"no limits per trigger ({', '.join(idle)}: no effect)" if idle else "no limits per trigger"
    return (
        f"Spark {spark.version} lacks for Python sources: {limits_lacking}, Trigger.AvailableNow reads all in one "
        "batch, no lag in the query's progress"
    )


def lacking_in_batch(spark: SparkFeatures, options: SourceOptions) -> str | None:
    """Return a sentence on requested features that a batch query lacks, None without any."""
    if spark.filters or not options.push_filters:
        return None
    return f"Spark {spark.version} lacks for Python sources: filters are not pushed (pushFilters: no effect)"

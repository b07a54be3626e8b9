"""The Spark source: Pulsar topics as a replayable Structured Streaming source, format ``pulsebridge``.

``sources.register(spark)`` makes the format known; pyspark is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sources.options import connection_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connection_options", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("pulsebridge")`` known to this session, for reading."""
    from sources.datasource import register as register_format

    register_format(spark)

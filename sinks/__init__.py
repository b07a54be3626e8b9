"""The Spark sinks: rows of commands into Pulsar, format ``pulsebridge_commands``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``format("pulsebridge_commands")`` known to this Spark session, for batch and streaming writes.

    Raises MissingExtraError when pyspark or pyarrow is not installed.
    """
    try:
        from sinks.commands import CommandsSink
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"the sinks need {e.name}", remedy="pip install 'pulsebridge[spark]' beside your Spark"
        ) from e
    spark.dataSource.register(CommandsSink)

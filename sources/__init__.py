"""The Spark source: Pulsar topics as a replayable Structured Streaming source, format ``pulsebridge``.

``sources.register(spark)`` makes the format known; pyspark is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this package, and must not build the models for its help
    from pyspark.sql import SparkSession

    from bridge.settings.pulsar import PulsarSettings

__all__ = ["connection_options", "register"]


def connection_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return the options that connect a query as these settings say; secrets included."""
    from sources import options

    return options.connection_options(pulsar)


def register(spark: SparkSession) -> None:
    """Make ``format("pulsebridge")`` known to this session, for reading."""
    from sources.datasource import register as register_format

    register_format(spark)

"""The Spark source: Pulsar topics as a replayable Structured Streaming source, format ``pulsebridge``.

``sources.register(spark)`` registers the format. Only this call imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this package for its help, without building the models
    from pyspark.sql import SparkSession

    from bridge.settings.pulsar import PulsarSettings

__all__ = ["connection_options", "register"]


def connection_options(pulsar: PulsarSettings) -> dict[str, str]:
    """Return the options that connect a query by these settings, secrets included."""
    from sources import options

    return options.connection_options(pulsar)


def register(spark: SparkSession) -> None:
    """Register ``format("pulsebridge")`` in this session, for reading."""
    from sources.datasource import register as register_format

    register_format(spark)

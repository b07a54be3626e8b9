"""The Spark sinks: rows to Pulsar topics, to devices and groups of them as commands, or to an MQTT broker.

``sinks.register(spark)`` makes their formats known; pyspark is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MissingExtraError
from bridge.formats import joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the formats ``pulsebridge`` (for writing), ``pulsebridge_commands``, ``pulsebridge_groups`` and
    ``pulsebridge_mqtt`` known to this session.

    Raises MissingExtraError when pyspark or pyarrow is not installed.
    """
    try:
        from sinks.commands import CommandsSink
        from sinks.groups import GroupsSink
        from sinks.mqtt import MqttSink
        from sinks.topics import NoReading, TopicSink
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"the sinks need {e.name}", remedy="pip install 'pulsebridge[spark]' beside your Spark"
        ) from e
    spark.dataSource.register(joined(TopicSink.name(), "write", TopicSink, NoReading))
    spark.dataSource.register(CommandsSink)
    spark.dataSource.register(GroupsSink)
    spark.dataSource.register(MqttSink)

"""The Spark sinks: rows to Pulsar topics, to devices and groups as commands, or MQTT.

``sinks.register(spark)`` registers their formats and imports pyspark only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MissingExtraError
from bridge.spark.formats import joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the formats ``pulsebridge`` (for writing), ``pulsebridge_commands``, ``pulsebridge_groups`` and
    ``pulsebridge_mqtt`` in this session.

    Raises MissingExtraError if pyspark or pyarrow is not installed.
    """
    try:
        from sinks.commands import CommandsSink
        from sinks.groups import GroupsSink
        from sinks.mqtt import MqttSink
        from sinks.topics import NoReading, TopicSink
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"the sinks need {e.name}", remedy="pip install 'pulsebridge[spark]' where your Spark runs"
        ) from e
    spark.dataSource.register(joined(TopicSink.name(), "write", TopicSink, NoReading))
    spark.dataSource.register(CommandsSink)
    spark.dataSource.register(GroupsSink)
    spark.dataSource.register(MqttSink)

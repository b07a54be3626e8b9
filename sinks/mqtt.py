"""``format("pulsebridge_mqtt")``: rows straight to an MQTT broker, without a log between.

On the driver it checks options and schema. Rows are at-least-once at the broker. A retried task or a replayed
micro-batch repeats its publishes, and no identity marks the duplicates. Use ``pulsebridge_commands`` for commands that
must arrive once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sinks.mqtt_rows import Plan, check_schema, read_rows
from sinks.mqtt_writer import write
from sinks.option_names import MQTT
from sinks.options import MqttOptions, read_mqtt_options
from sinks.writers import BatchWriter, StreamWriter, Task, Written, appending

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["MqttSink"]


class MqttSink(DataSource):
    """The sink ``pulsebridge_mqtt``. Its columns are ``sinks.columns.MQTT_SINK_COLUMNS``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return MQTT

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Called for ``df.write…save()``, on the driver, once per write. An exception fails the write.

        Raises ContractError for an invalid schema or save mode, ConfigError for invalid options.
        """
        return BatchWriter(appending("an MQTT broker", overwrite, lambda: self._task(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Called for ``df.writeStream…start()``, on the driver. An exception fails the query.

        Raises ContractError for an invalid schema or output mode, ConfigError for invalid options.
        """
        return StreamWriter(appending("an MQTT broker", overwrite, lambda: self._task(schema)))

    def _task(self, schema: StructType) -> Task:
        options = read_mqtt_options(self.options)
        plan = Plan(options.topic, options.mqtt.protocol == "5", options.allow_loopback)
        check_schema(((field.name, field.dataType.simpleString()) for field in schema.fields), plan)
        return _MqttTask(options, plan)


@dataclass(frozen=True)
class _MqttTask:
    options: MqttOptions
    plan: Plan

    @property
    def dead_letters(self) -> str:
        return f"MQTT topic {self.options.dead_letter_topic}"

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        return Written(*write(read_rows(batches, self.plan), self.options, self.plan))

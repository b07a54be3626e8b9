"""``format("pulsebridge_commands")``: Spark's data source for batch and streaming writes of commands.

On the driver it checks options, schema, and that the topics and the push tier's subscription exist before the first
command. Commands are at-least-once in Pulsar. By ``command_id`` push delivers each command to its device once, also
if Spark replays it (H19, H21, H22).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from bridge.contract import ALERTS_TOPIC, GROUP_COMMANDS_TOPIC
from bridge.errors import ContractError
from bridge.killpoints import reach
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import partitions_ready, provision_commands
from bridge.pulsar.provisioning_plan import group_needs, push_needs
from sinks.messages import BadRow, PulsarMessage
from sinks.option_names import COMMANDS
from sinks.options import SinkOptions, read_options
from sinks.rows import ALERT, check_schema, messages_of
from sinks.writer import writer_of_this_process
from sinks.writers import BatchWriter, StreamWriter, Task, Written, appending, prepare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["CommandsSink"]


class CommandsSink(DataSource):
    """The sink ``pulsebridge_commands``. Its columns are ``sinks.columns.COMMAND_COLUMNS``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return COMMANDS

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Called for ``df.write…save()``, on the driver, once per write. An exception fails the write.

        Raises ContractError for an invalid schema or save mode, ConfigError for invalid options.
        """
        return BatchWriter(appending("commands", overwrite, lambda: self._task(schema, stream=False)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Called for ``df.writeStream…start()``, on the driver. An exception fails the query.

        Raises ContractError for an invalid schema or output mode, ConfigError for invalid options.
        """
        return StreamWriter(appending("commands", overwrite, lambda: self._task(schema, stream=True)))

    def _task(self, schema: StructType, *, stream: bool) -> Task:
        options = read_options(self.options)
        check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
        groups, alerts = "group" in schema.fieldNames(), ALERT in schema.fieldNames()
        prepare(
            ("commands", options, groups, alerts),
            lambda: _prepare(options, groups=groups, alerts=alerts),
            stream=stream,
        )
        return _CommandsTask(options)


def _prepare(options: SinkOptions, *, groups: bool, alerts: bool) -> None:
    with PulsarAdmin(options.pulsar) as admin:
        needs = [push_needs(options.pulsar, options.topic).topics[-1], *(group_needs(options.pulsar) if groups else [])]
        ready = all(partitions_ready(admin, need) for need in needs)
        ready = ready and (not alerts or admin.exists(options.pulsar.system_topic(ALERTS_TOPIC)))
        if ready or (options.provision and provision_commands(admin, options.topic)):
            return
    raise ContractError(
        f"{options.topic} does not exist, or lacks the push tier's subscription",
        remedy="start `pulsebridge push` once, or set the option provision to true",
    )


@dataclass(frozen=True)
class _CommandsTask:
    options: SinkOptions
    dead_letters: str = "pulsebridge dead-letters list"

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        topic = self.options.topic
        assert topic is not None
        pulsar = self.options.pulsar
        groups, alerts = pulsar.system_topic(GROUP_COMMANDS_TOPIC), pulsar.system_topic(ALERTS_TOPIC)
        rows = _begun(messages_of(batches, topic, groups, alerts, self.options.max_name_bytes))
        written = Written(*writer_of_this_process(self.options.target).write(rows, topic))
        if written.messages:
            reach("sink_after_task")
        return written


def _begun(rows: Iterable[PulsarMessage | BadRow]) -> Iterator[PulsarMessage | BadRow]:
    for number, row in enumerate(rows):
        if number == 0:
            reach("sink_before_task")
        yield row

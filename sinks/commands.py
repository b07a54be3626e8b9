"""``format("pulsebridge_commands")``: the data source that Spark calls for batch and streaming writes of commands.

It decides, on the driver, whether options and schema will do, and that the topics and the push tier's subscription
stand before the first command. Commands are at-least-once in Pulsar; ``command_id`` is the identity by which push
gives the device no second one, whatever Spark replays (H19, H21, H22).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from bridge.errors import ContractError
from bridge.provisioning import commands_ready, provision_commands
from bridge.pulsar_admin import PulsarAdmin
from sinks.options import SinkOptions, read_options
from sinks.rows import check_schema, read_rows
from sinks.writer import writer_of_this_process

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["CommandsBatchWriter", "CommandsSink", "CommandsStreamWriter", "Written"]


@dataclass
class Written(WriterCommitMessage):
    """What one task stored: commands, and bad rows as dead letters."""

    commands: int
    bad_rows: int


class CommandsSink(DataSource):
    """The sink ``pulsebridge_commands``. Its columns are ``bridge.contract.COMMAND_COLUMNS``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "pulsebridge_commands"

    def writer(self, schema: StructType, overwrite: bool) -> CommandsBatchWriter:
        """Triggered by ``df.write…save()``, on the driver, once per write. What it raises fails the write.

        Raises ContractError for a schema or a save mode that will not do.
        """
        if overwrite:
            raise ContractError("commands cannot be overwritten", remedy="use .mode('append')")
        return CommandsBatchWriter(self._options, _prepare(self._options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> CommandsStreamWriter:
        """Triggered by ``df.writeStream…start()``, on the driver. What it raises fails the query.

        Raises ContractError for a schema or an output mode that will not do.
        """
        if overwrite:
            raise ContractError("commands cannot be overwritten", remedy="use .outputMode('append')")
        return CommandsStreamWriter(self._options, _prepare(self._options, schema))


def _prepare(options: SinkOptions, schema: StructType) -> int:
    check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
    with PulsarAdmin(options.pulsar) as admin:
        partitions = commands_ready(admin, options.topic)
        if not partitions and options.provision:
            partitions = provision_commands(admin, options.topic)
    if not partitions:
        raise ContractError(
            f"{options.topic} is not there, or without the push tier's subscription",
            remedy="start `pulsebridge push` once, or set the option provision to true",
        )
    return partitions


class CommandsBatchWriter(DataSourceArrowWriter):
    """Writes the tasks of one batch write."""

    def __init__(self, options: SinkOptions, partitions: int) -> None:
        self._options = options
        self._partitions = partitions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Triggered once per task, on an executor. What it raises fails the task, which Spark retries."""
        return _write(self._options, self._partitions, iterator)


class CommandsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of each micro-batch. Nothing is left to commit(): what a task stored stays, a repeat is
    dropped by push.
    """

    def __init__(self, options: SinkOptions, partitions: int) -> None:
        self._options = options
        self._partitions = partitions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Triggered once per task, on an executor. What it raises fails the task, which Spark retries."""
        return _write(self._options, self._partitions, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Triggered on the driver when all tasks of a micro-batch succeeded. Nothing is left to do."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Triggered on the driver when a task failed for good. What was stored comes again and is dropped."""


def _write(options: SinkOptions, partitions: int, batches: Iterator[pa.RecordBatch]) -> Written:
    commands, bad = writer_of_this_process(options, partitions).write(read_rows(batches))
    return Written(commands, bad)

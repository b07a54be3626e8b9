"""``format("pulsebridge_groups")``: Spark's data source for writes of group memberships.

On the driver it checks options, schema, and that the topics exist. The last row for a device of a group counts,
also if it is written several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from bridge.errors import ContractError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import partitions_ready, provision_commands
from bridge.pulsar.provisioning_plan import group_needs
from sinks.group_rows import check_schema, read_rows
from sinks.option_names import GROUPS
from sinks.options import SinkOptions, read_group_options
from sinks.writer import writer_of_this_process
from sinks.writers import BatchWriter, StreamWriter, Task, Written, appending, prepare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["GroupsSink"]


class GroupsSink(DataSource):
    """The sink ``pulsebridge_groups``. Its columns are ``sinks.columns.GROUP_MEMBER_COLUMNS``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return GROUPS

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Called for ``df.write…save()``, on the driver, once per write. An exception fails the write.

        Raises ContractError for an invalid schema or save mode, ConfigError for invalid options.
        """
        return BatchWriter(appending("groups", overwrite, lambda: self._task(schema, stream=False)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Called for ``df.writeStream…start()``, on the driver. An exception fails the query.

        Raises ContractError for an invalid schema or output mode, ConfigError for invalid options.
        """
        return StreamWriter(appending("groups", overwrite, lambda: self._task(schema, stream=True)))

    def _task(self, schema: StructType, *, stream: bool) -> Task:
        options = read_group_options(self.options)
        check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
        prepare(("groups", options), lambda: _prepare(options), stream=stream)
        return _GroupsTask(options)


def _prepare(options: SinkOptions) -> None:
    with PulsarAdmin(options.pulsar) as admin:
        if all(partitions_ready(admin, need) for need in group_needs(options.pulsar)):
            return
        if not options.provision:
            raise ContractError(
                f"{options.topic} or a topic that it needs does not exist",
                remedy="start `pulsebridge push` once, or set the option provision to true",
            )
        provision_commands(admin)


@dataclass(frozen=True)
class _GroupsTask:
    options: SinkOptions
    dead_letters: str = "pulsebridge dead-letters list"

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        topic = self.options.topic
        assert topic is not None
        rows = read_rows(batches, topic, self.options.max_name_bytes)
        return Written(*writer_of_this_process(self.options.target).write(rows, topic))

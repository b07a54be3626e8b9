"""``format("pulsebridge")`` as a sink: rows to Pulsar topics, with the source's column names.

It is one half of the format: ``sources`` reads, this module writes (see ``bridge.spark.formats``). On the driver it
checks options, schema, and that the topics exist. Rows are at-least-once in Pulsar: a retried task or a replayed
micro-batch repeats its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from bridge.contract import DEAD_LETTERS_TOPIC, topic_name
from bridge.errors import ConfigError, ContractError
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.provisioning import create_topic
from bridge.pulsar.provisioning_plan import namespace_steps, topic_need
from sinks.option_names import TOPICS
from sinks.options import SinkOptions, read_topic_options
from sinks.topic_rows import Plan, check_schema, read_rows
from sinks.writer import writer_of_this_process
from sinks.writers import BatchWriter, StreamWriter, Task, Written, appending, prepare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["NoReading", "TopicSink"]


class TopicSink(DataSource):
    """The writing half of ``pulsebridge``. Its columns are ``sinks.columns.TOPIC_SINK_COLUMNS``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return TOPICS

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Called for ``df.write…save()``, on the driver, once per write. An exception fails the write.

        Raises ContractError for an invalid schema or save mode, ConfigError for invalid options.
        """
        return BatchWriter(appending("a Pulsar topic", overwrite, lambda: self._task(schema, stream=False)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Called for ``df.writeStream…start()``, on the driver. An exception fails the query.

        Raises ContractError for an invalid schema or output mode, ConfigError for invalid options.
        """
        return StreamWriter(appending("a Pulsar topic", overwrite, lambda: self._task(schema, stream=True)))

    def _task(self, schema: StructType, *, stream: bool) -> Task:
        options = read_topic_options(self.options)
        pulsar = options.pulsar
        plan = Plan(
            options.topic,
            options.base64_keys,
            options.target.chunking,
            topic_name(pulsar.tenant, pulsar.system_namespace, ""),
            options.max_name_bytes,
        )
        check_schema(((field.name, field.dataType.simpleString()) for field in schema.fields), plan)
        prepare(("topics", options), lambda: _prepare(options), stream=stream)
        return _TopicsTask(options, plan)


class NoReading(DataSource):
    """Replaces the reading half if only the sinks are registered."""

    def schema(self) -> NoReturn:
        """Called for ``load()``. Raises ConfigError."""
        raise ConfigError(
            "this session has the format pulsebridge only for writing",
            remedy="import sources; sources.register(spark)",
        )


def _prepare(options: SinkOptions) -> None:
    """Check that the topics of the rows and of the dead letters exist. Create the latter if ``provision`` is set."""
    pulsar = options.pulsar
    with PulsarAdmin(pulsar) as admin:
        if options.topic is not None and not admin.exists(options.topic):
            raise ContractError(
                f"topic {options.topic} does not exist",
                remedy=f"pulsar-admin topics create-partitioned-topic {options.topic} --partitions N",
            )
        dead = pulsar.system_topic(DEAD_LETTERS_TOPIC)
        if options.target.fail_on_bad_rows or admin.exists(dead):
            return
        if not options.provision:
            raise ContractError(
                f"topic {dead} for rows that cannot be written does not exist",
                remedy="run `pulsebridge provision`, set provision=true, or badRows=fail",
            )
        for step in namespace_steps(f"{pulsar.tenant}/{pulsar.system_namespace}", pulsar):
            admin.do(step)
        create_topic(admin, topic_need(pulsar, DEAD_LETTERS_TOPIC))


@dataclass(frozen=True)
class _TopicsTask:
    options: SinkOptions
    plan: Plan
    dead_letters: str = "pulsebridge dead-letters list"

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = read_rows(batches, self.plan)
        return Written(*writer_of_this_process(self.options.target).write(rows, self.options.topic or ""))

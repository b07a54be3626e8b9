"""``format("pulsebridge")`` as a sink: rows into Pulsar topics, by the names that the source gives its columns.

It is one half of the format: ``sources`` reads, this writes (see ``bridge.formats``). It decides, on the driver,
whether options and schema will do and that the topics are there. Rows are at-least-once in Pulsar: a task that is
tried again, or a micro-batch that is replayed, writes its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from bridge.contract import DEAD_LETTERS_TOPIC, topic_name
from bridge.errors import ConfigError, ContractError
from bridge.provisioning import create_topic
from bridge.provisioning_plan import TopicNeed, namespace_steps
from bridge.pulsar_admin import PulsarAdmin
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
    """The writing half of ``pulsebridge``. Its columns are ``bridge.contract.TOPIC_SINK_COLUMNS``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return TOPICS

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Triggered by ``df.write…save()``, on the driver, once per write. What it raises fails the write.

        Raises ContractError for a schema or a save mode that will not do, ConfigError for options that will not.
        """
        return BatchWriter(appending("a Pulsar topic", overwrite, lambda: self._task(schema, stream=False)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Triggered by ``df.writeStream…start()``, on the driver. What it raises fails the query.

        Raises ContractError for a schema or an output mode that will not do, ConfigError for options that will not.
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
    """Stands for the reading half where only the sinks are registered."""

    def schema(self) -> NoReturn:
        """Triggered by ``load()``. Raises ConfigError."""
        raise ConfigError(
            "this session knows the format pulsebridge for writing alone",
            remedy="import sources; sources.register(spark)",
        )


def _prepare(options: SinkOptions) -> None:
    """See that the topic is there, and the one of the dead letters, which is made when it may be."""
    pulsar = options.pulsar
    with PulsarAdmin(pulsar) as admin:
        if options.topic is not None and not admin.exists(options.topic):
            raise ContractError(
                f"there is no topic {options.topic}",
                remedy=f"pulsar-admin topics create-partitioned-topic {options.topic} --partitions N",
            )
        dead = pulsar.system_topic(DEAD_LETTERS_TOPIC)
        if options.target.fail_on_bad_rows or admin.exists(dead):
            return
        if not options.provision:
            raise ContractError(
                f"there is no topic {dead} for rows that cannot be written",
                remedy="run `pulsebridge provision`, set provision=true, or badRows=fail",
            )
        for step in namespace_steps(f"{pulsar.tenant}/{pulsar.system_namespace}", pulsar):
            admin.do(step)
        create_topic(admin, TopicNeed(dead, pulsar.command_partitions, why="what cannot be passed on"))


@dataclass(frozen=True)
class _TopicsTask:
    options: SinkOptions
    plan: Plan
    dead_letters: str = "pulsebridge dead-letters list"

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = read_rows(batches, self.plan)
        return Written(*writer_of_this_process(self.options.target).write(rows, self.options.topic or ""))

"""The shell around Spark's Python Data Source API: format ``pulsebridge``, streaming and batch.

Makes no connection while a query is only being described: readers are built in several processes and travel by
pickle; the planner process of a query connects at its first call, a task in its own worker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bridge.errors import ConfigError, PulsebridgeError
from bridge.formats import joined
from sources.offsets import Offset
from sources.options import SourceOptions, parse
from sources.planning import Limits
from sources.pushdown import Narrowed, narrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sources.decoding import Decoding
    from sources.reading import ReadTask
    from sources.stream import StreamPlanner

__all__ = ["PulsebridgeDataSource", "PulsebridgeStreamReader", "register"]

FORMAT = "pulsebridge"
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_SESSION: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|authparam",  # url is Spark's own default
}
_KEPT_APART: Final = hasattr(DataSourceReader, "pushLimit")
"""Whether Spark keeps what was pushed with each scan. Before SPARK-58551, which brought this method, all uses of a
DataFrame shared what was pushed last: with a self-union, or the next query, rows were missing."""


def register(spark: SparkSession) -> None:
    """Make ``format("pulsebridge")`` known to this session. Doing it twice is harmless.

    Lets Spark push filters to Python sources, and hide ``authParams`` where it shows the options of a view,
    unless the session says otherwise.
    """
    spark.dataSource.register(joined(FORMAT, "read", PulsebridgeDataSource, NoWriting))
    for name, value in _SESSION.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)


class Range(InputPartition):
    """One task's part of a batch."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


class PulsebridgeDataSource(DataSource):
    """Pulsar topics as rows; the options are those of ``sources.options``."""

    _decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of ``bridge.contract.SOURCE_COLUMNS``, with decoded ones, or those that ``columns`` names.

        Called by Spark at ``load()``, unless the user gave a schema. Raises ConfigError for options that are wrong,
        TransientError when the topic's schema is wanted and Pulsar's admin cannot be reached.
        """
        options = self._decoded(parse(self.options, streaming=None))
        types = dict(_columns(options))
        names = options.columns if "columns" in self.options else tuple(types)
        wrong = [name for name in names if name not in types]
        if wrong:
            raise ConfigError(
                f"columns: no column {', '.join(wrong)}", remedy="take names from: " + ", ".join(types)
            )
        # A session may take the word timestamp for the type without a time zone.
        ddl = ", ".join(f"`{name}` {types[name]}" for name in names)
        return re.sub(r"(?<!`)\btimestamp\b(?!`)", "timestamp_ltz", ddl)

    def _decoded(self, options: SourceOptions) -> SourceOptions:
        """Return the options with the schema of the topics; it is asked for once and travels with this object."""
        if options.decode != "none" and self._decoding is None:
            from sources.topic_schemas import decoding_of

            self._decoding = decoding_of(options)
        return replace(options, decoding=self._decoding)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises ConfigError for options that are wrong."""
        options = _asked(self._decoded(parse(self.options, streaming=False)), schema)
        wanted = _KEPT_APART if options.push_filters is None else options.push_filters
        return PushingReader(options) if wanted and _filters_are_pushed() else PulsebridgeReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query; it raises ConfigError at its first use for options that are wrong."""
        try:
            return PulsebridgeStreamReader(_asked(self._decoded(parse(self.options, streaming=True)), schema))
        except PulsebridgeError as e:
            # Spark's runner hides what is raised here behind an error of its own.
            return PulsebridgeStreamReader(e)


class NoWriting(DataSource):
    """Stands for the writing half of the format where only the source is registered."""

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Called by Spark for a batch write. Raises ConfigError."""
        raise ConfigError(
            "this session knows the format pulsebridge for reading alone",
            remedy="import sinks; sinks.register(spark)",
        )

    streamWriter = writer


def _asked(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options with the columns of a schema that the user gave; each must be one of the source's."""
    types = {name: of.replace("`", "") for name, of in _columns(options)}
    asked = {f.name: f.dataType.simpleString() for f in schema.fields}
    keys = options.keys
    if keys == "text" and asked.get("__key") == "binary":  # as StreamNative's connector gives it
        keys, types["__key"] = "bytes", "binary"
    wrong = [name for name, of in asked.items() if types.get(name) != of]
    if wrong:
        raise ConfigError(
            f"the schema asks for columns that the source does not have with that type: {', '.join(wrong)}",
            remedy="take names and types from: " + ", ".join(f"{n} {t}" for n, t in types.items()),
        )
    decoding = options.decoding
    if decoding is not None and not asked.keys() & set(decoding.names):
        decoding = None
    return replace(options, columns=tuple(asked), keys=keys, decoding=decoding)


def _columns(options: SourceOptions) -> tuple[tuple[str, str], ...]:
    """Return every column that a query with these options can have, with its Spark type."""
    from sources.decoding import columns_of

    key = "string" if options.keys == "text" else "binary"
    return tuple((name, key if name == "__key" else of) for name, of in columns_of(options.decoding))


class PulsebridgeReader(DataSourceReader):
    """A batch query: the range is resolved once, when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed: Narrowed | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Called by Spark on the driver when it plans the query; what raises here fails the query."""
        from sources.batch import batch_tasks

        _say(self._options.notes)
        tasks = batch_tasks(self._options, self._narrowed)
        return [Range(task) for task in tasks] or [Range(_nothing(self._options))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called by Spark in a Python worker, for each task."""
        return _read(partition)


class PushingReader(PulsebridgeReader):
    """A batch query whose filters Spark pushes. Spark refuses a reader that takes them where it pushes none."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Called by Spark (4.1 and later) before ``partitions``; returns those that Spark still has to evaluate."""
        decoding = self._options.decoding
        names = () if decoding is None else decoding.names
        self._narrowed, rest = narrow(filters, self._options.slack_ms, names)
        return rest


class PulsebridgeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. All but ``read`` is called in the planner process, on the query's thread."""

    def __init__(self, options: SourceOptions | PulsebridgeError) -> None:
        self._checked = options
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_checked": self._checked, "_planner": None}

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._checked, PulsebridgeError):
            raise self._checked
        return self._checked

    @property
    def planner(self) -> StreamPlanner:
        """The driver's side, connected at the first call."""
        if self._planner is None:
            from sources.stream import StreamPlanner

            _say(self._options.notes)
            self._planner = StreamPlanner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Called while no batch is committed, several times; what raises here fails the query."""
        return self.planner.initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Called before each trigger: one of Spark's limits stands for all those of the options."""
        limits = self._options.limits
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.size is not None:
            return ReadMaxBytes(limits.size)
        if limits.entries is not None:
            return ReadMaxFiles(
                limits.entries
            )  # the one of Spark's own kinds that counts neither rows nor bytes
        if limits.least_rows is not None:
            return ReadMinRows(limits.least_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called for each trigger with the last offset; returns it unchanged when there is nothing new."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self.planner.latest_offset(Offset.from_json(start), limits).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Called for the query's progress: the end as the last trigger saw it, and what it leaves unread."""
        return None if self._planner is None else self._planner.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Called once, first, with Trigger.AvailableNow."""
        self.planner.note_ceiling()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for each batch, and again when it is replayed after a restart."""
        tasks = self.planner.tasks(Offset.from_json(start), Offset.from_json(end))
        return [Range(task) for task in tasks] or [Range(_nothing(self._options))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called in a Python worker, for each task; uses nothing of this object."""
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the batch that ended at ``end`` is in the commit log; raising fails the query."""
        self.planner.commit(Offset.from_json(end))

    def stop(self) -> None:
        """Called when the query stops or its driver is gone; the subscription stays."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _filters_are_pushed() -> bool:
    """Whether this is the process in which Spark pushes filters: it knows no other way to ask before it complains."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)


def _say(notes: Sequence[str]) -> None:
    if notes:
        import structlog

        structlog.get_logger("source").info("options that change nothing", options=list(notes))


def _read(partition: InputPartition) -> Iterator[Any]:
    from sources.reading import read_range  # Pulsar's client and Arrow: only where data is read

    assert isinstance(partition, Range)
    return read_range(partition.task)


def _nothing(options: SourceOptions) -> ReadTask:
    from sources.reading import ReadTask

    return ReadTask(
        options.pulsar, "", "", (), options.columns, options.read_idle_timeout_ms, options.fail_on_data_loss
    )

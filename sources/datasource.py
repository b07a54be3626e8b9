"""Implements Spark's Python Data Source API: format ``pulsebridge``, streaming and batch.

Describing a query makes no connection: Spark builds readers in several processes and pickles them. The planner
process of a query connects at its first call, a task in its own worker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from bridge.errors import ConfigError, PulsebridgeError
from bridge.spark.formats import joined
from sources import partitions
from sources.notes import log_notes
from sources.options import SourceOptions, parse
from sources.pushdown import Narrowed, narrow
from sources.python_start import start_from_packages
from sources.spark_features import lacking_in_batch, spark_features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sources.decoding import Decoding
    from sources.stream_reader import PulsebridgeStreamReader

__all__ = ["PulsebridgeDataSource", "register"]

FORMAT = "pulsebridge"
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_SESSION: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|authparam",  # url is Spark's own default
}


def register(spark: SparkSession) -> None:
    """Register ``format("pulsebridge")`` in this session. Repeated calls have no effect.

    On a local master, Spark's Python processes then start from the installed packages (``sources.python_start``).
    Enables filter pushdown to Python sources, and hides ``authParams`` in the options of a view, unless the session
    sets these settings itself.
    """
    start_from_packages(spark)
    spark.dataSource.register(joined(FORMAT, "read", PulsebridgeDataSource, NoWriting))
    for name, value in _SESSION.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)


class PulsebridgeDataSource(DataSource):
    """Pulsar topics as rows; the options are those of ``sources.options``."""

    _decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return ``bridge.contract.SOURCE_COLUMNS`` and decoded columns, or those that ``columns`` names.

        Called by Spark at ``load()``, unless the user gives a schema. Raises ConfigError for invalid options,
        TransientError if the topic's schema is needed and Pulsar's admin is unreachable.
        """
        options = self._decoded(parse(self.options, streaming=None))
        types = dict(_columns(options))
        names = options.columns if "columns" in self.options else tuple(types)
        wrong = [name for name in names if name not in types]
        if wrong:
            raise ConfigError(f"columns: no column {', '.join(wrong)}", remedy="use names from: " + ", ".join(types))
        # A session may map timestamp to the type without a time zone.
        ddl = ", ".join(f"`{name}` {types[name]}" for name in names)
        return re.sub(r"(?<!`)\btimestamp\b(?!`)", "timestamp_ltz", ddl)

    def _decoded(self, options: SourceOptions) -> SourceOptions:
        """Return the options with the schema of the topics. It is requested once and pickled with this object."""
        if options.decode != "none" and self._decoding is None:
            from sources.topic_schemas import decoding_of

            self._decoding = decoding_of(options)
        return replace(options, decoding=self._decoding)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises ConfigError for invalid options."""
        options = _asked(self._decoded(parse(self.options, streaming=False)), schema)
        wanted = spark_features().filters_per_scan if options.push_filters is None else options.push_filters
        return PushingReader(options) if wanted and _filters_are_pushed() else PulsebridgeReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. For invalid options it raises ConfigError at its first use."""
        kind = _stream_reader()
        try:
            return kind(_asked(self._decoded(parse(self.options, streaming=True)), schema))
        except PulsebridgeError as e:
            # Spark's runner replaces errors raised here by its own; the reader raises this one.
            return kind(e)


def _stream_reader() -> type[PulsebridgeStreamReader]:
    """Return the reader for this Spark: older ones lack the classes of the newer reader."""
    if spark_features().limits:
        from sources.admission import AdmissionStreamReader

        return AdmissionStreamReader
    from sources.stream_reader import PulsebridgeStreamReader

    return PulsebridgeStreamReader


class NoWriting(DataSource):
    """The writer of the format in a session that registers only the source."""

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Called by Spark for a batch write. Raises ConfigError."""
        raise ConfigError(
            "this session has the format pulsebridge for reading only",
            remedy="import sinks; sinks.register(spark)",
        )

    streamWriter = writer


def _asked(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options with the columns of the user's schema. The source must have each of them."""
    types = {name: of.replace("`", "") for name, of in _columns(options)}
    asked = {f.name: f.dataType.simpleString() for f in schema.fields}
    keys = options.keys
    if keys == "text" and asked.get("__key") == "binary":  # as in StreamNative's connector
        keys, types["__key"] = "bytes", "binary"
    wrong = [name for name, of in asked.items() if types.get(name) != of]
    if wrong:
        raise ConfigError(
            f"the schema has columns that the source does not have with that type: {', '.join(wrong)}",
            remedy="use names and types from: " + ", ".join(f"{n} {t}" for n, t in types.items()),
        )
    decoding = options.decoding
    if decoding is not None and not asked.keys() & set(decoding.names):
        decoding = None
    return replace(options, columns=tuple(asked), keys=keys, decoding=decoding)


def _columns(options: SourceOptions) -> tuple[tuple[str, str], ...]:
    """Return all possible columns of a query with these options, with their Spark types."""
    from sources.decoding import columns_of

    key = "string" if options.keys == "text" else "binary"
    return tuple((name, key if name == "__key" else of) for name, of in columns_of(options.decoding))


class PulsebridgeReader(DataSourceReader):
    """A batch query. Its range is resolved once, when Spark plans the query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed: Narrowed | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Called by Spark on the driver when it plans the query. An error here fails the query."""
        from sources.batch import batch_tasks

        log_notes(self._options.notes, lacking_in_batch(spark_features(), self._options))
        return partitions.ranges(batch_tasks(self._options, self._narrowed))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called by Spark in a Python worker, for each task."""
        return partitions.read(partition)


class PushingReader(PulsebridgeReader):
    """A batch query with filter pushdown. Spark refuses such a reader if pushdown is off."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Called by Spark (4.1 and later) before ``partitions``. Returns the filters that Spark must still evaluate."""
        decoding = self._options.decoding
        names = () if decoding is None else decoding.names
        self._narrowed, rest = narrow(filters, self._options.slack_ms, names)
        return rest


def _filters_are_pushed() -> bool:
    """Whether Spark pushes filters in this process. Spark has no other way to find out before it fails."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)

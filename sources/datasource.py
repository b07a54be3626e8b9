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

from bridge.errors import ConfigError, PulsebridgeError
from bridge.formats import joined
from bridge.python_start import start_from_packages
from sources import partitions
from sources.notes import say
from sources.options import SourceOptions, parse
from sources.pushdown import Narrowed, narrow
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
    """Make ``format("pulsebridge")`` known to this session. Doing it twice is harmless.

    On a local master, Spark's Python processes start from the installed packages from then on
    (``bridge.python_start``). Lets Spark push filters to Python sources, and hide ``authParams`` where it shows the
    options of a view, unless the session says otherwise.
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
        """Return the columns of ``bridge.contract.SOURCE_COLUMNS``, with decoded ones, or those that ``columns`` names.

        Called by Spark at ``load()``, unless the user gave a schema. Raises ConfigError for options that are wrong,
        TransientError when the topic's schema is wanted and Pulsar's admin cannot be reached.
        """
        options = self._decoded(parse(self.options, streaming=None))
        types = dict(_columns(options))
        names = options.columns if "columns" in self.options else tuple(types)
        wrong = [name for name in names if name not in types]
        if wrong:
            raise ConfigError(f"columns: no column {', '.join(wrong)}", remedy="take names from: " + ", ".join(types))
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
        wanted = spark_features().filters_kept_apart if options.push_filters is None else options.push_filters
        return PushingReader(options) if wanted and _filters_are_pushed() else PulsebridgeReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query; it raises ConfigError at its first use for options that are wrong."""
        kind = _stream_reader()
        try:
            return kind(_asked(self._decoded(parse(self.options, streaming=True)), schema))
        except PulsebridgeError as e:
            # Spark's runner hides what is raised here behind an error of its own: the reader raises it.
            return kind(e)


def _stream_reader() -> type[PulsebridgeStreamReader]:
    """Return the reader that fits this Spark: older ones lack the classes of the other."""
    if spark_features().limits:
        from sources.admission import AdmissionStreamReader

        return AdmissionStreamReader
    from sources.stream_reader import PulsebridgeStreamReader

    return PulsebridgeStreamReader


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

        say(self._options.notes, lacking_in_batch(spark_features(), self._options))
        return partitions.ranges(batch_tasks(self._options, self._narrowed))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called by Spark in a Python worker, for each task."""
        return partitions.read(partition)


class PushingReader(PulsebridgeReader):
    """A batch query whose filters Spark pushes. Spark refuses a reader that takes them where it pushes none."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Called by Spark (4.1 and later) before ``partitions``; returns those that Spark still has to evaluate."""
        decoding = self._options.decoding
        names = () if decoding is None else decoding.names
        self._narrowed, rest = narrow(filters, self._options.slack_ms, names)
        return rest


def _filters_are_pushed() -> bool:
    """Whether this is the process in which Spark pushes filters: it knows no other way to ask before it complains."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)

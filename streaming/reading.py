"""Reads for a pipeline's functions: messages of topics, tables and views, as Spark frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError, PulsebridgeError
from streaming.pipelines import DEVICES, Declared, Flow, Pipeline, running
from streaming.tables import Table, create, struct_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.settings import Settings
    from bridge.settings.tables import Decoding

__all__ = ["MESSAGE_COLUMNS", "QUARANTINE", "WORKING_COLUMNS", "Reader"]

MESSAGE_COLUMNS: Final = tuple(name for name, _ in SOURCE_COLUMNS if name != "value")
"""The facts of a message: all columns of the source but ``value``, which repeats ``payload``."""
WORKING_COLUMNS: Final = ("_fault", "_ahead", "_payload")
"""Temporary columns of rows on their way to a table. No table has them."""
QUARANTINE: Final = "quarantine"
"""Name of the table of rows that failed a rule."""


@dataclass
class Reader:
    """Resolves the reads of functions, for one pipeline in one session."""

    spark: SparkSession
    settings: Settings
    pipeline: Pipeline = field(default_factory=Pipeline)
    instead: dict[str, DataFrame] = field(default_factory=dict)
    """Frames that replace a table's rows."""
    stored: DataFrame | None = None
    """Messages as in bronze. If set, functions read them instead of the topics, and a table's rows instead of its
    stream. Then their frames are not streaming.
    """
    seen: list[str] = field(default_factory=list)
    """Tables of the pipeline that were read, in order."""
    _flow: str = ""
    _sources: int = 0
    _made: set[str] = field(default_factory=set)

    def __getstate__(self) -> dict[str, Any]:
        # With Spark Connect, another process updates the views in its own session.
        return {**self.__dict__, "spark": None, "instead": {}, "stored": None}

    @classmethod
    def of_session(cls) -> Reader:
        """Return a reader for the active session, with the settings of the environment."""
        from pyspark.sql import SparkSession

        from bridge.settings.loading import load

        spark = SparkSession.active()
        return cls(spark, load(None, ()))

    def frame(self, flow: Flow) -> DataFrame:
        """Return the frame of a flow's function, and create the tables that it reads. Raises ConfigError for an
        exception of the function.
        """
        from pyspark.sql import DataFrame

        self._flow, self._sources = flow.name, 0
        try:
            with running(self):
                found = flow.query()
        except PulsebridgeError:
            raise
        except Exception as e:
            if type(e).__module__.startswith("py4j"):  # an error of Spark, for example a query that is stopped
                raise
            raise ConfigError(
                f"flow {flow.name!r}: {type(e).__name__}: {_line(e)}", remedy="correct its function"
            ) from e
        if not isinstance(found, DataFrame):
            raise ConfigError(
                f"flow {flow.name!r} returns {type(found).__name__}, which is not a DataFrame",
                remedy="return a DataFrame",
            )
        if self.stored is None and found.isStreaming == (flow.kind == "view"):
            wanted = "read" if flow.kind == "view" else "read_stream or messages"
            raise ConfigError(
                f"flow {flow.name!r} returns a frame that is {'' if found.isStreaming else 'not '}a stream",
                remedy=f"read its tables by {wanted}",
            )
        return found

    @property
    def read_messages(self) -> bool:
        """Whether the flow of the last frame reads messages."""
        return self._sources > 0

    def messages(self, filter: str, declared: Mapping[str, Any]) -> DataFrame:
        """Return the messages of a filter, decoded by the declaration."""
        from streaming.decoding import Decoding

        if declared:
            try:
                return self.decoded([Decoding(filter=filter, **declared)])
            except ValidationError as e:
                raise ConfigError(f"messages({filter!r}): {_line(e)}", remedy="correct its arguments") from e
        from bridge.routing.templates import Filter
        from streaming.sql import matches

        rows = self._source(filter)
        return rows if filter == "#" else rows.where(matches(Filter.parse(filter)))

    def decoded(self, decodings: Sequence[Decoding]) -> DataFrame:
        """Return the messages of several declarations, decoded. ``_ahead`` marks rows whose time is too far ahead."""
        from pyspark.sql import functions as F

        from streaming.decoding import decoded

        zone = self.settings.streaming.time_zone
        decodings = [
            one if one.time_zone or not zone else one.model_copy(update={"time_zone": zone}) for one in decodings
        ]
        rows = self._source(*(one.filter for one in decodings))
        skew = f"make_dt_interval(0, 0, 0, CAST({self.settings.streaming.clock_skew} AS DECIMAL(18, 6)))"
        # Ingest's clock may be ahead as well (H45).
        ahead = f"event_time > least(arrival_time, current_timestamp()) + {skew}"
        return decoded(rows, decodings, self.settings.ingest.all_routes).withColumn("_ahead", F.expr(ahead))

    def read(self, name: str) -> DataFrame:
        """Return the rows of a table."""
        if name in self.instead:
            self.seen.append(name)
            return self.instead[name]
        if name in self.pipeline.views:
            return self.pipeline.views[name]()
        return self._table(name).read(self.spark)

    def read_stream(self, name: str) -> DataFrame:
        """Return the stream of a table's new rows."""
        if self.stored is not None:
            return self.read(name)
        if name in self.pipeline.views:
            return self.pipeline.views[name]()
        return self._table(name).stream(self.spark)

    def table(self, name: str) -> Table:
        """Return a table's location."""
        return table_of(name, self.settings.streaming)

    def ensure(self, name: str) -> Table:
        """Return a table of the pipeline. It is created from its declaration if it does not exist."""
        found = self.table(name)
        if name in self._made:
            return found
        self._made.add(name)
        declared = self.pipeline.tables[name]
        schema = self._schema(declared)
        keys = [*declared.keys, *(key for flow in self.pipeline.flows_of(name) for key in flow.keys)]
        missing = {key.lower() for key in keys} - {column.lower() for column in schema.names}
        if missing:
            raise ConfigError(
                f"table {name!r}: its key {min(missing)!r} is not one of its columns",
                remedy=f"name some of {', '.join(schema.names)}",
            )
        create(
            self.spark,
            found,
            schema,
            comment=declared.comment,
            cluster_by=declared.cluster_by,
            partition_cols=declared.partition_cols,
            keys=keys,
            properties=declared.table_properties,
        )
        return found

    def _table(self, name: str) -> Table:
        self.seen.append(name)
        if name in self.pipeline.tables:
            return self.ensure(name)
        return self.table(name)

    def _schema(self, declared: Declared) -> StructType:
        from pyspark.sql.types import StructType

        if isinstance(declared.schema, StructType):
            return declared.schema
        if declared.schema is not None:
            return struct_of(declared.schema)
        kept = (self._flow, self._sources, list(self.seen))
        try:
            found = self.frame(self.pipeline.flows_of(declared.name)[0]).schema
        finally:
            self._flow, self._sources, self.seen[:] = kept[0], kept[1], kept[2]
        from pyspark.sql.types import ArrayType, StringType, StructField

        fields = [f for f in found.fields if f.name not in WORKING_COLUMNS]
        if declared.suite and "_warnings" not in found.names:
            fields.append(StructField("_warnings", ArrayType(StringType())))
        return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in fields])

    def system_topic(self, name: str) -> DataFrame:
        """Return the messages of a topic that command flows write. If flows run in sequence, it comes after these.

        If its subscription exists already, the subscription's position is the first start.
        """
        self.seen.append(DEVICES)
        return self._messages([self.settings.pulsar.system_topic(name)], reuseSubscription="position")

    def _source(self, *filters: str) -> DataFrame:
        self._sources += 1
        if self.stored is not None:
            return self.stored.select(*MESSAGE_COLUMNS)
        return self._messages(self._topics(filters), re.sub(r"\W+", "-", " ".join(filters)).strip("-"))

    def _messages(self, topics: Sequence[str], otherwise: str = "", **more: str) -> DataFrame:
        """Return the stream of topics. The flow names its retention subscription, outside a job ``otherwise`` does."""
        from sources.options import connection_options

        streaming = self.settings.streaming
        subscription = streaming.subscription_of(self._flow or otherwise)
        if self._sources > 1:
            subscription += f"-{self._sources}"
        options = {
            **connection_options(self.settings.pulsar),
            "topics": ",".join(topics),
            "predefinedSubscription": subscription,
            "startingOffsets": "earliest",
            "waitingForNonExistedTopic": "true",  # a topic may be created with its first message, long after the start
            "maxRowsPerTrigger": str(streaming.trigger.max_rows),
            "maxBytesPerTrigger": str(streaming.trigger.max_size),
            "columns": ",".join(MESSAGE_COLUMNS),
            **more,
        }
        return self.spark.readStream.format("pulsebridge").options(**options).load()

    def _topics(self, filters: Iterable[str]) -> list[str]:
        from bridge.pulsar.admin import PulsarAdmin
        from bridge.routing.readings_topics import topics_to_read

        pulsar = self.settings.pulsar
        with PulsarAdmin(pulsar) as admin:
            found = topics_to_read(self.settings, admin.topics, filters)
        if not found:
            raise ConfigError(
                f"no topic in {', '.join(pulsar.readings_namespaces)}",
                remedy="start `pulsebridge ingest` first, or name the topics in streaming.topics",
            )
        return found


def _line(error: Exception) -> str:
    """Return an error's message in one line."""
    if isinstance(error, ValidationError):
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors(include_url=False)]
        return "; ".join(f"{at}: {what}" if at else what for at, what in found)
    return str(error).strip().partition("\n")[0]

"""Where the tables are and what they look like: columns with comments, properties, creation.

A table is given as a name (``catalog.schema.table``), a path or URI, or the name of a folder below the root. What is
written into the tables is decided by the modules of the queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.contract import SOURCE_COLUMNS
from bridge.errors import ConfigError
from streaming.evolution import RESCUED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.settings import StreamingSettings

__all__ = [
    "BRONZE_COLUMNS",
    "COMMAND_FIELDS",
    "DEVICE_FIELDS",
    "DEVICE_LATEST_COLUMNS",
    "GOLD_COLUMNS",
    "LATE_COLUMNS",
    "POSITION_COLUMNS",
    "PRESENCE_FIELDS",
    "QUALITY_COLUMNS",
    "QUARANTINE_COLUMNS",
    "READING_FIELDS",
    "RECEIPT_FIELDS",
    "SILVER_COLUMNS",
    "Column",
    "Table",
    "Tables",
    "add_columns",
    "create",
    "insert_all",
    "resolve_root",
    "schema_of",
    "table_of",
    "update_all",
]


@dataclass(frozen=True)
class Column:
    """A column of a table: Spark SQL type and what it means."""

    name: str
    type: str
    comment: str


_MEANINGS: Final = {
    "__key": "key of the Pulsar message: the device where a rule names it, else the MQTT topic",
    "__topic": "Pulsar topic, with its partition",
    "__messageId": "Pulsar message id, serialized",
    "__publishTime": "when Pulsar took the message",
    "__eventTime": "event time of the Pulsar message: arrival at ingest, in ms",
    "__messageProperties": "the envelope as ingest wrote it",
    "partition": "partition number of the Pulsar topic",
    "ledger_id": "ledger of the message",
    "entry_id": "entry in the ledger",
    "batch_index": "index in the producer's batch, 0 when unbatched",
    "mqtt_topic": "MQTT topic that the device published on",
    "device": "device that a topic rule names",
    "payload": "payload as it came",
    "qos": "QoS of the publish",
    "retain": "retain flag of the publish",
    "retained": "whether the broker sent it because of a subscribe, not because it was published just then",
    "arrival_time": "when ingest took the message from MQTT",
    "command_topic": "MQTT topic on which the device takes commands",
    "content_type": "MQTT 5 content type",
    "response_topic": "MQTT 5 response topic",
    "correlation_data": "MQTT 5 correlation data",
    "user_properties": "MQTT 5 user properties, in order, repeats kept",
}

BRONZE_COLUMNS: Final = (
    *(Column(name, kind, _MEANINGS[name]) for name, kind in SOURCE_COLUMNS if name != "value"),
    Column("stored_at", "timestamp", "start of the micro-batch that wrote the row"),
)
"""All facts of the source once: ``value`` is left out, it is ``payload`` again."""

POSITION_COLUMNS: Final = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")
"""Where a message is in Pulsar; its order is the order in which Pulsar took the messages of a partition."""

_POSITION: Final = tuple(c for c in BRONZE_COLUMNS if c.name in POSITION_COLUMNS)

SILVER_COLUMNS: Final = (
    Column(
        "reading_id",
        "string",
        "id that the device gave the reading, unique within the device; its place in Pulsar where it gives none",
    ),
    Column("device", "string", _MEANINGS["device"]),
    Column("metric", "string", "what was measured"),
    Column("value", "double", "the number measured, in unit"),
    Column("unit", "string", "unit of value"),
    Column("event_time", "timestamp", "the device's own time of the reading"),
    Column("event_day", "date", "day of event_time, UTC; with device and reading_id the key of the table"),
    Column("sent_at", "timestamp", "when the device published, where the payload says so"),
    Column("arrival_time", "timestamp", _MEANINGS["arrival_time"]),
    Column("publish_time", "timestamp", _MEANINGS["__publishTime"]),
    Column("processed_at", "timestamp", "start of the micro-batch, rebuild or replay that judged the row"),
    Column(
        "rebuilt_at",
        "timestamp",
        "start of the rebuild or replay that wrote the row, null where the query silver wrote it",
    ),
    Column("mqtt_topic", "string", _MEANINGS["mqtt_topic"]),
    Column("command_topic", "string", _MEANINGS["command_topic"]),
    Column("retained", "boolean", _MEANINGS["retained"]),
    *_POSITION,
    Column("element", "int", "place of the reading in its message, 0 where the message is one reading"),
    Column(
        RESCUED,
        "string",
        "JSON of the payload's fields that the decoder does not know and of values that do not fit, null for none",
    ),
)

QUARANTINE_COLUMNS: Final = (
    *SILVER_COLUMNS,
    Column("failed_rules", "array<string>", "names of all rules that the row failed"),
    Column("reason", "string", "the first of them, in words"),
    Column("payload", "binary", "payload as it came; of an element of an array that element, as JSON"),
    Column("recipe", "string", "SHA-256 of the decoders and the suite that judged the row"),
)

GOLD_COLUMNS: Final = (
    Column("device", "string", _MEANINGS["device"]),
    Column("metric", "string", "what was measured"),
    Column("window_start", "timestamp", "begin of the window of event time; the first moment in it"),
    Column("window_end", "timestamp", "end of the window; the first moment after it"),
    Column("readings", "bigint", "readings in the window"),
    Column("measured", "bigint", "of these, how many have a value"),
    Column("min_value", "double", "lowest value"),
    Column("max_value", "double", "highest value"),
    Column("mean_value", "double", "sum_value by measured"),
    Column("sum_value", "double", "sum of the values"),
    Column(
        "first_time", "timestamp", "event time of the first reading; of several the one with the lowest id"
    ),
    Column("first_id", "string", "its reading_id"),
    Column("first_value", "double", "its value"),
    Column(
        "last_time", "timestamp", "event time of the last reading; of several the one with the highest id"
    ),
    Column("last_id", "string", "its reading_id"),
    Column("last_value", "double", "its value"),
    Column("unit", "string", "its unit"),
    Column("updated_at", "timestamp", "start of the micro-batch that changed the row last"),
)

LATE_COLUMNS: Final = (
    *SILVER_COLUMNS,
    Column("window_start", "timestamp", "begin of the window of gold that the reading came too late for"),
    Column("window_end", "timestamp", "end of that window"),
    Column("watermark", "timestamp", "gold's watermark when the reading came; not before window_end"),
)

_NOT_LATEST: Final = ("device", "metric", "event_day", "command_topic", "retained", "rebuilt_at", RESCUED)
READING_FIELDS: Final = tuple(c for c in SILVER_COLUMNS if c.name not in _NOT_LATEST)
"""What of a reading stands in the table of the latest."""

_MESSAGE: Final = (
    Column("ledger_id", "bigint", "ledger of the message that says so"),
    Column("entry_id", "bigint", "entry in the ledger"),
    Column("batch_index", "int", "index in the producer's batch"),
)

PRESENCE_FIELDS: Final = (
    Column("seen_at", "timestamp", "when a message of the device arrived at ingest"),
    Column("link", "string", "name of the link that brought it"),
    *_MESSAGE,
)

COMMAND_FIELDS: Final = (
    Column("command_id", "string", "identity of the command"),
    Column("mqtt_topic", "string", "MQTT topic that it is pushed to"),
    Column("qos", "int", "QoS of the push; null where its receipt alone is known"),
    Column("emitted_at", "timestamp", "when it was emitted"),
    Column("expires_at", "timestamp", "when it expires, null for never"),
    Column("cause", "string", "what caused it"),
    Column("group", "string", "the group that it was for"),
)

RECEIPT_FIELDS: Final = (
    Column("state", "string", "what became of the command"),
    Column("reason", "string", "why"),
    Column("attempts", "int", "how often it was pushed"),
    Column("pushed_at", "timestamp", "when it was pushed first"),
    Column("confirmed_at", "timestamp", "when its PUBACK came"),
    Column("answered_at", "timestamp", "when the device answered"),
    *_MESSAGE,
)


def _struct(fields: Iterable[Column]) -> str:
    return f"struct<{', '.join(f'`{c.name}`: {c.type}' for c in fields)}>"


_FACTS: Final = (
    Column("presence", _struct(PRESENCE_FIELDS), "its last sign of life, as ingest notes it: seen_at, link"),
    Column("command", _struct(COMMAND_FIELDS), "the command that was emitted last for the device"),
    Column("receipt", _struct(RECEIPT_FIELDS), "that command's receipt, null while it is under way"),
)

DEVICE_FIELDS: Final = (Column("reading", _struct(READING_FIELDS), "a reading"), *_FACTS)
"""What may change the latest of a device."""

DEVICE_LATEST_COLUMNS: Final = (
    Column("device", "string", _MEANINGS["device"]),
    Column(
        "metric", "string", "what was measured; with device the key. Null while the device has no reading"
    ),
    *READING_FIELDS,
    *_FACTS,
)

QUALITY_COLUMNS: Final = (
    Column("run_at", "timestamp", "when the verdict was made"),
    Column("suite", "string", "name of the suite"),
    Column("rule", "string", "name of the rule"),
    Column("expectation", "string", "Great Expectations' name of it"),
    Column("columns", "array<string>", "columns it looks at"),
    Column("splits_rows", "boolean", "whether it also splits silver from quarantine"),
    Column("success", "boolean", "the verdict"),
    Column("evaluated", "bigint", "rows looked at, null for a rule on the table"),
    Column("unexpected", "bigint", "rows that failed, null for a rule on the table"),
    Column("observed", "string", "the observed value, or why there is no verdict"),
    Column("rows_since", "timestamp", "the rows judged were processed after this"),
    Column("rows_until", "timestamp", "and not after this"),
    Column("judged", "string", "the table that was judged; silver+quarantine: what the suite judged"),
)

# Many small commits: check-pointed rarely, statistics on few columns, small files merged as they pile up.
_PROPERTIES: Final = {
    "delta.checkpointInterval": "100",
    "delta.autoOptimize.autoCompact": "true",
}


@dataclass(frozen=True)
class Table:
    """A Delta table by name or by path."""

    where: str
    by_name: bool

    @property
    def sql(self) -> str:
        """How SQL names it."""
        if self.by_name:
            return ".".join(f"`{part}`" for part in self.where.split("."))
        return f"delta.`{self.where}`"

    def exists(self, spark: SparkSession) -> bool:
        """Whether it is there, as a Delta table."""
        if self.by_name:
            return spark.catalog.tableExists(self.where)
        jvm: Any = spark.sparkContext._jvm
        log = jvm.org.apache.hadoop.fs.Path(f"{self.where}/_delta_log")
        return bool(log.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(log))

    def path(self, spark: SparkSession) -> str:
        """Return where its files are."""
        if not self.by_name:
            return self.where
        detail = spark.sql(f"DESCRIBE DETAIL {self.sql}").first()
        return str(detail["location"]) if detail is not None else self.where

    def read(self, spark: SparkSession) -> DataFrame:
        """Return its rows."""
        return spark.table(self.sql) if self.by_name else spark.read.format("delta").load(self.where)

    def read_at(self, spark: SparkSession, version: int) -> DataFrame:
        """Return its rows as they were at a version of its log."""
        reader = spark.read.format("delta").option("versionAsOf", version)
        return reader.table(self.sql) if self.by_name else reader.load(self.where)

    def read_stream(self, spark: SparkSession, first_version: int | None = None) -> DataFrame:
        """Return the stream of what is appended to it, from its first row, or from a version of the table on. Where
        the query's checkpoint has offsets, these count.

        A commit that takes rows away or rewrites them is passed over, whole: its other rows were streamed when they
        came. Without that, deleting a row would stop every query that reads the table.
        """
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        if first_version is not None:
            reader = reader.option("startingVersion", str(first_version))
        return reader.table(self.sql) if self.by_name else reader.load(self.where)


@dataclass(frozen=True)
class Tables:
    """The tables of the settings, and the root of the checkpoints."""

    root: str
    bronze: Table
    silver: Table
    quarantine: Table
    quality_results: Table
    gold: Table
    late: Table
    device_latest: Table

    @classmethod
    def of(cls, settings: StreamingSettings) -> Tables:
        """Resolve what the settings name. Raises ConfigError for a name that cannot be one."""
        root = resolve_root(settings.root)
        return cls(
            root,
            _table(settings.bronze, root, "streaming.bronze"),
            _table(settings.silver, root, "streaming.silver"),
            _table(settings.quarantine, root, "streaming.quarantine"),
            _table(settings.quality_results, root, "streaming.quality_results"),
            _table(settings.gold, root, "streaming.gold"),
            _table(settings.late, root, "streaming.late"),
            _table(settings.device_latest, root, "streaming.device_latest"),
        )

    def named(self) -> dict[str, Table]:
        """Return every table by its name in the settings, bronze first: what goes over all tables goes over these."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Table)}

    def checkpoint(self, query: str) -> str:
        """Return the checkpoint folder of a query."""
        return f"{self.root}/checkpoints/{query}"


def resolve_root(root: str) -> str:
    """Return a root as Spark takes it: a URI as it is, a local folder as an absolute path."""
    if "://" in root:
        return root.rstrip("/")
    return str(Path(root.removeprefix("file:")).expanduser().absolute())


def table_of(text: str, root: str, setting: str) -> Table:
    """Read a table as the settings name one, for an option. Raises ConfigError naming it."""
    return _table(text, root, setting)


def _table(text: str, root: str, setting: str) -> Table:
    if "/" in text:
        return Table(resolve_root(text), False)
    if re.fullmatch(r"\w+(\.\w+){1,2}", text):
        return Table(text, True)
    if re.fullmatch(r"[\w-]+", text):
        return Table(f"{root}/{text}", False)
    raise ConfigError(
        f"{setting}: {text!r} names no table",
        remedy="give catalog.schema.table, a path with a slash, or the name of a folder below streaming.root",
    )


def schema_of(columns: tuple[Column, ...]) -> str:
    """Return the columns as a Spark SQL schema."""
    return ", ".join(f"`{c.name}` {c.type}" for c in columns)


def create(
    spark: SparkSession,
    table: Table,
    columns: tuple[Column, ...],
    *,
    comment: str,
    statistics: tuple[str, ...],
) -> None:
    """Create the table, or add the columns that it lacks. ``statistics``: those whose bounds are kept for each file."""
    properties = {
        **_PROPERTIES,
        "delta.dataSkippingStatsColumns": ",".join(f"`{name}`" for name in statistics),
    }
    pairs = ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in properties.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.sql} ({_body(columns)}) USING DELTA COMMENT {_quoted(comment)} "
        f"TBLPROPERTIES ({pairs})"
    )
    add_columns(spark, table, columns)


def add_columns(spark: SparkSession, table: Table, columns: Sequence[Column]) -> None:
    """Add those of the columns that the table lacks, whatever the case of their names."""
    there = {name.lower() for name in table.read(spark).columns}
    lacking = [c for c in columns if c.name.lower() not in there]
    if lacking:
        spark.sql(f"ALTER TABLE {table.sql} ADD COLUMNS ({_body(lacking)})")


def _body(columns: Iterable[Column]) -> str:
    return ", ".join(f"`{c.name}` {c.type} COMMENT {_quoted(c.comment)}" for c in columns)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def update_all(columns: Iterable[Column]) -> str:
    """Return the clause of a MERGE that sets these columns of ``t`` to those of ``s``. Those that the table's owner added
    keep their values; ``SET *`` would want them of the source.
    """
    return "UPDATE SET " + ", ".join(f"t.`{c.name}` = s.`{c.name}`" for c in columns)


def insert_all(columns: Iterable[Column]) -> str:
    """Return the clause of a MERGE that inserts these columns of ``s``."""
    names = [f"`{c.name}`" for c in columns]
    return f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"

"""Where a table is, and the statements that make and change it: by Spark's SQL alone, so that it works through Spark Connect.

A table is given as a name (``catalog.schema.table``), a path or URI, or a plain name, which is a table of
``streaming.schema`` where that is set, else a folder below ``streaming.root``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.errors import ConfigError
from streaming.sql import ddl_of, literal, quoted, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    from bridge.settings import StreamingSettings

__all__ = [
    "GONE",
    "PROPERTIES",
    "Appends",
    "Table",
    "add_columns",
    "configured",
    "create",
    "ddl",
    "is_missing",
    "resolve_root",
    "struct_of",
    "table_of",
]

GONE: Final = "_gone"
"""Column of rows to merge: whether the row of this key is gone."""
PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": "20",
    "delta.autoOptimize.autoCompact": "true",
    "delta.enableDeletionVectors": "true",
}
"""What a table gets unless its declaration says otherwise. Views follow the change data feed. Streams make many small
commits: checkpoints of the log are rarer than by default, and small files are merged as they pile up.
"""

_COMMITS: Final = 100
"""So far back a table's history is read at first for the last batch of a query."""
_STATS: Final = "delta.dataSkippingStatsColumns"
_TIMES: Final = ("event_time", "arrival_time")
_ORDERED: Final = re.compile(r"(string|varchar|char|tinyint|smallint|int|bigint|float|double|decimal|date|timestamp)")
"""Types of which Delta keeps the least and the greatest value."""


@dataclass(frozen=True)
class Table:
    """A Delta table by name or by path."""

    where: str
    by_name: bool

    @property
    def sql(self) -> str:
        """How SQL names it."""
        if self.by_name:
            return ".".join(quoted(part) for part in self.where.split("."))
        return f"delta.{quoted(self.where)}"

    def exists(self, spark: SparkSession) -> bool:
        """Whether it exists, as a Delta table."""
        return self.detail(spark) is not None

    def detail(self, spark: SparkSession) -> Row | None:
        """Return what DESCRIBE DETAIL says of it, None if it is not there."""
        from pyspark.errors import AnalysisException

        try:
            return spark.sql(f"DESCRIBE DETAIL {self.sql}").first()
        except AnalysisException as e:
            if is_missing(e):
                return None
            raise

    def read(self, spark: SparkSession) -> DataFrame:
        """Return its rows."""
        return spark.table(self.sql)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the rows that are added to it, from its first row on. A commit that takes rows away or
        rewrites them is passed over: its other rows were streamed when they came.
        """
        return self._streamed(spark, "skipChangeCommits")

    def changes(self, spark: SparkSession) -> DataFrame:
        """Return the stream of its changes, from all of its rows as inserts on: its columns and ``_change_type``."""
        return self._streamed(spark, "readChangeFeed")

    def _streamed(self, spark: SparkSession, option: str) -> DataFrame:
        reader = spark.readStream.format("delta").option(option, "true")
        return reader.table(self.sql) if self.by_name else reader.load(self.where)

    def append(self, rows: DataFrame, transaction: tuple[str, int] | None = None, note: str = "") -> None:
        """Append rows. ``transaction``: name of the writer and number of its batch, by which Delta takes a batch once;
        ``note``: what the table's history shows as ``userMetadata``.
        """
        writer = rows.write.format("delta").mode("append")
        if transaction is not None:
            writer = writer.option("txnAppId", transaction[0]).option("txnVersion", str(transaction[1]))
        if note:
            writer = writer.option("userMetadata", note)
        if self.by_name:
            writer.saveAsTable(self.sql)
        else:
            writer.save(self.where)

    def merge(self, rows: DataFrame, keys: Sequence[str], *, complete: bool = False) -> None:
        """Insert or update the rows of these keys, in one commit. A row with ``_gone`` true deletes that of its key, and
        with ``complete`` a key that ``rows`` lacks is deleted. Merging the same rows twice changes nothing.
        """
        names = [quoted(n) for n in rows.columns if n != GONE]
        rest = [quoted(n) for n in rows.columns if n not in (*keys, GONE)]
        clauses = ["WHEN MATCHED AND s._gone THEN DELETE"] if GONE in rows.columns else []
        if rest:
            differs = " OR ".join(f"NOT (t.{n} <=> s.{n})" for n in rest)
            sets = ", ".join(f"t.{n} = s.{n}" for n in rest)
            clauses.append(f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets}")
        new = " AND NOT s._gone" if GONE in rows.columns else ""
        values = ", ".join(f"s.{n}" for n in names)
        clauses.append(f"WHEN NOT MATCHED{new} THEN INSERT ({', '.join(names)}) VALUES ({values})")
        if complete:
            clauses.append("WHEN NOT MATCHED BY SOURCE THEN DELETE")
        statement = f"MERGE INTO {self.sql} t USING {{rows}} s ON {same(keys)} {' '.join(clauses)}"
        rows.sparkSession.sql(statement, rows=rows).collect()

    def overwrite(self, rows: DataFrame) -> None:
        """Replace rows and columns, in one commit; the table is created unless it exists."""
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if self.by_name:
            writer.saveAsTable(self.sql)
        else:
            writer.save(self.where)


@dataclass
class Appends:
    """Appends the micro-batches of one query to a table, each of them once.

    Only the first batch of a run can be there already, so that the table is asked once for each run. Each commit names
    query and batch in the table's history. Delta's own check (``txnAppId``) reads what it knows of all files for each
    commit, half the time of a small batch: it is on for the first batch alone, against a second driver that starts.
    """

    table: Table
    name: str
    """Of the query and what it writes: no other query has it."""
    _last: int | None = None
    """Number of the last batch that the table has, -1 for none."""
    _first: bool = True

    def has(self, spark: SparkSession, number: int) -> bool | None:
        """Whether the table has the batch; None: the history is not long enough to say."""
        if self._last is None:
            for limit in (f"LIMIT {_COMMITS}", ""):
                rows = (
                    spark.sql(f"DESCRIBE HISTORY {self.table.sql} {limit}").select("version", "userMetadata").collect()
                )
                last = [row[1].rpartition(":") for row in rows if row[1]]
                none = -1 if any(row[0] == 0 for row in rows) else None
                self._last = next((int(n) for name, _, n in last if name == self.name), none)
                if self._last is not None:
                    break
        return None if self._last is None else number <= self._last

    def append(self, rows: DataFrame, number: int) -> None:
        """Append a batch, unless the table is known to have it."""
        if not self.has(rows.sparkSession, number):
            self.table.append(rows, (self.name, number) if self._first else None, f"{self.name}:{number}")
        self._last, self._first = number, False


@contextmanager
def configured(spark: SparkSession, pairs: Mapping[str, str]) -> Iterator[None]:
    """Let Spark have these settings within."""
    kept = {key: spark.conf.get(key, None) for key in pairs}
    try:
        for key, value in pairs.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in kept.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def is_missing(error: Exception) -> bool:
    """Whether an error of Spark means that a table is not there."""
    text = str(error)
    return any(
        mark in text
        for mark in ("TABLE_OR_VIEW_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND",
                     "SCHEMA_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "is not a Delta table")
    )  # fmt: skip


def resolve_root(root: str) -> str:
    """Return a root as Spark takes it: a URI as it is, a local folder as an absolute path."""
    if "://" in root:
        return root.rstrip("/")
    return str(Path(root.removeprefix("file:")).expanduser().absolute())


def table_of(name: str, settings: StreamingSettings) -> Table:
    """Return the table of this name. Raises ConfigError for a name that cannot be one."""
    if "/" in name:
        return Table(resolve_root(name), False)
    if re.fullmatch(r"\w+(\.\w+){1,2}", name):
        return Table(name, True)
    if re.fullmatch(r"\w+", name):
        if settings.schema_name:
            return Table(f"{settings.schema_name}.{name}", True)
        return Table(f"{resolve_root(settings.root)}/{name}", False)
    raise ConfigError(
        f"{name!r} names no table",
        remedy="give a name of letters, digits and _, catalog.schema.table, or a path with a slash",
    )


def struct_of(columns: str) -> StructType:
    """Return columns that are declared in SQL as a schema."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


def ddl(schema: StructType) -> str:
    """Return the columns as SQL declares them, with their comments."""
    parts = []
    for field in schema.fields:
        comment = (field.metadata or {}).get("comment")
        parts.append(
            f"{quoted(field.name)} {ddl_of(field.dataType)}" + (f" COMMENT {literal(comment)}" if comment else "")
        )
    return ", ".join(parts)


def create(
    spark: SparkSession,
    table: Table,
    schema: StructType,
    *,
    comment: str = "",
    cluster_by: Sequence[str] = (),
    partition_cols: Sequence[str] = (),
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create the table, or give it the columns, properties and clustering that it lacks. ``keys``: columns by which its
    rows are looked up. Raises Spark's AnalysisException for a declaration that will not do.
    """
    layout = f"CLUSTER BY ({', '.join(map(quoted, cluster_by))})" if cluster_by else ""
    there = table.detail(spark)
    looked_up = [*cluster_by, *keys]
    if there is not None:
        schema = add_columns(spark, table, schema)
        looked_up += there["clusteringColumns"]  # they need statistics until the table is clustered otherwise
    properties = {_STATS: _skipping(schema, looked_up), **(properties or {})}
    if there is not None:
        new = {name: value for name, value in properties.items() if there["properties"].get(name) != value}
        if new:
            spark.sql(f"ALTER TABLE {table.sql} SET {_tblproperties(new)}")
        if layout and list(cluster_by) != there["clusteringColumns"]:
            spark.sql(f"ALTER TABLE {table.sql} {layout}")
        return
    if partition_cols and not layout:
        layout = f"PARTITIONED BY ({', '.join(map(quoted, partition_cols))})"
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.sql} ({ddl(schema)}) USING DELTA {layout} COMMENT {literal(comment)} "
        + _tblproperties({**PROPERTIES, **properties})
    )


def _skipping(schema: StructType, names: Iterable[str]) -> str:
    """Return the columns by whose statistics Delta skips files: these, the times, and where a message is in Pulsar. Those
    of each further column cost more than all else of a small write.
    """
    kinds = {f.name: f.dataType.simpleString() for f in schema.fields}
    wanted = [n for n in dict.fromkeys((*names, *_TIMES)) if _ORDERED.match(kinds.get(n, ""))]
    return ",".join([*map(quoted, wanted), *(["_position.ledger"] if "_position" in kinds else [])])


def _tblproperties(pairs: Mapping[str, str]) -> str:
    return f"TBLPROPERTIES ({', '.join(f'{literal(k)} = {literal(v)}' for k, v in pairs.items())})"


def add_columns(spark: SparkSession, table: Table, schema: StructType) -> StructType:
    """Add those of the columns that the table lacks, whatever the case of their names. Returns all that it has then."""
    from pyspark.sql.types import StructType

    there = table.read(spark).schema
    names = {name.lower() for name in there.names}
    lacking = [f for f in schema.fields if f.name.lower() not in names]
    if lacking:
        spark.sql(f"ALTER TABLE {table.sql} ADD COLUMNS ({ddl(StructType(lacking))})")
    return StructType([*there.fields, *lacking])

"""Locations of tables, and the SQL statements that create and change them. SQL alone also works through Spark Connect.

A table is given as a name (``catalog.schema.table``), a path or URI, or a plain name. A plain name is a table of
``streaming.schema_name`` if set, else a folder below ``streaming.root``.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
"""Column of rows to merge: whether to delete the row of this key."""
PROPERTIES: Final[Mapping[str, str]] = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": "20",
    "delta.autoOptimize.autoCompact": "true",
    "delta.enableDeletionVectors": "true",
}
"""Default properties of a table; its declaration can override them. Views follow the change data feed. Streams make
many small commits, so log checkpoints are rarer than by default, and small files are merged as they accumulate.
"""

_ATTEMPTS: Final = 10
_COMMITS: Final = 100
"""Commits of a table's history that are read first to find the last batch of a query."""
_STATS: Final = "delta.dataSkippingStatsColumns"
_TIMES: Final = ("event_time", "arrival_time")
_ORDERED: Final = re.compile(r"(string|varchar|char|tinyint|smallint|int|bigint|float|double|decimal|date|timestamp)")
"""Types for which Delta stores minimum and maximum."""


@dataclass(frozen=True)
class Table:
    """A Delta table by name or by path."""

    where: str
    by_name: bool

    @property
    def sql(self) -> str:
        """Its name in SQL."""
        if self.by_name:
            return ".".join(quoted(part) for part in self.where.split("."))
        return f"delta.{quoted(self.where)}"

    def exists(self, spark: SparkSession) -> bool:
        """Whether it exists, as a Delta table."""
        return self.detail(spark) is not None

    def detail(self, spark: SparkSession) -> Row | None:
        """Return the result of DESCRIBE DETAIL, None if the table does not exist."""
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
        """Return the stream of added rows, from its first row on. Commits that delete or rewrite rows are skipped,
        because their other rows were streamed before.
        """
        return self._streamed(spark, "skipChangeCommits")

    def changes(self, spark: SparkSession) -> DataFrame:
        """Return the stream of its changes, with ``_change_type``. It begins with all rows as inserts."""
        return self._streamed(spark, "readChangeFeed")

    def _streamed(self, spark: SparkSession, option: str) -> DataFrame:
        reader = spark.readStream.format("delta").option(option, "true")
        return reader.table(self.sql) if self.by_name else reader.load(self.where)

    def append(self, rows: DataFrame, transaction: tuple[str, int] | None = None, note: str = "") -> None:
        """Append rows. ``transaction`` is the writer's name and its batch's number: Delta commits a batch once.
        ``note`` appears in the table's history as ``userMetadata``.
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
        """Insert or update the rows of these keys, in one commit. A row with ``_gone`` true deletes its key's row. With
        ``complete``, keys that ``rows`` lacks are deleted. Merging the same rows twice changes nothing.
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

    def change(self, spark: SparkSession, statement: str, **frames: Any) -> list[Row]:
        """Run a statement on it that may be repeated, again while the commit of another writer is in its way."""
        attempts = 0
        while True:
            try:
                return list(spark.sql(statement, **frames).collect())
            except Exception as e:
                attempts += 1
                if "DELTA_CONCURRENT" not in str(e) or attempts == _ATTEMPTS:
                    raise
            time.sleep(random.random())

    def overwrite(self, rows: DataFrame) -> None:
        """Replace rows and columns in one commit, and create the table if missing."""
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if self.by_name:
            writer.saveAsTable(self.sql)
        else:
            writer.save(self.where)


@dataclass
class Appends:
    """Appends the micro-batches of one query to a table, each of them once.

    Only the first batch of a run can be a repetition, so each run queries the table once. Each commit names query and
    batch in the table's history. Delta's own check (``txnAppId``) reads the state of all files for each commit, half
    the time of a small batch. It is used only for the first batch, against a second driver that starts.
    """

    table: Table
    name: str
    """Name of the query and its output; no other query has it."""
    _last: int | None = None
    """Number of the last batch that the table has, -1 for none."""
    _first: bool = True

    def has(self, spark: SparkSession, number: int) -> bool | None:
        """Whether the table has the batch; None if the history is too short to decide."""
        if self._last is None:
            for limit in (f"LIMIT {_COMMITS}", ""):
                history = spark.sql(f"DESCRIBE HISTORY {self.table.sql} {limit}")
                rows = history.select("version", "userMetadata").collect()
                last = [row[1].rpartition(":") for row in rows if row[1]]
                none = -1 if any(row[0] == 0 for row in rows) else None
                self._last = next((int(n) for name, _, n in last if name == self.name), none)
                if self._last is not None:
                    break
        return None if self._last is None else number <= self._last

    def append(self, rows: DataFrame, number: int) -> None:
        """Append a batch, except one that the table is known to have."""
        if not self.has(rows.sparkSession, number):
            self.table.append(rows, (self.name, number) if self._first else None, f"{self.name}:{number}")
        self._last, self._first = number, False


@contextmanager
def configured(spark: SparkSession, pairs: Mapping[str, str]) -> Iterator[None]:
    """Apply these Spark settings within the block."""
    kept = {key: spark.conf.get(key, None) for key in pairs}
    try:
        for key, value in pairs.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in kept.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def is_missing(error: Exception) -> bool:
    """Whether an error of Spark means that a table does not exist."""
    text = str(error)
    return any(
        mark in text
        for mark in ("TABLE_OR_VIEW_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND",
                     "SCHEMA_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "is not a Delta table")
    )  # fmt: skip


def resolve_root(root: str) -> str:
    """Return a root in Spark's form: an unchanged URI, or an absolute local path."""
    if "://" in root:
        return root.rstrip("/")
    return str(Path(root.removeprefix("file:")).expanduser().absolute())


def table_of(name: str, settings: StreamingSettings) -> Table:
    """Return the table of this name. Raises ConfigError for an invalid name."""
    if "/" in name:
        return Table(resolve_root(name), False)
    if re.fullmatch(r"\w+(\.\w+){1,2}", name):
        return Table(name, True)
    if re.fullmatch(r"\w+", name):
        if settings.schema_name:
            return Table(f"{settings.schema_name}.{name}", True)
        return Table(f"{resolve_root(settings.root)}/{name}", False)
    raise ConfigError(
        f"{name!r} is not a valid table name",
        remedy="use a name of letters, digits and _, catalog.schema.table, or a path with a slash",
    )


def struct_of(columns: str) -> StructType:
    """Return columns that are declared in SQL as a schema."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


def ddl(schema: StructType) -> str:
    """Return the columns as DDL, with their comments."""
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
    """Create the table, or add the columns, properties and clustering that it lacks. Rows are looked up by ``keys``.
    Raises Spark's AnalysisException for an invalid declaration.
    """
    layout = f"CLUSTER BY ({', '.join(map(quoted, cluster_by))})" if cluster_by else ""
    detail = table.detail(spark)
    looked_up = [*cluster_by, *keys]
    if detail is not None:
        schema = add_columns(spark, table, schema)
        looked_up += detail["clusteringColumns"]  # they need statistics until the clustering changes
    properties = {_STATS: _skipping(schema, looked_up), **(properties or {})}
    if detail is not None:
        new = {name: value for name, value in properties.items() if detail["properties"].get(name) != value}
        if new:
            spark.sql(f"ALTER TABLE {table.sql} SET {_tblproperties(new)}")
        if layout and list(cluster_by) != detail["clusteringColumns"]:
            spark.sql(f"ALTER TABLE {table.sql} {layout}")
        return
    if partition_cols and not layout:
        layout = f"PARTITIONED BY ({', '.join(map(quoted, partition_cols))})"
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.sql} ({ddl(schema)}) USING DELTA {layout} COMMENT {literal(comment)} "
        + _tblproperties({**PROPERTIES, **properties})
    )


def _skipping(schema: StructType, names: Iterable[str]) -> str:
    """Return the columns whose statistics let Delta skip files: these, times, and the ledger. Each further column
    would cost more than the rest of a small write.
    """
    kinds = {f.name: f.dataType.simpleString() for f in schema.fields}
    wanted = [n for n in dict.fromkeys((*names, *_TIMES)) if _ORDERED.match(kinds.get(n, ""))]
    return ",".join([*map(quoted, wanted), *(["_position.ledger"] if "_position" in kinds else [])])


def _tblproperties(pairs: Mapping[str, str]) -> str:
    return f"TBLPROPERTIES ({', '.join(f'{literal(k)} = {literal(v)}' for k, v in pairs.items())})"


def add_columns(spark: SparkSession, table: Table, schema: StructType) -> StructType:
    """Add the columns that the table lacks, ignoring case. Returns all its columns after that."""
    from pyspark.sql.types import StructType

    known = table.read(spark).schema
    names = {name.lower() for name in known.names}
    lacking = [f for f in schema.fields if f.name.lower() not in names]
    if lacking:
        spark.sql(f"ALTER TABLE {table.sql} ADD COLUMNS ({ddl(StructType(lacking))})")
    return StructType([*known.fields, *lacking])

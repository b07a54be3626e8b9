"""How far a streaming query has read a Delta table, from what Spark keeps in the query's checkpoint folder.

The text of an offset is read by ``parse``, which is pure. What is done about a query that is behind is left to others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.tables import Table

__all__ = [
    "Commit",
    "Standing",
    "batches_of",
    "history_of",
    "newest_commits",
    "parse",
    "queries_of",
    "standing_of",
]

_COMMITS: Final = 500


@dataclass(frozen=True)
class Standing:
    """Where a query stands in a Delta table: it is done with every commit before ``next_version``."""

    table_id: str
    next_version: int
    partly: bool
    """Whether it is done with a part of ``next_version``, too: of that commit, or of the table as it was then."""
    in_snapshot: bool
    """Whether it is still reading the table as it stood at ``next_version``, and so has read no commit whole."""

    def has_read(self, version: int) -> bool:
        """Whether it reads nothing any more of what was in the table before this commit, and not after it."""
        return self.next_version >= version


def parse(text: str, table_id: str | None = None) -> Standing | None:
    """Read an entry of Spark's offset log; None when it names no Delta table, or not the one of that id."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue  # the version of the log
        if not isinstance(found, dict) or "reservoirVersion" not in found:
            continue
        standing = Standing(
            str(found["reservoirId"]),
            int(found["reservoirVersion"]),
            # Files of a version are counted from 0; negative is before the first.
            int(found["index"]) >= 0,
            bool(found.get("isStartingVersion", False)),
        )
        if table_id in (None, standing.table_id):
            return standing
    return None


def standing_of(spark: SparkSession, checkpoint: str, table_id: str | None = None) -> Standing | None:
    """Return where a query stands after its last finished micro-batch; None when it has begun none, or reads another
    table. One that is in its first micro-batch stands at the table's beginning.
    """
    files = _Files(spark)
    done = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdecimal()]
    if done:
        return parse(files.text(f"{checkpoint}/offsets/{max(done)}"), table_id)
    begun = [int(name) for name in files.names(f"{checkpoint}/offsets") if name.isdecimal()]
    first = parse(files.text(f"{checkpoint}/offsets/{min(begun)}"), table_id) if begun else None
    return first and Standing(first.table_id, 0, partly=False, in_snapshot=True)


def batches_of(spark: SparkSession, checkpoint: str) -> tuple[int, int]:
    """Return the numbers of a query's last finished and last begun micro-batch, -1 for none; equal between two."""
    files = _Files(spark)
    done, begun = (
        max((int(name) for name in files.names(f"{checkpoint}/{log}") if name.isdecimal()), default=-1)
        for log in ("commits", "offsets")
    )
    return done, begun


class Commit(NamedTuple):
    """A commit of a Delta table; ``mark`` is its user metadata."""

    version: int
    operation: str
    mark: str | None

    @property
    def brings_rows(self) -> bool:
        """Whether a stream may see new rows in it; compaction and the like bring none."""
        return self.operation in ("MERGE", "WRITE", "STREAMING UPDATE")


def history_of(spark: SparkSession, table: Table) -> list[Commit]:
    """Return a table's newest commits, the newest first; 500 at most, as each is a file."""
    history = spark.sql(f"DESCRIBE HISTORY {table.sql} LIMIT {_COMMITS}")
    return [
        Commit(int(row["version"]), str(row["operation"]), row["userMetadata"]) for row in history.collect()
    ]


def newest_commits(spark: SparkSession, table: Table) -> list[tuple[int, str]]:
    """Return version and operation of a table's newest commits, as ``history_of`` does."""
    return [(commit.version, commit.operation) for commit in history_of(spark, table)]


def queries_of(spark: SparkSession, root: str) -> list[str]:
    """Return the names of the queries that have a checkpoint below a root (``Tables.root``)."""
    return sorted(_Files(spark).names(f"{root}/checkpoints"))


class _Files:
    """Small files on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def names(self, folder: str) -> list[str]:
        path = self._jvm.org.apache.hadoop.fs.Path(folder)
        system = path.getFileSystem(self._configuration)
        return [found.getPath().getName() for found in system.listStatus(path)] if system.exists(path) else []

    def text(self, file: str) -> str:
        path = self._jvm.org.apache.hadoop.fs.Path(file)
        stream = path.getFileSystem(self._configuration).open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

"""Deletes a device in every table, and finds out what is left of it elsewhere, and until when.

In this order; it may die anywhere, and a second run does what is left:

1. The device's rows are deleted in each table that has a column ``device``, bronze first, a transaction for each.
2. A query that has not read past that deletion in the table it reads may still bring rows of before it into the next
   table, and so may the batch that a query was in: until each is past both, which its checkpoint tells, and after it,
   1 is done again.

Streams pass over commits that delete, so no running query ends for it. A device that publishes on comes back: what it
sends after this is no past of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streaming.care import FORGET, alone
from streaming.holding import HoldFile, write_between
from streaming.standing import Standing, batches_of, history_of, newest_commits, queries_of, standing_of
from streaming.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Forgetting", "Forgotten"]

_COLUMN: Final = "device"
_POLL_S: Final = 1.0


@dataclass(frozen=True)
class _Found:
    """A table that has the column, and how far back its files reach."""

    name: str
    table: Table
    id: str
    kept: str
    """``delta.deletedFileRetentionDuration``."""


@dataclass
class Forgotten:
    """What was deleted and what is left in the lakehouse."""

    device: str
    deleted: dict[str, int] = field(default_factory=dict)
    """Rows by table; tables without the device have 0."""
    sql: dict[str, str] = field(default_factory=dict)
    """How SQL names each table."""
    kept: dict[str, str] = field(default_factory=dict)
    """How long VACUUM leaves each table's old files, as the table says."""
    behind: tuple[str, ...] = ()
    """Queries that may still bring rows of before."""

    @property
    def complete(self) -> bool:
        """Whether nothing can bring back what was deleted."""
        return not self.behind


@dataclass
class Forgetting:
    """One run. ``after`` is told each table that is done; ``wait_s``: how long to wait for queries that are behind."""

    spark: SparkSession
    tables: Tables
    device: str
    wait_s: float = 60.0
    after: Callable[[str], object] = lambda step: None

    def count(self) -> Forgotten:
        """Return how many rows there are to delete, and delete none."""
        found = Forgotten(self.device)
        for entry in self._found():
            self._told(found, entry, self._rows(entry.table))
        return found

    def run(self) -> Forgotten:
        """Delete. Raises TransientError when other writers of a table are always first, TerminalError while a rebuild,
        a replay of quarantine or another forgetting runs.
        """
        with alone(self.spark, self.tables.root, FORGET):
            return self._run()

    def _run(self) -> Forgotten:
        done = Forgotten(self.device)
        until = time.monotonic() + self.wait_s
        marks: dict[str, int] = {}
        under_way: dict[str, int] = {}
        first = True
        while True:
            tables = self._found()
            before = sum(done.deleted.values())
            for entry in tables:
                self._told(done, entry, self._delete(entry, marks))
                self.after(entry.name)
            none_left = sum(done.deleted.values()) == before
            if first or not none_left:
                under_way = self._under_way()
            first = False
            done.behind = self._behind(tables, marks, under_way)
            if (none_left and not done.behind) or time.monotonic() > until:
                return done
            while done.behind and time.monotonic() <= until:
                time.sleep(_POLL_S)
                done.behind = self._behind(tables, marks, under_way)

    def _told(self, done: Forgotten, entry: _Found, rows: int) -> None:
        done.deleted[entry.name] = done.deleted.get(entry.name, 0) + rows
        done.sql[entry.name] = entry.table.sql
        done.kept[entry.name] = entry.kept

    def _found(self) -> list[_Found]:
        """Return the tables that are there and have the column, in the order of the settings: bronze first."""
        found = []
        for name, table in self.tables.named().items():
            if not table.exists(self.spark) or _COLUMN not in table.read(self.spark).columns:
                continue
            detail: Any = self.spark.sql(f"DESCRIBE DETAIL {table.sql}").first()
            kept = detail["properties"].get("delta.deletedFileRetentionDuration", "interval 7 days")
            found.append(_Found(name, table, str(detail["id"]), kept.removeprefix("interval ")))
        return found

    def _rows(self, table: Table) -> int:
        from pyspark.sql import functions as F

        return table.read(self.spark).where(F.col(_COLUMN) == self.device).count()

    def _delete(self, entry: _Found, marks: dict[str, int]) -> int:
        """Delete in one table; note in ``marks``, by table id, the version before which readers may find the device."""
        table = entry.table
        if not self._rows(table):
            marks.setdefault(entry.id, self._last_deletion(table))
            return 0
        statement = f"DELETE FROM {table.sql} WHERE {_COLUMN} = {{device}}"
        deleted: Any = write_between(
            lambda: self.spark.sql(statement, device=self.device).first(),
            table.where,
            HoldFile(self.spark, self.tables.root),
        )
        marks[entry.id] = self._last_deletion(table)
        return int(deleted[0])

    def _last_deletion(self, table: Table) -> int:
        """Return the version of the table's newest DELETE; where the newest commits are others, one after it."""
        commits = newest_commits(self.spark, table)
        deletions = [version for version, operation in commits if operation == "DELETE"]
        return deletions[0] if deletions else commits[-1][0]

    def _under_way(self) -> dict[str, int]:
        """Return the batch that each query is in: it may have read what is deleted now."""
        names = queries_of(self.spark, self.tables.root)
        batches = {name: batches_of(self.spark, self.tables.checkpoint(name)) for name in names}
        return {name: begun for name, (done, begun) in batches.items() if begun > done}

    def _behind(
        self, tables: list[_Found], marks: dict[str, int], under_way: dict[str, int]
    ) -> tuple[str, ...]:
        behind = []
        for query in queries_of(self.spark, self.tables.root):
            checkpoint = self.tables.checkpoint(query)
            if batches_of(self.spark, checkpoint)[0] < under_way.get(query, -1):
                behind.append(query)
            for entry in tables:
                standing = standing_of(self.spark, checkpoint, entry.id)
                if standing is not None and not self._has_read(standing, entry, marks.get(entry.id, 0)):
                    behind.append(query)
        return tuple(dict.fromkeys(behind))

    def _has_read(self, standing: Standing, entry: _Found, mark: int) -> bool:
        """Whether it reads nothing any more of what was in the table before ``mark``; a stream that has read all of
        it stands before commits that bring no rows, for want of others.
        """
        if standing.has_read(mark) or standing.in_snapshot:
            return standing.has_read(mark)
        commits = history_of(self.spark, entry.table)
        unread = [c for c in commits if standing.next_version <= c.version < mark and c.brings_rows]
        return not unread and commits[-1].version <= standing.next_version

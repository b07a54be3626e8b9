"""Reads a Delta table's transaction log as it grows: which commit added which files, how many rows, and when.

For live progress and for the time at which rows became visible. The rows themselves are read by others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["Added", "Commit", "LogTail", "commits"]


class Added(NamedTuple):
    """A data file that a commit added. ``data_change`` is False where rows were only moved (compaction)."""

    path: str
    rows: int
    data_change: bool


class Commit(NamedTuple):
    """One commit. ``us`` is when its file appeared, µs since the epoch."""

    version: int
    us: int
    added: tuple[Added, ...]

    @property
    def rows(self) -> int:
        """Rows that this commit made visible."""
        return sum(a.rows for a in self.added if a.data_change)


def commits(table: Path, first: int = 0) -> Iterator[Commit]:
    """Yield the commits from version ``first`` on; none while the table does not exist."""
    version = first
    while True:
        file = table / "_delta_log" / f"{version:020d}.json"
        try:
            stamp, text = file.stat().st_mtime_ns, file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        yield Commit(version, stamp // 1000, tuple(_added(text)))
        version += 1


def _added(text: str) -> Iterator[Added]:
    for line in text.splitlines():
        action = json.loads(line).get("add")
        if action is not None:
            yield Added(unquote(action["path"]), _row_count(action), bool(action.get("dataChange", True)))


def _row_count(action: dict[str, Any]) -> int:
    stats = action.get("stats")
    return int(json.loads(stats).get("numRecords", 0)) if stats else 0


class LogTail:
    """Counts the rows of a growing table, looking at each commit once."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.rows = 0
        self.first_us = 0
        """When the first row appeared, µs since the epoch; 0 before that."""
        self._next = 0

    def advance(self) -> int:
        """Take in what is new; returns the rows so far."""
        for commit in commits(self.table, self._next):
            self._next = commit.version + 1
            if commit.rows:
                self.rows += commit.rows
                self.first_us = self.first_us or commit.us
        return self.rows

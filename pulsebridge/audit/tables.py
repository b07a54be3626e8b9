"""Reads the Delta tables without Spark and without Pulsebridge's source.

The audit and the demo know the tables of ``streaming`` only by this module: names, folders and columns. ``conf/demo``
declares the typed table ``measurements``. The package ``deltalake`` (Rust) reads the rows. The transaction log has the
time at which a row became visible: when the first commit with it appeared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from bridge.contract import base_topic
from bridge.errors import MissingExtraError
from pulsebridge.audit.records import Position, TableRow, record_id

__all__ = ["TABLES", "Commit", "LogTail", "commits", "read_table", "table_folders"]

MEASUREMENTS: Final = "measurements"
TABLES: Final = ("bronze", MEASUREMENTS, "quarantine", "alerts")
_OF_MESSAGE: Final = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")
_OF_ROW: Final = "_position"
_COLUMNS: Final = (*_OF_MESSAGE, _OF_ROW, "table", "command_id", "_id", "payload", "device", "value")


def table_folders(root: Path) -> dict[str, Path]:
    """Return the folders of the tables of a lakehouse, by name."""
    return {name: root / name for name in TABLES}


def read_table(folder: Path) -> tuple[TableRow, ...]:
    """Return the rows of a table, none if it does not exist. Raises MissingExtraError without ``deltalake``."""
    if not (folder / "_delta_log").is_dir():
        return ()
    try:
        from deltalake import DeltaTable
        from pyarrow import RecordBatchReader
    except ImportError as e:
        raise MissingExtraError("the audit needs deltalake", remedy="pip install 'pulsebridge[demo]'") from e
    table = DeltaTable(str(folder))
    names = [field.name for field in table.schema().fields]
    seen = _first_seen(folder)
    rows = []
    # deltalake's datasets of pyarrow reject tables that may have deletion vectors.
    for batch in RecordBatchReader.from_stream(table.scan(columns=[c for c in _COLUMNS if c in names])):
        for row in batch.to_pylist():
            if row.get("table", MEASUREMENTS) != MEASUREMENTS:
                continue
            position, device = _position(row), row.get("device") or ""
            name = row.get("command_id") or row.get("_id") or record_id(row.get("payload") or b"")
            rows.append(TableRow(name, position, seen.get(position, 0), device, row.get("value")))
    return tuple(rows)


def _first_seen(folder: Path) -> dict[Position, int]:
    from pyarrow import parquet

    seen: dict[Position, int] = {}
    for commit in commits(folder):
        for name in commit.files:
            if (folder / name).exists():
                with parquet.ParquetFile(folder / name) as file:
                    columns = [c for c in (*_OF_MESSAGE, _OF_ROW) if c in file.schema_arrow.names]
                    for row in file.read(columns=columns).to_pylist():
                        seen.setdefault(_position(row), commit.us)
    return seen


def _position(row: dict[str, Any]) -> Position:
    """Return the position of a message, or of a row's message."""
    of = row.get(_OF_ROW)
    topic, partition, ledger, entry, index = (
        (row[name] for name in _OF_MESSAGE)
        if of is None
        else (of[name] for name in ("topic", "partition", "ledger", "entry", "index"))
    )
    return Position(base_topic(str(topic)), int(partition or 0), int(ledger), int(entry), max(0, int(index)))


class Commit(NamedTuple):
    """A commit of a table. ``us`` is the time at which its file appeared, µs since the epoch."""

    version: int
    us: int
    rows: int
    """Rows that it made visible. Rows that compaction moved do not count."""
    files: tuple[str, ...]
    """The files with these rows."""


def commits(table: Path, first: int = 0) -> Iterator[Commit]:
    """Yield the commits from version ``first`` on; none while the table does not exist."""
    version = first
    while True:
        file = table / "_delta_log" / f"{version:020d}.json"
        try:
            us, text = file.stat().st_mtime_ns // 1000, file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        added = [action for line in text.splitlines() if (action := json.loads(line).get("add"))]
        added = [action for action in added if action.get("dataChange", True)]
        rows = sum(json.loads(action.get("stats") or "{}").get("numRecords", 0) for action in added)
        yield Commit(version, us, rows, tuple(unquote(action["path"]) for action in added))
        version += 1


class LogTail:
    """Counts the rows of a growing table. It reads each commit once."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.rows = 0
        self._next = 0

    def advance(self) -> int:
        """Read the new commits. Returns the number of rows so far."""
        for commit in commits(self.table, self._next):
            self._next = commit.version + 1
            self.rows += commit.rows
        return self.rows

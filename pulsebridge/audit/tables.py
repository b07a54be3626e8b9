"""What the Delta tables have, read without Spark and without Pulsebridge's source.

All that the audit and the demo know about the tables of ``streaming`` is here: names, folders and columns. The package
``deltalake`` (Rust) reads the rows. The transaction log has the time at which a row became visible: when the commit that first
added it appeared.
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

TABLES: Final = ("bronze", "silver", "quarantine")
_POSITION: Final = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")
_COLUMNS: Final = (*_POSITION, "reading_id", "payload", "device", "value")


def table_folders(root: Path) -> dict[str, Path]:
    """Return the folders of the tables of a lakehouse, by name."""
    return {name: root / name for name in TABLES}


def read_table(folder: Path) -> tuple[TableRow, ...]:
    """Return the rows of a table, none if it does not exist. Raises MissingExtraError without ``deltalake``."""
    if not (folder / "_delta_log").is_dir():
        return ()
    try:
        from deltalake import DeltaTable
    except ImportError as e:
        raise MissingExtraError("the audit needs deltalake", remedy="pip install 'pulsebridge[demo]'") from e
    table = DeltaTable(str(folder)).to_pyarrow_dataset()
    seen = _first_seen(folder)
    rows = []
    for batch in table.to_batches(columns=[c for c in _COLUMNS if c in table.schema.names]):
        for row in batch.to_pylist():
            position = _position(row)
            name = row.get("reading_id")
            name = record_id(row.get("payload") or b"") if name is None else name
            us, device = seen.get(position, 0), row.get("device") or ""
            rows.append(TableRow(name, position, us, device, row.get("value")))
    return tuple(rows)


def _first_seen(folder: Path) -> dict[Position, int]:
    from pyarrow import parquet

    seen: dict[Position, int] = {}
    for commit in commits(folder):
        for name in commit.files:
            if (folder / name).exists():
                rows = parquet.read_table(folder / name, columns=list(_POSITION), partitioning=None)
                for row in rows.to_pylist():
                    seen.setdefault(_position(row), commit.us)
    return seen


def _position(row: dict[str, Any]) -> Position:
    at = (int(row["partition"] or 0), int(row["ledger_id"]), int(row["entry_id"]))
    return Position(base_topic(str(row["__topic"])), *at, max(0, int(row["batch_index"])))


class Commit(NamedTuple):
    """A commit of a table. ``us`` is when its file appeared, µs since the epoch."""

    version: int
    us: int
    rows: int
    """Rows that it made visible. Rows that were only moved (compaction) do not count."""
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
    """Counts the rows of a growing table. It looks at each commit once."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.rows = 0
        self._next = 0

    def advance(self) -> int:
        """Read the new commits. Returns the rows so far."""
        for commit in commits(self.table, self._next):
            self._next = commit.version + 1
            self.rows += commit.rows
        return self.rows

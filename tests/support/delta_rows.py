"""Rows of a Delta table, read without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow import RecordBatchReader

__all__ = ["delta_rows"]


def delta_rows(folder: Path, *columns: str) -> list[dict[str, Any]]:
    """Return columns of a table, all unless some are named; no rows before the table is made."""
    if not list((folder / "_delta_log").glob("*.json")):
        return []
    # Datasets of pyarrow refuse tables that may have deletion vectors.
    found = RecordBatchReader.from_stream(DeltaTable(str(folder)).scan(columns=list(columns) or None))
    return [row for batch in found for row in batch.to_pylist()]

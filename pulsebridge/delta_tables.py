"""Delta tables that are folders below a root, read by deltalake: without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bridge.errors import TransientError

__all__ = ["DeltaTables"]


class DeltaTables:
    """The tables below a folder or URI. One thread at a time uses it, because it keeps each table's log."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._open: dict[str, DeltaTable] = {}

    def version(self, name: str) -> int | None:
        """Return a table's newest version, None if it does not exist. Raises TransientError if it cannot be read."""
        table = self._table(name)
        return None if table is None else int(table.version())

    def batches(self, name: str, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch] | None:
        """Yield the rows of a table where an SQL condition holds; None if it does not exist. Columns may be missing.

        Raises TransientError if the table cannot be read.
        """
        table = self._table(name)
        if table is None:
            return None
        try:
            known = {field.name for field in table.schema().fields}
            scan = table.scan(columns=[c for c in columns if c in known], predicate=where)
        except DeltaError as e:
            raise self._failed(name, e) from e
        # Batches of arro3, which deltalake brings, become pyarrow's.
        return map(pa.record_batch, pa.RecordBatchReader.from_stream(scan))

    def _table(self, name: str) -> DeltaTable | None:
        folder = f"{self._root}/{name}"
        try:
            table = self._open.get(name)
            if table is not None:
                table.update_incremental()
            elif DeltaTable.is_deltatable(folder if "://" in folder else str(Path(folder).absolute())):
                table = self._open[name] = DeltaTable(folder)
        except DeltaError as e:
            raise self._failed(name, e) from e
        return table

    def _failed(self, name: str, error: DeltaError) -> TransientError:
        self._open.pop(name, None)
        return TransientError(f"the table {self._root}/{name} cannot be read: {error}")

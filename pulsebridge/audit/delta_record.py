"""The audit's third record: what the Delta tables hold, read without Spark and without Pulsebridge's source.

The rows come from the package ``deltalake`` (Rust). When a row became visible comes from the transaction log: the
time at which the commit file that first added the row appeared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bridge.contract import base_topic
from bridge.errors import MissingExtraError
from pulsebridge.audit.records import Bronze, Place, Silver
from pulsebridge.demo.delta_log import commits
from pulsebridge.demo.payloads import record_id

__all__ = ["DeltaRecord", "read_tables"]

_POSITION = ("__topic", "partition", "ledger_id", "entry_id", "batch_index")


class DeltaRecord(NamedTuple):
    """The rows of the three tables."""

    bronze: tuple[Bronze, ...]
    silver: tuple[Silver, ...]
    quarantine: tuple[Silver, ...]


def read_tables(bronze: Path, silver: Path, quarantine: Path) -> DeltaRecord:
    """Read the tables at these folders; one that does not exist has no rows. Raises MissingExtraError."""
    return DeltaRecord(_bronze(bronze), _judged(silver, payload=False), _judged(quarantine, payload=True))


def _bronze(folder: Path) -> tuple[Bronze, ...]:
    seen = _first_seen(folder)
    found = []
    for row in _rows(folder, ("payload", *_POSITION)):
        place = _place(row)
        found.append(Bronze(record_id(row["payload"] or b""), place, seen.get(place, 0)))
    return tuple(found)


def _judged(folder: Path, *, payload: bool) -> tuple[Silver, ...]:
    seen = _first_seen(folder)
    found = []
    for row in _rows(
        folder, ("reading_id", "device", "value", *_POSITION, *(("payload",) if payload else ()))
    ):
        name = row["reading_id"]
        if name is None:
            name = record_id(row.get("payload") or b"")
        place = _place(row)
        found.append(Silver(name, row["device"] or "", row["value"], place, seen.get(place, 0)))
    return tuple(found)


def _rows(folder: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if not (folder / "_delta_log").is_dir():
        return
    try:
        from deltalake import DeltaTable
    except ImportError as e:
        raise MissingExtraError(
            "reading Delta without Spark needs deltalake", remedy="pip install 'pulsebridge[demo]'"
        ) from e
    table = DeltaTable(str(folder)).to_pyarrow_dataset()
    for batch in table.to_batches(columns=list(columns)):
        yield from batch.to_pylist()


def _first_seen(folder: Path) -> dict[Place, int]:
    """Return when each row's first commit appeared, µs since the epoch; compaction moves rows and does not count."""
    from pyarrow import parquet

    seen: dict[Place, int] = {}
    for commit in commits(folder):
        for added in commit.added:
            file = folder / added.path
            if not added.data_change or not file.exists():
                continue
            for row in parquet.read_table(file, columns=list(_POSITION), partitioning=None).to_pylist():
                seen.setdefault(_place(row), commit.us)
    return seen


def _place(row: dict[str, Any]) -> Place:
    number = int(row["partition"] or 0)
    return Place(
        base_topic(str(row["__topic"])),
        number,
        int(row["ledger_id"]),
        int(row["entry_id"]),
        max(0, int(row["batch_index"])),
    )

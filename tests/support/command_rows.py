"""What the rows of a task say to the sink of commands, without their alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from bridge.contract.commands import Command
from bridge.contract.groups import GroupCommand
from sinks import rows
from sinks.messages import BadRow

__all__ = ["read_rows"]


def read_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Command | GroupCommand | BadRow]:
    """Yield each row of a task as a valid command or as a bad row, in order."""
    return (found.command for found in rows.read_rows(batches) if found.command is not None)

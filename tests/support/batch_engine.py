"""The steps of Spark's micro-batch engine around the source, without Spark: run as a process, killed, and run again.

1. The first offset, while no batch is in the offset log. 2. A range is planned and written to ``offsets/N``. 3. The
tasks read, and the sink keeps the batch under its number, so that a batch that runs again replaces itself. 4.
``commits/N`` is written. 5. The next turn commits it to the source. A batch that is in the offset log and not in the
commit log runs again, with the range that is written there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bridge.killpoints import reach
from sources.offsets import Offset
from sources.options import parse
from sources.stream import StreamPlanner
from tests.support.planned import read_batch

__all__ = ["ENGINE_KILL_POINTS", "rows_of", "run"]

ENGINE_KILL_POINTS = (
    "engine_after_offset_log",
    "engine_in_task",
    "engine_after_sink",
    "engine_after_commit_log",
)


def _write(path: Path, body: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(body))
    new.replace(path)


def _last(folder: Path) -> int | None:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=None)


def run(options: dict[str, str], folder: Path) -> None:
    """Run batches until there is nothing new."""
    parsed = parse(options, streaming=True)
    query = StreamPlanner(parsed)
    try:
        planned, committed = _last(folder / "offsets"), _last(folder / "commits")
        start = None
        if committed is not None:
            start = Offset.from_json(json.loads((folder / f"offsets/{committed}").read_text()))
        if planned is not None and planned != committed:
            start = _batch(query, folder, planned, start)
        while True:
            if start is None:
                start = query.initial_offset()
            else:
                query.commit(start)
            end = query.latest_offset(start, parsed.limits)
            if end == start:
                return
            planned = 0 if planned is None else planned + 1
            _write(folder / f"offsets/{planned}", end.to_json())
            reach("engine_after_offset_log")
            start = _batch(query, folder, planned, start)
    finally:
        query.close()


def _batch(query: StreamPlanner, folder: Path, number: int, start: Offset | None) -> Offset:
    body = json.loads((folder / f"offsets/{number}").read_text())
    end = Offset.from_json(body)
    begin = query.initial_offset() if start is None else start  # Spark asks again where batch 0 begins
    rows = []
    for task, read in read_batch(query, begin, end):
        for batch in read:
            for row in batch.to_pylist():
                value = bytes(row["value"])
                rows.append([task.partition, value[:20].decode(), len(value)])
            reach("engine_in_task")
    _write(folder / f"rows/{number}", rows)
    reach("engine_after_sink")
    _write(folder / f"commits/{number}", {})
    reach("engine_after_commit_log")
    return end


def rows_of(folder: Path) -> list[list[Any]]:
    """Return the rows of all batches, in their order."""
    numbers = sorted(int(path.name) for path in (folder / "rows").glob("*") if path.name.isdigit())
    return [row for number in numbers for row in json.loads((folder / f"rows/{number}").read_text())]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run(given["options"], Path(given["folder"]))

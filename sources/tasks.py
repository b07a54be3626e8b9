"""Makes tasks from ranges, which are split if the user requests more tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.contract import Position, base_topic
from sources.options import SourceOptions
from sources.planning import PartitionView, split
from sources.reading import ReadTask

__all__ = ["read_tasks"]

_LOOK_BACK_ENTRIES: Final = 1000
"""Entries to search before a range for a first chunk: 5 GB by default (H14)."""


def read_tasks(
    options: SourceOptions,
    views: Mapping[str, PartitionView],
    starts: Mapping[str, Position],
    stops: Mapping[str, Position],
) -> list[ReadTask]:
    """Return the tasks that read every existing entry from ``starts`` to ``stops`` once."""
    ranges = {n: views[n].segments(starts[n], end) for n, end in sorted(stops.items()) if n in views}
    total = sum(sum(s.entries for s in segments) for segments in ranges.values())
    found = []
    for name, segments in ranges.items():
        entries = sum(segment.entries for segment in segments)
        if not entries:
            continue
        size = views[name].backlog(starts[name], stops[name])[1]
        parts = 1
        if options.min_partitions is not None:
            parts = -(-options.min_partitions * entries // total)
        if options.max_bytes_per_partition is not None:
            parts = max(parts, -(-size // options.max_bytes_per_partition))
        for piece in split(segments, parts):
            begin = Position(piece[0].ledger, piece[0].first)
            found.append(
                ReadTask(
                    pulsar=options.pulsar,
                    topic=base_topic(name),
                    partition=name,
                    segments=piece,
                    columns=options.columns,
                    idle_timeout_ms=options.read_idle_timeout_ms,
                    fail_on_data_loss=options.fail_on_data_loss,
                    entry_bytes=max(1, size // entries),
                    keys=options.keys,
                    decoding=options.decoding,
                    before=views[name].preceding(begin, _LOOK_BACK_ENTRIES),
                )
            )
    return found

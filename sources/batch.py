"""A batch query: which range of each partition it reads, resolved once.

A range is half-open: it begins with the entry that its start names and ends before the one that its end names. By
time, both are the first entry published at that time or later, so that ranges that meet in a time share no entry and
leave none out. Filters that Spark pushes narrow the range (``sources.pushdown``).
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.contract import Position
from bridge.errors import ConfigError
from bridge.pulsar_client import PulsarClient
from sources.binary import BinaryTopics
from sources.fallback import FallbackCatalog
from sources.options import SourceOptions
from sources.places import StartingOffsets
from sources.planning import PartitionView
from sources.pushdown import Narrowed
from sources.reading import ReadTask
from sources.snapshot import Catalog
from sources.starting import resolve
from sources.tasks import read_tasks

__all__ = ["batch_tasks"]


def batch_tasks(options: SourceOptions, narrowed: Narrowed | None = None) -> list[ReadTask]:
    """Return the tasks of a batch query, from one snapshot; ``narrowed`` is what its filters leave.

    Raises ConfigError for a place that does not exist, TransientError when Pulsar's admin cannot be reached.
    """
    narrowed = narrowed or Narrowed()
    clients: list[PulsarClient] = []

    def client() -> PulsarClient:
        """Connect where the admin is away: a batch query needs no other connection on the driver."""
        if not clients:
            clients.append(PulsarClient(options.pulsar))
        return clients[0]

    catalog = FallbackCatalog(options, BinaryTopics(client))
    try:
        partitions = catalog.partitions()
        wanted = [name for name, topic in partitions.items() if narrowed.wants(topic, name)]
        views = catalog.snapshot(wanted)
        if wanted or not partitions:
            catalog.refuse_missing({name: partitions[name] for name in wanted}, views)
        _refuse_unknown((options.starting, options.ending), partitions)
        starts = {name: resolve(options.starting, view, catalog) for name, view in views.items()}
        ends = {name: resolve(options.ending, view, catalog) for name, view in views.items()}
        _refuse_backwards(options, views, starts, ends)
        for name, view in views.items():
            _narrow(name, view, narrowed, catalog, starts, ends)
    finally:
        catalog.close()
        for connected in clients:
            connected.close()
    return read_tasks(options, views, starts, ends)


def _narrow(
    name: str,
    view: PartitionView,
    narrowed: Narrowed,
    catalog: Catalog,
    starts: dict[str, Position],
    ends: dict[str, Position],
) -> None:
    """Move start and end of one partition towards each other, as far as the publish times asked for allow."""
    if narrowed.since_ms is not None:
        place = catalog.position_at(name, narrowed.since_ms) or view.end
        starts[name] = max(starts[name], place)
    if narrowed.until_ms is not None:
        place = catalog.position_at(name, narrowed.until_ms) or view.end
        ends[name] = min(ends[name], place)


def _refuse_unknown(asked: tuple[StartingOffsets, ...], partitions: Mapping[str, str]) -> None:
    known = {*partitions, *partitions.values()}
    unknown = sorted({name for place in asked for name in place.places if name not in known})
    if unknown:
        raise ConfigError(
            f"offsets or times are given for partitions that do not exist: {', '.join(unknown)}",
            remedy="correct the names in startingOffsets, endingOffsets, startingTime or endingTime",
        )


def _refuse_backwards(
    options: SourceOptions,
    views: Mapping[str, PartitionView],
    starts: Mapping[str, Position],
    ends: Mapping[str, Position],
) -> None:
    """Refuse an end before the start where both were given as places: it would read nothing, unasked."""
    for name, view in views.items():
        both = [asked.of(name) for asked in (options.starting, options.ending)]
        if all(isinstance(place, Position) for place in both) and view.backlog(ends[name], starts[name])[0]:
            raise ConfigError(
                f"{name}: endingOffsets {list(ends[name])} lies before startingOffsets {list(starts[name])}",
                remedy="exchange them, or correct one",
            )

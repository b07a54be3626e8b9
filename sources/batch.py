"""A batch query: resolves the range of each partition once.

A range is half-open: it includes the entry at its start and excludes the entry at its end. A bound by time is the
first entry published at that time or later. So ranges that meet at a time share no entry and omit none. Filters that
Spark pushes narrow the range (``sources.pushdown``).
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.contract import Position
from bridge.errors import ConfigError
from bridge.pulsar.client import PulsarClient
from sources.binary import BinaryTopics
from sources.bounds import StartingOffsets
from sources.fallback import FallbackCatalog
from sources.options import SourceOptions
from sources.planning import PartitionView
from sources.pushdown import Narrowed
from sources.reading import ReadTask
from sources.snapshot import Catalog
from sources.starting import resolve
from sources.tasks import read_tasks

__all__ = ["batch_tasks"]


def batch_tasks(options: SourceOptions, narrowed: Narrowed | None = None) -> list[ReadTask]:
    """Return the tasks of a batch query, from one snapshot. ``narrowed`` is the result of its filters.

    Raises ConfigError for a position that does not exist, TransientError if Pulsar's admin is unreachable.
    """
    narrowed = narrowed or Narrowed()
    clients: list[PulsarClient] = []

    def client() -> PulsarClient:
        """Connect if the admin is unreachable. A batch query needs no other connection on the driver."""
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
        stops = {name: resolve(options.ending, view, catalog) for name, view in views.items()}
        _refuse_backwards(options, views, starts, stops)
        for name, view in views.items():
            _narrow(name, view, narrowed, catalog, starts, stops)
    finally:
        catalog.close()
        for connected in clients:
            connected.close()
    return read_tasks(options, views, starts, stops)


def _narrow(
    name: str,
    view: PartitionView,
    narrowed: Narrowed,
    catalog: Catalog,
    starts: dict[str, Position],
    stops: dict[str, Position],
) -> None:
    """Move start and stop of one partition towards each other by the requested publish times."""
    if narrowed.since_ms is not None:
        position = catalog.position_at(name, narrowed.since_ms) or view.end
        starts[name] = max(starts[name], position)
    if narrowed.until_ms is not None:
        position = catalog.position_at(name, narrowed.until_ms) or view.end
        stops[name] = min(stops[name], position)


def _refuse_unknown(asked: tuple[StartingOffsets, ...], partitions: Mapping[str, str]) -> None:
    known = {*partitions, *partitions.values()}
    unknown = sorted({name for of in asked for name in of.bounds if name not in known})
    if unknown:
        raise ConfigError(
            f"offsets or times are given for partitions that do not exist: {', '.join(unknown)}",
            remedy="correct the names in startingOffsets, endingOffsets, startingTime or endingTime",
        )


def _refuse_backwards(
    options: SourceOptions,
    views: Mapping[str, PartitionView],
    starts: Mapping[str, Position],
    stops: Mapping[str, Position],
) -> None:
    """Refuse an end before the start if both are positions. Such a query would silently read nothing."""
    for name, view in views.items():
        both = [asked.of(name) for asked in (options.starting, options.ending)]
        if all(isinstance(bound, Position) for bound in both) and view.backlog(stops[name], starts[name])[0]:
            raise ConfigError(
                f"{name}: endingOffsets {list(stops[name])} is before startingOffsets {list(starts[name])}",
                remedy="exchange them, or correct one",
            )

"""A batch query: which range of each partition it reads, resolved once."""

from __future__ import annotations

from bridge.pulsar_admin import PulsarAdmin
from sources.options import SourceOptions
from sources.reading import ReadTask
from sources.snapshot import Catalog
from sources.starting import resolve
from sources.tasks import read_tasks

__all__ = ["batch_tasks"]


def batch_tasks(options: SourceOptions) -> list[ReadTask]:
    """Return the tasks of a batch query, from one snapshot.

    Raises ConfigError for a place that does not exist, TransientError when Pulsar's admin cannot be reached.
    """
    catalog = Catalog(PulsarAdmin(options.pulsar), options.topics)
    try:
        partitions = catalog.partitions()
        views = catalog.snapshot(partitions)
        catalog.refuse_missing(partitions, views)
        starts = {name: resolve(options.starting, view, catalog) for name, view in views.items()}
        ends = {name: resolve(options.ending, view, catalog) for name, view in views.items()}
    finally:
        catalog.close()
    return read_tasks(options, views, starts, ends)

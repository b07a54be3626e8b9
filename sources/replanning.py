"""Finds positions by publish time in the current topics of a query's checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.contract import Position, base_topic
from bridge.errors import ConfigError
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings.units import since_us
from sources.offsets import Offset
from sources.snapshot import Catalog

__all__ = ["Places", "positions_at", "time_ms"]


@dataclass
class Places:
    """The position in each partition, and notes on them, a line each."""

    places: dict[str, Position] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def time_ms(text: str, now_ms: int) -> int:
    """Parse a time: ISO, an age such as 2h, or ms since the epoch. Raises ConfigError."""
    if text.strip().isdigit():
        return int(text)
    try:
        return since_us(text, now_ms * 1000) // 1000
    except ConfigError as e:
        raise ConfigError(
            f"--at {text}: neither a time nor an age",
            remedy="for example --at 2026-01-31T12:00:00Z, --at 2h, or ms since the epoch",
        ) from e


def positions_at(admin: PulsarAdmin, offsets: Iterable[Offset], at_ms: int) -> Places:
    """Return the first entry published at ``at_ms`` or later, of every current partition.

    Raises DataLossError if a checkpoint belongs to another cluster or to a re-created topic, RefusedError if a topic
    does not exist. Closes the admin.
    """
    found = Places()
    offsets = list(offsets)
    topics = sorted({base_topic(name) for offset in offsets for name in offset.positions})
    catalog = Catalog(admin, topics)
    try:
        cluster, marks = catalog.cluster(), catalog.incarnations(topics, mark=False)
        for offset in offsets:
            offset.refuse_mismatch(cluster, marks)
        partitions = catalog.partitions()
        views = catalog.snapshot(partitions)
        catalog.refuse_missing(partitions, views)
        for name, view in views.items():
            position = catalog.position_at(name, at_ms)
            if position is None or position >= view.end:
                found.notes.append(f"{name}: nothing was published since, the query begins at its end")
                position = view.end
            found.places[name] = max(position, view.start)
        known = {name for offset in offsets for name in offset.positions}
        for name in sorted(set(views) - known):
            found.notes.append(f"{name}: a partition that the checkpoint lacks")
    finally:
        catalog.close()
    return found

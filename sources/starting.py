"""Where a partition begins, or ends, by what the user asked for: earliest, latest, a place, or a time."""

from __future__ import annotations

from bridge.contract import Position
from bridge.errors import ConfigError
from sources.places import EARLIEST, At, StartingOffsets
from sources.planning import PartitionView
from sources.snapshot import Catalog

__all__ = ["resolve"]


def resolve(asked: StartingOffsets, view: PartitionView, catalog: Catalog) -> Position:
    """Return the place in one partition. Raises ConfigError for a place that the partition does not have."""
    place = asked.of(view.name)
    if asked.time_ms is not None:
        place = At(asked.time_ms)
    if isinstance(place, At):
        return catalog.position_at(view.name, place.time_ms) or view.end
    if isinstance(place, str):
        return view.start if place == EARLIEST else view.end
    why = view.explain_loss(place, None)
    if why is not None:
        raise ConfigError(
            f"a place in startingOffsets or endingOffsets does not exist: {why}",
            remedy=f"give one between {list(view.start)} and {list(view.end)}, or earliest or latest",
        )
    return place

"""Resolves where a partition begins or ends: earliest, latest, a position, or a time."""

from __future__ import annotations

from bridge.contract import Position
from bridge.errors import ConfigError
from sources.bounds import EARLIEST, At, StartingOffsets
from sources.planning import PartitionView
from sources.snapshot import Catalog

__all__ = ["resolve"]


def resolve(asked: StartingOffsets, view: PartitionView, catalog: Catalog) -> Position:
    """Return the position in one partition. Raises ConfigError for a position that the partition does not have."""
    bound = asked.of(view.name)
    if asked.time_ms is not None:
        bound = At(asked.time_ms)
    if isinstance(bound, At):
        return catalog.position_at(view.name, bound.time_ms) or view.end
    if isinstance(bound, str):
        return view.start if bound == EARLIEST else view.end
    why = view.explain_loss(bound, None)
    if why is not None:
        raise ConfigError(
            f"a position in startingOffsets or endingOffsets does not exist: {why}",
            remedy=f"give one between {list(view.start)} and {list(view.end)}, or earliest or latest",
        )
    return bound

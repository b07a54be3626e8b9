"""The offset of a query: what it holds, how it is written down, what makes it another topic's.

An offset names, for each partition, the next entry to read: entry-aligned, so half-open ranges need no batch
index and reading (start, end) twice gives the same rows. The cluster and each topic's incarnation travel along, so
that a checkpoint is never continued on another cluster or on a topic that was deleted and made anew. Which entries
exist, and how far a trigger goes, is decided in ``sources.planning``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.contract import OFFSET_VERSION, Position
from bridge.errors import ContractError, DataLossError

__all__ = ["Offset"]


@dataclass(frozen=True)
class Offset:
    """The next entry to read of each partition, with the identity of what it counts in."""

    cluster: str
    positions: Mapping[str, Position]
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Topic (not partition) to the mark that it was given when it was first read; empty where marks are off."""

    def moved_to(self, positions: Mapping[str, Position]) -> Offset:
        """Return this offset with other positions. The same positions give an equal offset."""
        return replace(self, positions={**self.positions, **positions})

    def marked(self, incarnations: Mapping[str, str]) -> Offset:
        """Return this offset with the marks of topics that it did not know."""
        return replace(self, incarnations={**self.incarnations, **incarnations})

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it: keys sorted, so that equal offsets are equal texts."""
        return {
            "v": OFFSET_VERSION,
            "cluster": self.cluster,
            "t": {name: list(self.positions[name]) for name in sorted(self.positions)},
            "i": {name: self.incarnations[name] for name in sorted(self.incarnations)},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Offset:
        """Read an offset back. Raises ContractError when it is not one, or is of a version unknown here."""
        version = body.get("v")
        if version != OFFSET_VERSION:
            raise ContractError(
                f"the checkpoint holds an offset of version {version!r}, this source reads {OFFSET_VERSION}",
                remedy="use the release that wrote the checkpoint, or a new checkpoint with startingOffsets",
            )
        try:
            positions = {str(name): _position(value) for name, value in body["t"].items()}
            marks = {str(name): str(value) for name, value in body.get("i", {}).items()}
            return cls(str(body["cluster"]), positions, marks)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ContractError(f"not an offset of this source: {json.dumps(body)[:200]}") from e

    def refuse_strangers(self, cluster: str, incarnations: Mapping[str, str]) -> None:
        """Refuse to go on where this offset does not belong.

        What is not known, an empty name or no mark, is not compared. Raises DataLossError when the cluster is another
        one, or a topic was deleted and made anew since.
        """
        remedy = "start with a new checkpoint, or point service.url and admin.url to the cluster that it was made on"
        if self.cluster and cluster and self.cluster != cluster:
            raise DataLossError(
                f"the checkpoint was made on Pulsar cluster {self.cluster!r}, this is {cluster!r}",
                remedy=remedy,
            )
        for topic, mark in self.incarnations.items():
            now = incarnations.get(topic, mark)
            if mark and now != mark:
                raise DataLossError(
                    f"topic {topic} is not the one that the checkpoint was made on (mark {mark!r}, now {now!r}): "
                    "it was deleted and made anew, or this is another cluster",
                    remedy="start with a new checkpoint and startingOffsets=earliest, or restore the former topic",
                )


def _position(value: Any) -> Position:
    ledger, entry = value
    if isinstance(ledger, bool) or not isinstance(ledger, int) or not isinstance(entry, int) or entry < 0:
        raise ValueError(f"not a position: {value!r}")
    return Position(ledger, entry)

"""The offset of a query: its content, its JSON form, and its identity check.

An offset names, for each partition, the next entry to read. Because it is entry-aligned, half-open ranges need no
batch index, and rereading (start, end) gives the same rows. It includes the cluster and each topic's incarnation. So a
checkpoint never continues on another cluster or on a re-created topic. ``sources.planning`` decides which entries
exist and how far a trigger reads.
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
    """The next entry to read of each partition, with the identity of cluster and topics."""

    cluster: str
    positions: Mapping[str, Position]
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Topic (not partition) to the mark set when it was first read; empty without marks."""

    def moved_to(self, positions: Mapping[str, Position]) -> Offset:
        """Return this offset with other positions. The same positions give an equal offset."""
        return replace(self, positions={**self.positions, **positions})

    def marked(self, incarnations: Mapping[str, str]) -> Offset:
        """Return this offset with the marks of topics that it lacked."""
        return replace(self, incarnations={**self.incarnations, **incarnations})

    def to_json(self) -> dict[str, Any]:
        """Return the offset in the form that Spark stores. Sorted keys make equal offsets equal texts."""
        return {
            "v": OFFSET_VERSION,
            "cluster": self.cluster,
            "t": {name: list(self.positions[name]) for name in sorted(self.positions)},
            "i": {name: self.incarnations[name] for name in sorted(self.incarnations)},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Offset:
        """Read an offset from JSON. Raises ContractError for another content or an unknown version."""
        version = body.get("v")
        if version != OFFSET_VERSION:
            raise ContractError(
                f"the checkpoint has an offset of version {version!r}, this source reads {OFFSET_VERSION}",
                remedy="use the release that wrote the checkpoint, or a new checkpoint with startingOffsets",
            )
        try:
            positions = {str(name): _position(value) for name, value in body["t"].items()}
            marks = {str(name): str(value) for name, value in body.get("i", {}).items()}
            return cls(str(body["cluster"]), positions, marks)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ContractError(f"not an offset of this source: {json.dumps(body)[:200]}") from e

    def refuse_mismatch(self, cluster: str, incarnations: Mapping[str, str]) -> None:
        """Refuse an offset of another cluster or of re-created topics.

        Unknown values, an empty name or no mark, are not compared. Raises DataLossError if the cluster differs, or if
        a topic was deleted and re-created since.
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
                    "it was deleted and re-created, or this is another cluster",
                    remedy="start with a new checkpoint and startingOffsets=earliest, or restore the former topic",
                )


def _position(value: Any) -> Position:
    ledger, entry = value
    if isinstance(ledger, bool) or not isinstance(ledger, int) or not isinstance(entry, int) or entry < 0:
        raise ValueError(f"not a position: {value!r}")
    return Position(ledger, entry)

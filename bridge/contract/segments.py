"""Segments: records of the cursors topic with the ids of the commands that are parked in Pulsar for one device.

A segment has at most ``SEGMENT_IDS`` ids, under a key that names its owner. A command that was relocated keeps its position;
the position of its copy is stored beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.contract import SEGMENT_VERSION
from bridge.contract.commands import CommandPosition
from bridge.contract.decoding import LAST_US, checked_position, checked_whole, checked_wholes, decodes, json_record

__all__ = [
    "COPY_WIDTH",
    "GONE",
    "ID_WIDTH",
    "NO_COPY",
    "SEGMENT_IDS",
    "ParkedId",
    "Segment",
    "encode_segment",
    "read_segment",
    "segment_device",
    "segment_key",
]

SEGMENT_IDS: Final = 256
ID_WIDTH: Final = 5
"""Numbers of an id: ledger, entry, index, when it expires, and its flags."""
COPY_WIDTH: Final = 3
NO_COPY: Final = (-1, -1, -1)
GONE: Final = CommandPosition(-2, -2, -2)
"""The copy of a copy that could not be made, because the command was not in Pulsar any more."""
_PREFIX: Final = "\0parked\0"
"""Keys of segments; no device is called so, MQTT topics have no U+0000."""


class ParkedId(NamedTuple):
    """A command in Pulsar. ``maybe_seen``: the device may have had it, so that its push is a repetition; ``resend``: it
    counted as delivered, and is sent again all the same (H26).
    """

    position: CommandPosition
    expires_at_ms: int = 0
    maybe_seen: bool = False
    resend: bool = False
    copy: CommandPosition | None = None
    """The position of its copy in the topic of relocated commands, None if it was not relocated."""

    def numbers(self) -> tuple[int, ...]:
        """Return it as it is stored."""
        return (*self.position, self.expires_at_ms, self.maybe_seen | self.resend << 1)

    @classmethod
    def of(cls, numbers: Sequence[int], copy: Sequence[int] = NO_COPY) -> ParkedId:
        """Return what ``numbers`` has returned, and the position of its copy."""
        ledger, entry, index, expires, flags = numbers
        where = None if tuple(copy) == NO_COPY else CommandPosition(*copy)
        return cls(CommandPosition(ledger, entry, index), expires, bool(flags & 1), bool(flags & 2), where)


class Segment(NamedTuple):
    """A stored segment."""

    ids: list[ParkedId]
    since_us: int
    """When the first of them was parked, 0 if unknown."""


def segment_key(device: str, owner: str, number: int) -> str:
    """Return the key of a segment that ``owner`` begins."""
    return f"{_PREFIX}{owner}.{number}\0{device}"


def segment_device(key: str) -> str | None:
    """Return whose segment is stored under ``key``, None when it is not the key of a segment."""
    parts = key.split("\0", 3) if key.startswith(_PREFIX) else []
    return parts[3] if len(parts) == 4 and parts[3] else None


def encode_segment(ids: list[int], copies: list[int], since_us: int) -> bytes:
    """Return the payload of a segment from the numbers of its ids, one after the other, and of their copies, empty if no id
    can have one.
    """
    body: dict[str, object] = {"v": SEGMENT_VERSION, "parked": ids}
    if since_us:
        body["since_us"] = since_us
    if any(number != -1 for number in copies):
        body["places"] = copies
    return json.dumps(body, separators=(",", ":")).encode()


@decodes("a segment of parked commands")
def read_segment(payload: bytes) -> Segment:
    """Read a segment. Raises ContractError when the payload is not one of this version."""
    body = json_record(payload, "segment of parked commands", (SEGMENT_VERSION,))
    flat = checked_wholes(body["parked"], ID_WIDTH)
    count = len(flat) // ID_WIDTH
    places = checked_wholes(body["places"], COPY_WIDTH) if body.get("places") else None
    if places is not None and len(places) != count * COPY_WIDTH:
        raise ValueError(f"{count} ids, and {len(places)} numbers of their copies")
    since_us = checked_whole(body.get("since_us", 0), 0, LAST_US)
    ids = []
    for at in range(count):
        numbers, copy = flat[at * ID_WIDTH : (at + 1) * ID_WIDTH], NO_COPY
        if places is not None:
            copy = checked_position(places[at * COPY_WIDTH : (at + 1) * COPY_WIDTH])
        checked_position(numbers[:COPY_WIDTH])
        ids.append(ParkedId.of(numbers, copy))
    return Segment(ids, since_us)

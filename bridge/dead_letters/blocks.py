"""Blocked partitions: ingest writes their messages to the dead letters until a replay releases them.

A block belongs to one ingest worker (its MQTT client id) and one partition. It is a property of the topic, so that it
outlives the worker. If a restarted worker wrote to the partition before older messages of a device are replayed, the
device's order would be lost. The release has steps, so that no message overtakes another:

1. ``blocked``: the worker writes messages for the partition to the dead letters.
2. ``releasing``: a replay has replayed these and requests the rest. The worker writes no more dead letters, buffers
   new messages, and waits until its last dead letters are stored.
3. ``drained``: the worker confirms this. The replay replays the last dead letters and removes the property.
4. The worker sees the removal and writes to the partition, first the buffered messages.

If the replay dies between two steps, the next run continues; a worker buffers at most its window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from bridge.contract.decoding import LAST_US, checked_text, checked_whole, decodes, json_of_record
from bridge.display import printable
from bridge.errors import ContractError
from bridge.pulsar.admin import PulsarAdmin

__all__ = ["Block", "BlockState", "load_blocks", "store_block"]

BlockState = Literal["blocked", "releasing", "drained"]
_PREFIX: Final = "pulsebridge.blocked."


@dataclass(frozen=True, slots=True)
class Block:
    """One worker's block of one partition; ``partition`` is -1 if the topic is not partitioned."""

    partition: int
    client_id: str
    state: BlockState
    since_us: int
    """Time at which this state began, in µs since the epoch."""
    why: str

    @property
    def name(self) -> str:
        """The name of its topic property."""
        return f"{_PREFIX}{self.partition}.{self.client_id}"

    def encode(self) -> str:
        """Return the property's value."""
        return json.dumps({"state": self.state, "since_us": self.since_us, "why": self.why})


def load_blocks(admin: PulsarAdmin, topic: str) -> list[Block]:
    """Return the blocks of a topic; none if the topic does not exist. Raises TransientError and RefusedError."""
    return [_decode(name, value) for name, value in admin.properties(topic, _PREFIX).items()]


def store_block(admin: PulsarAdmin, topic: str, block: Block) -> None:
    """Store a block; it replaces the same worker's block of the partition. Raises as ``load_blocks``."""
    admin.set_property(topic, block.name, block.encode())


def _decode(name: str, value: str) -> Block:
    try:
        return _read(name, value)
    except ContractError as e:
        raise ContractError(
            f"the property {_PREFIX}{printable(name)} cannot be read: {e.what}",
            remedy="remove it with pulsar-admin topics remove-properties",
        ) from e


@decodes("a block of a partition")
def _read(name: str, value: str) -> Block:
    partition, _, client_id = name.partition(".")
    fields = json_of_record(value)
    since_us = checked_whole(fields["since_us"], 0, LAST_US)
    return Block(int(partition), client_id, fields["state"], since_us, checked_text(fields["why"]))

"""Which partitions are blocked: what is meant for them goes to the dead letters until those are replayed.

A block belongs to one ingest worker (its MQTT client id) and one partition, and is kept as a property of the topic,
so that it outlives the worker: were a restarted one to write again while older messages of a device are among the
dead letters, the device's order would be lost. It ends in steps, so that no message overtakes another:

1. ``blocked``: the worker writes what is meant for the partition to the dead letters.
2. ``releasing``: a replay has replayed them and asks for the rest. The worker writes no more of them, keeps what
   comes from now on, and waits until what it gave to the dead letters is stored there.
3. ``held``: the worker says so. The replay replays what came in between and removes the property.
4. The worker sees it gone and writes to the partition again, first what it has kept.

Died between two steps, the replay is run again and goes on; a worker keeps at most its window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from bridge.decoding import LAST_US, checked_text, checked_whole, decodes, json_of_record
from bridge.display import printable
from bridge.errors import ContractError
from bridge.pulsar_admin import PulsarAdmin, rest_path

__all__ = ["Block", "BlockState", "BlockStore"]

BlockState = Literal["blocked", "releasing", "held"]
_PREFIX: Final = "pulsebridge.blocked."


@dataclass(frozen=True, slots=True)
class Block:
    """One worker's block of one partition; ``partition`` is -1 where the topic has none."""

    partition: int
    client_id: str
    state: BlockState
    since_us: int
    """Since when it is in this state, in µs since the epoch."""
    why: str

    @property
    def name(self) -> str:
        """The property that keeps it."""
        return f"{_PREFIX}{self.partition}.{self.client_id}"

    def encode(self) -> str:
        """Return the property's value."""
        return json.dumps({"state": self.state, "since_us": self.since_us, "why": self.why})


class BlockStore:
    """The blocks of topics, through Pulsar's admin. Calls block; they raise TransientError and RefusedError."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def load(self, topic: str) -> list[Block]:
        """Return the blocks of a topic, none when it does not exist."""
        found = self._admin.request("GET", f"/{rest_path(topic)}/properties", accept=(404,)) or {}
        return [block for name, value in sorted(found.items()) if (block := _decode(name, value)) is not None]

    def store(self, topic: str, block: Block) -> None:
        """Keep a block, in place of what the same worker had for the partition."""
        self._admin.request("PUT", f"/{rest_path(topic)}/properties", body={block.name: block.encode()})

    def remove(self, topic: str, block: Block) -> None:
        """Forget a block."""
        name = quote(block.name, safe="")
        self._admin.request("DELETE", f"/{rest_path(topic)}/properties?key={name}", accept=(404,))


def _decode(name: str, value: str) -> Block | None:
    if not name.startswith(_PREFIX):
        return None
    try:
        return _read(name, value)
    except ContractError as e:
        raise ContractError(
            f"the property {printable(name)} cannot be read: {e.what}",
            remedy="remove it with pulsar-admin topics remove-properties",
        ) from e


@decodes("a block of a partition")
def _read(name: str, value: str) -> Block:
    partition, _, client_id = name[len(_PREFIX) :].partition(".")
    told = json_of_record(value)
    since_us = checked_whole(told["since_us"], 0, LAST_US)
    return Block(int(partition), client_id, told["state"], since_us, checked_text(told["why"]))

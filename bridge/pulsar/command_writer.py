"""Writes commands to the partitions of their devices, in batches and with bounded memory.

A command is reported only after Pulsar's receipt, in the order of writing. At the first error the caller stops, because
an error makes a producer's later messages uncertain (H1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bridge.contract.commands import Command
from bridge.contract.groups import GroupCommand, command_message
from bridge.contract.partitioning import partition_of
from bridge.errors import TerminalError
from bridge.pending import MAX_PENDING_BYTES
from bridge.pulsar.client import PulsarClient, our_errors
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import PartitionWriters, Receipts

__all__ = ["CommandWriter", "StoredCommand"]

_MOST: Final = 1000
"""Commands without a receipt."""


class StoredCommand(NamedTuple):
    """A command that Pulsar has stored, and its position there, as its receipts have it."""

    command: Command | GroupCommand
    position: str


class CommandWriter:
    """Writes commands to devices and groups. Closing the client closes its producers."""

    def __init__(self, client: PulsarClient, patience_s: float = 60.0) -> None:
        """``patience_s``: the longest time without a receipt."""
        self._settings = client.settings
        # Twice the commands without a receipt, so that the queue never rejects (H1 a).
        self._writers = PartitionWriters(client, 2 * _MOST)
        self._patience_s = patience_s

    def write(self, commands: Iterable[Command | GroupCommand | None]) -> Iterator[StoredCommand]:
        """Write commands and yield each one that is stored, in order. At None it waits for all receipts.

        Raises ContractError for an invalid command, TerminalError for a missing topic, else what Pulsar answers; an error
        of ``commands`` once the commands before it are stored.
        """
        for some in _batches(commands):
            yield from self._write(some)

    def _write(self, some: list[Command | GroupCommand]) -> Iterator[StoredCommand]:
        receipts = Receipts()
        partitions = [self._send(number, command, receipts) for number, command in enumerate(some)]
        receipts.wait_for_all("writing commands", self._patience_s, lambda: False)
        for number, command in enumerate(some):
            error = receipts.error(number, f"writing command {command.command_id!r}")
            if error is not None:
                raise error
            position = position_of(receipts.message_id(number))
            yield StoredCommand(command, position.encode(partitions[number], self._settings.command_generation))

    def _send(self, number: int, command: Command | GroupCommand, receipts: Receipts) -> int:
        """Send a command, and return its partition."""
        local, key, properties, event_ms = command_message(command)
        topic, names = self._settings.system_topic(local), self._writers.partitions(local)
        if names == [topic]:
            raise TerminalError(
                f"the topic {topic} does not exist",
                remedy="check pulsar.tenant and pulsar.system_namespace; `pulsebridge push` creates it at its start",
            )
        partition = partition_of(key, len(names))
        producer = self._writers.of(names[partition], batching=True)
        with our_errors(f"writing to {names[partition]}"):
            producer.send_async(
                command.payload,
                callback=receipts.of(number),
                properties=properties,
                partition_key=key,
                event_timestamp=event_ms or None,
            )
        return partition


def _batches(commands: Iterable[Command | GroupCommand | None]) -> Iterator[list[Command | GroupCommand]]:
    """Yield the commands in batches: up to the limits, to a None, and to the end or the error of ``commands``."""
    some: list[Command | GroupCommand] = []
    size = 0
    try:
        for command in commands:
            if command is not None:
                some.append(command)
                size += len(command.payload)
            if command is None or len(some) == _MOST or size > MAX_PENDING_BYTES:
                yield some
                some, size = [], 0
    except Exception:
        yield some
        raise
    yield some

"""Writes commands to the partitions of their devices, in batches and with bounded memory.

A command is reported only after Pulsar's receipt, in the order of writing. At the first error the caller stops, because
an error makes a producer's later messages uncertain (H1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from bridge.contract.commands import Command, CommandPosition
from bridge.contract.groups import GroupCommand, command_message
from bridge.contract.partitioning import partition_of
from bridge.errors import PulsebridgeError, TerminalError
from bridge.pending import Pending
from bridge.pulsar.client import OK, MessageId, PulsarClient, our_errors
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import PartitionWriters

__all__ = ["CommandWriter", "StoredCommand"]

_MAX_PENDING: Final = 1000


class StoredCommand(NamedTuple):
    """A command that Pulsar has stored, and its partition and position there."""

    command: Command | GroupCommand
    partition: int
    position: CommandPosition


@dataclass(slots=True, eq=False)
class _Sent:
    command: Command | GroupCommand
    partition: int
    message_id: MessageId | None = None


class CommandWriter:
    """Writes commands to devices and groups. Closing the client closes its producers."""

    def __init__(self, client: PulsarClient, patience_s: float = 60.0) -> None:
        """``patience_s``: the longest time without a receipt."""
        self._settings = client.settings
        # Twice the pending limit, so that the queue never rejects (H1 a).
        self._writers = PartitionWriters(client, 2 * _MAX_PENDING)
        self._pending = Pending("commands have no receipt from Pulsar", remedy="check that Pulsar is up")
        self._patience_s = patience_s
        self._sent: deque[_Sent] = deque()
        self._count = 0

    @property
    def stored(self) -> int:
        """Number of commands that Pulsar has stored."""
        return self._count - self.unconfirmed

    @property
    def unconfirmed(self) -> int:
        """Number of sent commands without a receipt: Pulsar may store them or not."""
        return sum(one.message_id is None for one in self._sent)

    def write(self, commands: Iterable[Command | GroupCommand | None]) -> Iterator[StoredCommand]:
        """Write commands and yield each one that is stored, in order. At None it waits for all receipts.

        Raises ContractError for an invalid command, TerminalError for a missing topic, else what Pulsar answers.
        """
        for command in commands:
            if command is None:
                self._pending.wait(0, self._patience_s)
            else:
                self._send(command)
            while self._sent and self._sent[0].message_id is not None:
                yield _stored(self._sent[0])
                self._sent.popleft()  # after the yield: if the caller was interrupted, ``remaining`` returns it
        self._pending.wait(0, self._patience_s)
        yield from self.remaining(0)

    def remaining(self, timeout_s: float) -> list[StoredCommand]:
        """Return the stored commands that ``write`` did not yield, because it ended early.

        It waits while receipts arrive within ``timeout_s`` of each other, but not after an error of Pulsar.
        """
        with suppress(PulsebridgeError):
            self._pending.wait(0, timeout_s)
        stored = [one for one in self._sent if one.message_id is not None]
        self._sent = deque(one for one in self._sent if one.message_id is None)
        return [_stored(one) for one in stored]

    def _send(self, command: Command | GroupCommand) -> None:
        local, key, properties, event_ms = command_message(command)
        topic, names = self._settings.system_topic(local), self._writers.partitions(local)
        if names == [topic]:
            raise TerminalError(
                f"the topic {topic} does not exist",
                remedy="check pulsar.tenant and pulsar.system_namespace; `pulsebridge push` creates it at its start",
            )
        partition = partition_of(key, len(names))
        producer = self._writers.of(names[partition], batching=True)
        size = len(command.payload) + sum(len(name) + len(value) for name, value in properties.items())
        self._pending.wait(_MAX_PENDING - 1, self._patience_s, size)
        sent = _Sent(command, partition)
        self._count += 1
        self._sent.append(sent)  # before the send: an interruption in between must not hide it
        self._pending.sent(size)
        with our_errors(f"writing to {names[partition]}"):
            producer.send_async(
                command.payload,
                callback=partial(self._answered, sent, size),
                properties=properties,
                partition_key=key,
                event_timestamp=event_ms or None,
            )

    def _answered(self, sent: _Sent, size: int, result: object, message_id: MessageId) -> None:
        """Take Pulsar's answer. Its client calls this on its own thread; it must not raise."""
        if result == OK:
            sent.message_id = message_id
        error = None if result == OK else as_our_error(result, f"writing command {sent.command.command_id!r}")
        self._pending.done(error, size)


def _stored(sent: _Sent) -> StoredCommand:
    return StoredCommand(sent.command, sent.partition, position_of(sent.message_id))

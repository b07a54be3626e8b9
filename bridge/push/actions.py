"""Actions: what a partition asks its shell to do. Each names the event that answers it."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.push.command import TrackedCommand, receipt_of

__all__ = [
    "Ack",
    "Action",
    "AnswerRequest",
    "Copy",
    "DeadLetter",
    "DropRequest",
    "FindCommands",
    "Forget",
    "Outbox",
    "Pull",
    "Push",
    "ResumeAnswer",
    "ResumeRequest",
    "StoreCursor",
    "StoreReceipt",
    "StoreSegment",
]


Action: TypeAlias = tuple[Any, ...]
"""One of the tuples below that say what the shell is to do."""


class Push(NamedTuple):
    """Publish the command over MQTT. Answer: ``confirmed(number, …)``, or ``link_down`` for all of them."""

    number: int
    position: CommandPosition
    command: Command
    repeat: bool  # whether the device may have had it before
    link: str = ""  # the broker at which its device is


class StoreCursor(NamedTuple):
    """Write the device's cursor, the last of ``records``, after the others. Answer: ``cursor_stored(device)``."""

    device: str
    records: tuple[tuple[str, bytes], ...]  # keys and payloads


class StoreReceipt(NamedTuple):
    """Write a receipt row. Answer: ``receipt_stored(position)``."""

    position: CommandPosition
    receipt: Receipt


class DeadLetter(NamedTuple):
    """Write the message at ``position`` to the dead letters. Answer: ``dead_letter_stored(position)``."""

    position: CommandPosition
    device: str
    reason: str


class Ack(NamedTuple):
    """Acknowledge the message at ``position`` on the commands subscription. Push does not track it any more."""

    position: CommandPosition


class StoreSegment(NamedTuple):
    """Write a segment of a device's parked ids; an empty payload removes it. Answer: ``segment_stored(parked)``."""

    key: str
    payload: bytes
    parked: tuple[CommandPosition, ...] = ()
    """What may be acknowledged once this is stored: writes are stored in their order."""
    relocation: int = 0
    """The relocation that ends with this, 0 for none. Second answer: ``Relocation.stored(relocation)``."""


class Pull(NamedTuple):
    """Read parked commands from Pulsar, in order. Answer for each: ``pulled(device, epoch, position, …)``."""

    device: str
    epoch: int
    positions: tuple[CommandPosition, ...]
    copies: tuple[CommandPosition | None, ...]
    """For each the position of its copy in the topic of relocated commands, None if it was not relocated."""
    probing: bool = False
    """Whether the device is probed or swept, without a sign of life: then the positions are anywhere in the log."""


class Copy(NamedTuple):
    """Copy parked commands to the topic of relocated ones, in order. Answer: ``Relocation.copied`` or ``copy_failed``."""

    relocation: int
    positions: tuple[CommandPosition, ...]


class Forget(NamedTuple):
    """A command that was pulled is settled, or waits in Pulsar again: its message is not needed any more."""

    position: CommandPosition


class ResumeRequest(NamedTuple):
    """A request that names a position. ``after`` is the last command that the device has had."""

    device: str
    text: str
    after: CommandPosition
    at_us: int  # when the device sent it, in µs since the epoch
    token: Any  # by which the shell acknowledges it
    link: str = ""  # the broker at which the device sent it, empty if that is unknown


class ResumeAnswer(NamedTuple):
    """What became of a request. ``first`` is where the commands begin that are left, where some are not."""

    commands: int
    trimmed: bool = False
    first: CommandPosition | None = None
    error: str = ""


class FindCommands(NamedTuple):
    """Find the commands of a device in Pulsar: after one position, up to another. Answer: ``Resume.found``."""

    device: str
    epoch: int
    after: CommandPosition
    until: CommandPosition


class AnswerRequest(NamedTuple):
    """Publish the answer to a request, then acknowledge that. Answer: ``Resume.answered``. Comes again if the device moves."""

    request: ResumeRequest
    answer: ResumeAnswer
    link: str = ""  # the broker at which the device is


class DropRequest(NamedTuple):
    """A later request of the device replaces it: acknowledge it."""

    request: ResumeRequest


class Outbox:
    """Actions in the order in which the shell is to begin them."""

    def __init__(self, partition: int, generation: int) -> None:
        self._topic = partition, generation
        self._actions: list[Action] = []
        self.writes = 0
        """Writes that Pulsar has not answered."""

    def __len__(self) -> int:
        return len(self._actions)

    def take(self) -> list[Action]:
        """Return the actions and forget them."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, action: Action) -> None:
        """Add an action that no write answers."""
        self._actions.append(action)

    def acknowledge(self, position: CommandPosition) -> None:
        """Acknowledge a message."""
        self._actions.append(Ack(position))

    def write(self, action: Action) -> None:
        """Add an action that a write answers."""
        self.writes += 1
        self._actions.append(action)

    def stored(self) -> None:
        """Pulsar has answered a write."""
        self.writes -= 1

    def store_receipt(self, tracked: TrackedCommand, state: str, reason: str) -> None:
        """Write the receipt of a command."""
        self.write(StoreReceipt(tracked.position, receipt_of(tracked, *self._topic, state, reason)))

    def remove_segment(self, key: str) -> None:
        """Remove a segment."""
        self.write(StoreSegment(key, b""))

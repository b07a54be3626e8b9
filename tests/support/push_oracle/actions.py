"""What the core of a partition asks its shell to do. Plain data; each names the event that answers it."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from tests.support.push_oracle.resume_requests import ResumeAnswer, ResumeRequest

__all__ = [
    "Ack",
    "Action",
    "AnswerRequest",
    "Copy",
    "DeadLetter",
    "DropRequest",
    "FindCommands",
    "Forget",
    "Pull",
    "Push",
    "StoreCursor",
    "StoreReceipt",
    "StoreSegment",
]


@dataclass(frozen=True, slots=True)
class Push:
    """Publish the command over MQTT. Answer: ``confirmed(number, …)``, or ``link_down`` for all of them."""

    number: int
    position: CommandPosition
    command: Command
    repeat: bool
    """Whether the device may have had it before."""


@dataclass(frozen=True, slots=True)
class StoreCursor:
    """Write the device's cursor, the last of ``records``, after the others. Answer: ``cursor_stored(device)``."""

    device: str
    records: tuple[tuple[str, bytes], ...]
    """Keys and payloads."""


@dataclass(frozen=True, slots=True)
class StoreReceipt:
    """Write a receipt row. Answer: ``receipt_stored(position)``."""

    position: CommandPosition
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Write the message at ``position`` to the dead letters. Answer: ``dead_letter_stored(position)``."""

    position: CommandPosition
    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge the message at ``position`` on the commands subscription. It is not held any more."""

    position: CommandPosition


@dataclass(frozen=True, slots=True)
class StoreSegment:
    """Write a segment of a device's parked ids; an empty payload removes it. Answer: ``segment_stored(parked)``."""

    key: str
    payload: bytes
    parked: tuple[CommandPosition, ...] = ()
    """What may be acknowledged once this is stored: writes are stored in their order."""
    move: int = 0
    """The move that ends with this, 0 for none. Answer: ``move_stored(move)``, besides."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Read parked commands from Pulsar, in order. Answer for each: ``pulled(device, round, position, …)``."""

    device: str
    round: int
    positions: tuple[CommandPosition, ...]
    places: tuple[CommandPosition | None, ...]
    """For each, where its copy stands among the moved commands, None where it was not moved."""
    unheard: bool = False
    """Whether the device is tried, or swept, and not back: then this stands anywhere in the log."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy parked commands to the topic of the moved ones, in order. Answer: ``copied(move, places)``, or
    ``copy_failed(move)``.
    """

    move: int
    positions: tuple[CommandPosition, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """A command that was pulled is done with, or waits in Pulsar again."""

    position: CommandPosition


@dataclass(frozen=True, slots=True)
class FindCommands:
    """Find the commands of a device in Pulsar: after one place, up to another. Answer: ``found(device, round, …)``."""

    device: str
    round: int
    after: CommandPosition
    until: CommandPosition


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Tell the device what became of its request, then acknowledge the request."""

    request: ResumeRequest
    answer: ResumeAnswer


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A later request of the device has taken its place: acknowledge it."""

    request: ResumeRequest


Action = (
    Push
    | StoreCursor
    | StoreReceipt
    | DeadLetter
    | Ack
    | StoreSegment
    | Pull
    | Copy
    | Forget
    | FindCommands
    | AnswerRequest
    | DropRequest
)

"""What the core of a partition keeps of each command and each device, and what bounds it. Plain data."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from tests.support.push_oracle.cursor import Cursor
from tests.support.push_oracle.parked import Parked

__all__ = ["PASSED", "Device", "Flight", "Item", "Limits", "Mode", "State", "receipt_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a partition. Counts of commands; times in µs."""

    window: int = 256
    window_bytes: int = 16 * 1024 * 1024
    """Payloads pushed and not confirmed, in bytes; a larger one goes alone."""
    remembered_ids: int = 256
    pending: int = 4000
    pending_bytes: int = 64 * 1024 * 1024
    """Payloads taken and not acknowledged, in bytes; the last one taken may go beyond."""
    device_pending: int = 1000
    retry_min_us: int = 200_000
    retry_max_us: int = 30_000_000
    answers: bool = False
    """Whether the device's own answer confirms a command (``confirm: device``), not the broker's PUBACK."""
    answer_timeout_us: int = 10_000_000
    answer_bytes: int = 4096
    """How much of an answer is kept for the receipt."""
    park_after: int = 3
    """So many failures in a row park a device."""
    silence_us: int = 0
    """A device that was heard of, and not for so long, counts as absent; 0: never."""
    parked_max: int = 10_000
    """Parked commands of one device; newer ones go to the dead letters."""
    coalesce_us: int = 50_000
    """How long parked ids are gathered before they are stored (H29)."""
    replay_rate: int = 500
    """Parked commands pulled for devices that are back, in a second."""
    move_after_us: int = 0
    """Parked commands that wait for longer are moved to a topic of their own; 0: never."""
    replay_window: int = 512
    """Parked commands pulled and not settled, of all devices."""
    probe_min_us: int = 20_000_000
    probe_max_us: int = 1_800_000_000
    sweep_us: int = 60_000_000
    """How often it is looked which parked commands have expired."""
    unsure_us: int = 300_000_000
    """Commands confirmed by the broker longer ago are not sent again on parking."""
    resume_max: int = 10_000
    """Commands that a device gets once more when it asks for them; of more the newest."""
    resume_every_us: int = 5_000_000
    """A device that asks more often is served by its latest request."""
    puback_timeout_us: int = 60_000_000
    """A PUBACK that takes longer ends the connection."""
    attempts: int = 0
    """A command that failed this often goes to the dead letters; 0: it is tried without end."""


class State(Enum):
    """How far a command in a device's queue is."""

    QUEUED = 1
    IN_FLIGHT = 2  # pushed, no PUBACK yet
    AWAITED = 3  # PUBACK came, the device's answer did not
    CONFIRMED = 4
    DYING = 5  # on its way to the dead letters
    DEAD = 6  # stored there
    SETTLED = 7
    NOTED = 8  # replayed and confirmed; its receipt is on its way
    PARKED = 9  # its id is being stored


class Mode(Enum):
    """Whether a device gets its commands as they arrive (H27)."""

    LIVE = 1
    PARKED = 2  # away: what arrives is parked
    REPLAYING = 3  # back: what is parked goes first, what arrives is parked behind it


PASSED: Final = (State.CONFIRMED, State.DEAD, State.SETTLED)


@dataclass(slots=True, eq=False)
class Item:
    """A command that was taken from Pulsar."""

    position: CommandPosition
    command: Command
    state: State = State.QUEUED
    attempts: int = 0
    maybe_seen: bool = False
    pushed_at_us: int = 0
    confirmed_at_us: int = 0
    answered_at_us: int = 0
    answer: bytes = b""
    answer_length: int = 0
    pulled: bool = False
    """It was parked and came by a pull: Pulsar's subscription has its acknowledgement already."""
    again: bool = False
    """It was settled before, and is sent once more all the same: the device asked for it, or perhaps never had it."""
    listed: bool = False
    """It stands in its device's list of parked ones although it is in flight and not acknowledged."""
    after: State | None = None
    """What it becomes once its receipt is stored, where the receipt comes first."""
    settled: bool = False
    held_bytes: int = 0
    """The payload that it came with, in bytes, until it is acknowledged; a pulled one holds none."""
    given_up: tuple[str, str] | None = None
    """State and reason of the receipt, for what goes to the dead letters although it was a command."""

    @property
    def perhaps_had(self) -> bool:
        """Whether its device may have had it, by us or by a former owner."""
        return self.attempts > 0 or self.maybe_seen


@dataclass(slots=True, eq=False)
class Device:
    """The queue of one device."""

    name: str
    cursor: Cursor
    loaded: CommandPosition  # the cursor as the former owner left it
    suspected: bool = True  # its first push may repeat one of the former owner
    queue: deque[Item] = field(default_factory=deque)  # in log order; settled ones leave from the head only
    ids: set[str] = field(default_factory=set)  # of what is in the queue
    marks: set[CommandPosition] = field(
        default_factory=set
    )  # given up; the dead letter or its receipt is not stored, or it is in the queue
    unstored: list[Item] = field(default_factory=list)  # passed by the cursor since the last StoreCursor
    storing: list[Item] = field(default_factory=list)  # covered by the StoreCursor under way
    failures: int = 0  # in a row
    retry_at_us: int = 0
    ready: bool = False  # stands in the list of those to look at
    writing: bool = False  # a StoreCursor is under way
    mode: Mode = Mode.LIVE
    parked: Parked = field(default_factory=Parked)
    coming: int = 0  # parked ones that are being pulled
    round: int = 0  # counts the times that it went away: pulls of a former one count for nothing
    probing: bool = False  # nobody knows whether it is back: one command at a time
    sweeping: bool = False  # only what has expired is taken
    probe_wait_us: int = 0
    probe_at_us: int = 0
    wanting: bool = False  # stands in the list of those that want a pull
    storing_ids: list[CommandPosition] = field(default_factory=list)  # parked, and not stored yet
    segments: dict[str, None] = field(default_factory=dict)  # to be written, in order
    removed: list[str] = field(default_factory=list)  # segments to be removed once the cursor is stored

    def queues(self, item: Item) -> bool:
        """Whether this very item waits for its turn to be passed by the cursor."""
        return any(one is item for one in self.queue)

    def dies_before(self, head: Item) -> bool:
        """Whether something before the head of the queue is on its way to the dead letters, or its receipt is: it was
        given up without being in the queue.
        """
        return any(position < head.position for position in self.marks)


@dataclass(slots=True, eq=False)
class Flight:
    """A push without a PUBACK so far."""

    device: Device
    item: Item
    size: int  # of the payload in bytes
    at_us: int  # when it was pushed, and then when it was sent
    sent: bool = False  # on this connection: it may wait for its payload, or for room in the broker's window
    stalled: bool = False  # its payload is not here: it was not handed to the connection


def receipt_of(item: Item, partition: int, state: str, reason: str) -> Receipt:
    """Return the receipt that says what became of a command."""
    command = item.command
    return Receipt(
        command_id=command.command_id,
        device=command.device,
        mqtt_topic=command.mqtt_topic,
        state=state,
        reason=reason,
        position=item.position.encode(partition),
        attempts=item.attempts,
        emitted_at_us=command.emitted_at_us,
        pushed_at_us=item.pushed_at_us,
        confirmed_at_us=item.confirmed_at_us,
        answered_at_us=item.answered_at_us,
        answer=item.answer,
        answer_length=item.answer_length,
        resend_of=command.resend_of,
        group="" if command.ref is None else command.ref.group,
        group_command_id="" if command.ref is None else command.ref.command_id,
    )

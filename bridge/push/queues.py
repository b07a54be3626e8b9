"""What the core of a partition keeps of each command and each device, and what bounds it. Plain data."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bridge.commands import Command, CommandPosition
from bridge.push.cursor import Cursor

__all__ = ["PASSED", "Device", "Item", "Limits", "State"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a partition. Counts of commands; times in µs."""

    window: int = 256
    device_window: int = 1
    remembered_ids: int = 256
    pending: int = 4000
    device_pending: int = 1000
    retry_min_us: int = 200_000
    retry_max_us: int = 30_000_000
    answers: bool = False
    """Whether the device's own answer confirms a command (``confirm: device``), not the broker's PUBACK."""
    answer_timeout_us: int = 10_000_000
    answer_bytes: int = 4096
    """How much of an answer is kept for the receipt."""
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
    given_up: tuple[str, str] | None = None
    """State and reason of the receipt, for what goes to the dead letters although it was a command."""


@dataclass(slots=True, eq=False)
class Device:
    """The queue of one device."""

    name: str
    cursor: Cursor
    loaded: CommandPosition  # the cursor as the former owner left it
    suspects: int  # how many first pushes may repeat one of the former owner
    queue: deque[Item] = field(default_factory=deque)  # in log order; settled ones leave from the head only
    ids: set[str] = field(default_factory=set)  # of what is in the queue
    marks: set[CommandPosition] = field(
        default_factory=set
    )  # dead letters in the queue, acknowledged or about to be
    unstored: list[Item] = field(default_factory=list)  # passed by the cursor since the last StoreCursor
    storing: list[Item] = field(default_factory=list)  # covered by the StoreCursor under way
    failures: int = 0  # in a row
    retry_at_us: int = 0
    ready: bool = False  # stands in the list of those to look at

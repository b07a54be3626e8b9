"""The two transition tables of push, and the commit orders that they serve.

A device has a mode, a command has a state. Both change by events alone, and each table lists every transition that can
occur: an event that the table does not list raises ``IllegalTransitionError``. ARCHITECTURE.md has both as Markdown.

Modes (H27). Push sends new commands of a LIVE device at once. For a PARKED or REPLAYING device it parks them behind those
that are parked already, so that none overtakes another.

Commit orders (H25). The process may die between any two steps.

Delivery of a command that arrived by the subscription:

1. ``Push``: push sends at most one command of a device beyond the device's stored cursor.
2. ``confirmed``: PUBACK. With ``Limits.answers.confirm`` then ``answered``: the device's own answer, which may precede the PUBACK.
   After a crash here the next owner sends the command again with ``repeat=1``.
3. ``StoreCursor`` → ``cursor_stored``: each later owner knows position and id. From here on the command is not sent again.
4. ``StoreReceipt`` → ``receipt_stored``. After a crash before it the command arrives again at or below the cursor, and
   gets its receipt then.
5. ``Ack``. After a crash before it the command arrives again, its receipt is written again, and it is acknowledged.

The entry of a broadcast begins with another step instead of 1: it waits, QUEUED, for the device's answer to the one publish
that all members get. The answer may come at any time before step 3, also before the entry or while that is parked; a former
owner's is lost, and without one ``Push`` follows, always with ``repeat=1``.

A command that is not sent (expired, duplicate, not valid) takes steps 4 and 5 alone. A command that push gives up takes
``DeadLetter``, 4, 3 and 5, in this order: no cursor passes it before the dead letter is stored, and it is not acknowledged
before its id is in a cursor.

Parking:

1. ``StoreCursor``, if commands that the broker confirmed are pending again (H26).
2. ``StoreSegment`` → ``segment_stored``: the ids, gathered for ``coalesce_us``. After a crash before it the commands
   arrive again.
3. ``Ack``. After a crash before it the commands arrive again, are found among the parked ones, and are acknowledged.

Replay of a parked command: ``Pull`` → ``Push`` → confirmed → ``StoreReceipt`` → ``StoreCursor`` → the segment is removed
when all of it is settled. The receipt precedes the cursor, because the message is acknowledged already and does not arrive
again to make up for a lost receipt. After a crash in between the command is sent again with ``repeat=1``.

In any order of events: a cursor never passes a command that is neither confirmed nor settled in another way; a device
receives its commands in the order of the log; a command whose id is in a stored cursor is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

__all__ = [
    "COMMAND_TABLE",
    "DEVICE_TABLE",
    "PASSABLE",
    "WAITING",
    "CommandEvent",
    "CommandState",
    "DeviceEvent",
    "IllegalTransitionError",
    "Mode",
    "next_mode",
    "next_state",
]


class IllegalTransitionError(Exception):
    """Raised when an event occurs in a state for which the table does not list it."""


class Mode(IntEnum):
    """Whether a device gets its commands as they arrive."""

    LIVE = 1
    PARKED = 2  # the device is offline: push parks what arrives
    REPLAYING = 3  # push sends the parked commands first, and parks what arrives behind them


class DeviceEvent(IntEnum):
    """What changes the mode of a device."""

    PARK = 1  # the device is absent, or its commands fail; or the sweep of expired commands has ended
    SPILL = 2  # the partition is full: all but the commands under way are parked, and replayed at once
    WAKE = 3  # A sign of life, a probe, or a sweep of expired commands
    DEFER = 4  # the device waited for its probe; relocation of its commands comes first
    CATCH_UP = 5  # no command of the device is parked any more


class CommandState(IntEnum):
    """How far a command is."""

    QUEUED = 1
    IN_FLIGHT = 2  # sent, no PUBACK so far
    AWAITED = 3  # the PUBACK came, the device's answer did not
    CONFIRMED = 4
    DYING = 5  # its dead letter is being stored
    DEAD = 6  # dead letter and receipt are stored
    SETTLED = 7
    NOTED = 8  # its receipt is being stored, which precedes the cursor here
    PARKED = 9  # it waits in Pulsar; its id is stored, or being stored


class CommandEvent(IntEnum):
    """What changes the state of a command."""

    PUSH = 1
    ACCEPT = 2  # the broker's PUBACK, where the device's answer confirms
    CONFIRM = 3
    RETRY = 4  # the command is sent again, or its answer came: it waits no more
    GIVE_UP = 5
    SETTLE = 6
    """Nothing is sent: it expired, is a duplicate, or lost its message. Or the cursor passed it."""
    NOTE = 7  # its receipt is written before the cursor passes it
    BURY = 8  # the receipt of its dead letter is stored
    PARK = 9  # it waits in Pulsar from now on, or again


DEVICE_TABLE: Final[Mapping[Mode, Mapping[DeviceEvent, Mode]]] = {
    Mode.LIVE: {DeviceEvent.PARK: Mode.PARKED, DeviceEvent.SPILL: Mode.REPLAYING},
    Mode.PARKED: {DeviceEvent.WAKE: Mode.REPLAYING},
    Mode.REPLAYING: {DeviceEvent.PARK: Mode.PARKED, DeviceEvent.DEFER: Mode.PARKED, DeviceEvent.CATCH_UP: Mode.LIVE},
}

_S, _E = CommandState, CommandEvent

COMMAND_TABLE: Final[Mapping[CommandState, Mapping[CommandEvent, CommandState]]] = {
    _S.QUEUED: {
        _E.PUSH: _S.IN_FLIGHT,
        _E.CONFIRM: _S.CONFIRMED,
        _E.RETRY: _S.QUEUED,
        _E.GIVE_UP: _S.DYING,
        _E.SETTLE: _S.SETTLED,
        _E.NOTE: _S.NOTED,
        _E.PARK: _S.PARKED,
    },
    _S.IN_FLIGHT: {
        _E.ACCEPT: _S.AWAITED,
        _E.CONFIRM: _S.CONFIRMED,
        _E.RETRY: _S.QUEUED,
        _E.GIVE_UP: _S.DYING,
        _E.SETTLE: _S.SETTLED,
        _E.NOTE: _S.NOTED,
        _E.PARK: _S.PARKED,
    },
    _S.AWAITED: {_E.RETRY: _S.QUEUED},
    _S.CONFIRMED: {_E.NOTE: _S.NOTED, _E.SETTLE: _S.SETTLED, _E.PARK: _S.PARKED},
    _S.NOTED: {_E.CONFIRM: _S.CONFIRMED, _E.SETTLE: _S.SETTLED, _E.BURY: _S.DEAD, _E.PARK: _S.PARKED},
    _S.DYING: {_E.NOTE: _S.NOTED, _E.PARK: _S.PARKED},
    _S.DEAD: {_E.SETTLE: _S.SETTLED, _E.PARK: _S.PARKED},
    _S.SETTLED: {_E.PARK: _S.PARKED},
    _S.PARKED: {},
}

PASSABLE: Final = (CommandState.CONFIRMED, CommandState.DEAD, CommandState.SETTLED)
"""States in which the cursor passes a command."""
WAITING: Final = (CommandState.QUEUED, CommandState.IN_FLIGHT, CommandState.AWAITED)
"""States in which a command needs a push, or the answer to one."""


def next_mode(mode: Mode, event: DeviceEvent) -> Mode:
    """Return the mode after an event. Raises IllegalTransitionError."""
    try:
        return DEVICE_TABLE[mode][event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} of a device that is {mode.name}") from None


def next_state(state: CommandState, event: CommandEvent) -> CommandState:
    """Return the state after an event. Raises IllegalTransitionError."""
    try:
        return COMMAND_TABLE[state][event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} of a command that is {state.name}") from None

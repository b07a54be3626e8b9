"""The commands that push tracks: one, all of a partition by position, and what devices answered late."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from bridge.contract import BROADCAST_STATE, DELIVERIES, Receipt
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition
from bridge.push.limits import Limits
from bridge.push.states import CommandEvent, CommandState, next_state

if TYPE_CHECKING:
    from bridge.push.actions import Outbox

__all__ = ["Answer", "CommandRegistry", "LateAnswers", "TrackedCommand", "receipt_of"]


class Answer(NamedTuple):
    """An answer of a device; of a long one the head."""

    payload: bytes
    length: int
    at_us: int


@dataclass(slots=True, eq=False)
class TrackedCommand:
    """A command that push received from Pulsar. Times in µs since the epoch."""

    position: CommandPosition
    command: Command
    state: CommandState = CommandState.QUEUED
    attempts: int = 0
    maybe_seen: bool = False  # A former owner may have sent it
    pushed_at_us: int = 0
    """The last push. Without one: when the entry of a broadcast came that waits for the answer to that."""
    confirmed_at_us: int = 0
    answer: Answer | None = None
    pulled: bool = False
    """It was parked and was read by position: the subscription has its acknowledgement already."""
    resend: bool = False
    """It was settled before, and is sent again: the device asked for it, or perhaps never had it."""
    listed: bool = False
    """It is among its device's parked commands although it is in flight and not acknowledged."""
    after_receipt: CommandEvent | None = None  # what follows its receipt, where the receipt precedes the cursor
    settled: bool = False  # nothing was sent, and its receipt is written without waiting for the cursor
    size: int = 0  # bytes of its payload that count as pending; 0 for a pulled one
    given_up: tuple[str, str] | None = None
    """State and reason of the receipt, for a valid command that goes to the dead letters."""

    @property
    def maybe_had(self) -> bool:
        """Whether its device may have received it, by this or by a former owner."""
        return self.attempts > 0 or self.maybe_seen

    @property
    def answered_at_us(self) -> int:
        """When its device answered, 0 without an answer."""
        return 0 if self.answer is None else self.answer.at_us

    def on(self, event: CommandEvent) -> None:
        """Change the state. Raises IllegalTransitionError."""
        self.state = next_state(self.state, event)


def receipt_of(tracked: TrackedCommand, partition: int, generation: int, state: str, reason: str) -> Receipt:
    """Return the receipt of a command in a final state; ``generation`` is that of the commands topic. That of a broadcast is one of its group command."""
    command = tracked.command
    answer = tracked.answer or Answer(b"", 0, 0)
    if command.is_broadcast:
        ended = "" if state in DELIVERIES else state
        state, reason = BROADCAST_STATE, ": ".join(one for one in (ended, reason) if one)
    return Receipt(
        command_id=command.ref.command_id if command.is_broadcast and command.ref else command.command_id,
        device="" if command.is_broadcast else command.device,
        mqtt_topic=command.mqtt_topic,
        state=state,
        reason=reason,
        position=tracked.position.encode(partition, generation),
        attempts=tracked.attempts,
        emitted_at_us=command.emitted_at_us,
        pushed_at_us=tracked.pushed_at_us,
        confirmed_at_us=tracked.confirmed_at_us,
        answered_at_us=answer.at_us,
        answer=answer.payload,
        answer_length=answer.length,
        resend_of=command.resend_of,
        group="" if command.ref is None else command.ref.group,
        group_command_id="" if command.ref is None else command.ref.command_id,
    )


class CommandRegistry:
    """All commands that are not settled and acknowledged: by position an unacknowledged message, and a parked one as read."""

    def __init__(self, limits: Limits, horizon: CommandPosition | None, outbox: Outbox) -> None:
        """``horizon``: up to there the former owner may have sent commands; None if it left cleanly."""
        self._horizon = horizon
        self._limits = limits
        self._outbox = outbox
        self._unacknowledged: dict[CommandPosition, TrackedCommand] = {}
        self.pending_bytes = 0
        """The payloads of messages that were received from Pulsar and not acknowledged."""
        self.pulled: dict[CommandPosition, TrackedCommand] = {}
        """Parked commands that were read and are not settled."""
        self._deadlines: list[tuple[int, CommandPosition, int]] = []  # of answers; the attempt they are for
        self.awaited = 0
        """Commands that the broker has confirmed and the device has not answered in its time so far."""
        self.highest = BEFORE_ALL
        """The highest position that came from Pulsar."""

    @property
    def pending(self) -> int:
        """Messages that were received from Pulsar and not acknowledged."""
        return len(self._unacknowledged)

    @property
    def full(self) -> bool:
        """Whether push receives nothing more from Pulsar, for any device."""
        limits = self._limits
        return len(self._unacknowledged) >= limits.pending or self.pending_bytes >= limits.pending_bytes

    @property
    def last(self) -> CommandPosition:
        """The last position that came, to this or to the former owner."""
        return max(self.highest, self._horizon or BEFORE_ALL)

    @property
    def former_left_cleanly(self) -> bool:
        """Whether the former owner has stored a receipt of each command that its cursors have passed."""
        return self._horizon is None

    @property
    def past_horizon(self) -> bool:
        """Whether everything came that the former owner may have sent."""
        return self._horizon is None or self.highest >= self._horizon

    @property
    def oldest_emitted_us(self) -> int:
        """When the oldest command that is not acknowledged was emitted, in µs since the epoch; 0 without one."""
        return next((one.command.emitted_at_us for one in self._unacknowledged.values()), 0)

    @property
    def oldest(self) -> CommandPosition | None:
        """The lowest position that is not acknowledged."""
        return min(self._unacknowledged, default=None)

    def __contains__(self, position: CommandPosition) -> bool:
        return position in self._unacknowledged

    def arrives(self, position: CommandPosition) -> bool:
        """Note that a message came. Returns False when it came before and is not acknowledged."""
        self.highest = max(self.highest, position)
        return position not in self._unacknowledged

    def add(self, tracked: TrackedCommand, size: int | None = None) -> TrackedCommand:
        """Track a message until it is acknowledged. ``size`` is that of its payload if the command lacks it."""
        tracked.size = len(tracked.command.payload) if size is None else size
        self._unacknowledged[tracked.position] = tracked
        self.pending_bytes += tracked.size
        return tracked

    def acknowledge(self, position: CommandPosition) -> TrackedCommand:
        """Acknowledge a message, which is not tracked any more."""
        tracked = self._unacknowledged.pop(position)
        self.pending_bytes -= tracked.size
        tracked.size = 0
        self._outbox.acknowledge(position)
        return tracked

    def at(self, position: CommandPosition) -> TrackedCommand | None:
        """Return the command that may be in flight at ``position``."""
        return self.pulled.get(position) or self._unacknowledged.get(position)

    def written_at(self, position: CommandPosition) -> TrackedCommand | None:
        """Return the command that a receipt or dead letter was written for, None if it waits in Pulsar again."""
        tracked = self._unacknowledged.get(position)
        if tracked is not None and tracked.state is not CommandState.PARKED:  # of two, the first to come wrote first
            return tracked
        return self.pulled.get(position)

    def await_answer(self, tracked: TrackedCommand, due_us: int) -> None:
        """The broker confirmed a command, its device is to answer until ``due_us``."""
        tracked.on(CommandEvent.ACCEPT)
        self.awaited += 1
        heapq.heappush(self._deadlines, (due_us, tracked.position, tracked.attempts))

    def stop_awaiting(self, tracked: TrackedCommand) -> None:
        """The answer came or is late, or the command is parked."""
        if tracked.state is CommandState.AWAITED:
            self.awaited -= 1
            tracked.on(CommandEvent.RETRY)

    @property
    def next_deadline_us(self) -> int | None:
        """When the next answer is due, None without one."""
        return self._deadlines[0][0] if self._deadlines else None

    def pop_overdue(self, now_us: int) -> TrackedCommand | None:
        """Return a command whose answer did not come in its time, None without one."""
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, position, attempt = heapq.heappop(self._deadlines)
            tracked = self.at(position)
            if tracked is not None and tracked.state is CommandState.AWAITED and tracked.attempts == attempt:
                self.stop_awaiting(tracked)
                return tracked
        return None


_ATTEMPTS: Final = 20_000
_ANSWERS: Final = 1000
_BROADCAST_BYTES: Final = 64 * 1024 * 1024
"""Answers to broadcasts: some 90,000 short ones. Devices name themselves (H35)."""

V = TypeVar("V")


class _Attempt(NamedTuple):
    device: str
    attempts: int
    pushed_at_us: int
    confirmed_at_us: int


class LateAnswers:
    """The commands that were sent without an answer, and the answers that came late.

    An answer names a position. The owner remembers whose command that is for the last commands that it sent without an
    answer, and the last answers to them. Both lists are bounded; a forgotten command is sent again, marked as a
    repetition. The answer to a broadcast names the group command instead, and most come before the entry of their device.
    """

    def __init__(self, *, answers: bool) -> None:
        """``answers``: whether the answers of devices confirm."""
        self._enabled = answers
        self._attempts: OrderedDict[CommandPosition, _Attempt] = OrderedDict()
        self._answers: OrderedDict[CommandPosition, Answer] = OrderedDict()
        self._broadcasts: OrderedDict[str, dict[CommandPosition, Answer]] = OrderedDict()  # by device
        self._bytes = 0  # of these, about

    def attempted(self, tracked: TrackedCommand) -> None:
        """A command, which may have been sent, waits in Pulsar again."""
        if not self._enabled or not tracked.attempts:
            return
        one = _Attempt(tracked.command.device, tracked.attempts, tracked.pushed_at_us, tracked.confirmed_at_us)
        _put(self._attempts, tracked.position, one, _ATTEMPTS)
        if tracked.state is CommandState.CONFIRMED:  # the cursor has not passed it
            self.give(tracked.position, tracked.answer or Answer(b"", 0, 0))

    def device_of(self, position: CommandPosition) -> str | None:
        """Return whose command it is, None when it was not sent, or is forgotten."""
        found = self._attempts.get(position)
        return None if found is None else found.device

    def give(self, position: CommandPosition, answer: Answer) -> None:
        """The device has answered a command that waits in Pulsar."""
        _put(self._answers, position, answer, _ANSWERS)

    def give_broadcast(self, device: str, position: CommandPosition, answer: Answer) -> None:
        """A device has answered the broadcast of the group command at ``position``, and its entry is not in memory."""
        theirs = self._broadcasts.setdefault(device, {})
        self._bytes += 0 if position in theirs else _size(device, answer)
        theirs.setdefault(position, answer)
        self._broadcasts.move_to_end(device)
        while self._bytes > _BROADCAST_BYTES:
            self._forget_broadcasts(next(iter(self._broadcasts)))

    def _take_broadcast(self, command: Command) -> Answer | None:
        theirs = self._broadcasts.get(command.device) if command.ref is not None and command.was_broadcast else None
        if not theirs or command.ref is None or command.ref.position not in theirs:
            return None
        answer = theirs.pop(command.ref.position)
        self._bytes -= _size(command.device, answer)
        if not theirs:
            del self._broadcasts[command.device]
        return answer

    def _forget_broadcasts(self, device: str) -> None:
        for answer in self._broadcasts.pop(device, {}).values():
            self._bytes -= _size(device, answer)

    def settle(self, tracked: TrackedCommand) -> bool:
        """Give a command the answer that came before it. Returns whether there was one."""
        answer = self._answers.pop(tracked.position, None)
        if answer is None:
            answer = self._take_broadcast(tracked.command)
        if answer is None:
            return False
        attempt = self._attempts.pop(tracked.position, None)
        if attempt is not None:
            tracked.attempts = max(tracked.attempts, attempt.attempts)
            tracked.pushed_at_us, tracked.confirmed_at_us = attempt.pushed_at_us, attempt.confirmed_at_us
        tracked.attempts = max(1, tracked.attempts)  # a broadcast is one
        tracked.answer = answer
        return True

    def forget_device(self, name: str) -> None:
        """The device wants its commands again, answered or not."""
        self._forget_broadcasts(name)
        for position in [position for position, one in self._attempts.items() if one.device == name]:
            self.forget(position)

    def forget(self, position: CommandPosition) -> None:
        """The command is settled."""
        self._attempts.pop(position, None)
        self._answers.pop(position, None)


def _size(device: str, answer: Answer) -> int:
    return 700 + 4 * len(device) + len(answer.payload)


def _put(into: OrderedDict[CommandPosition, V], position: CommandPosition, value: V, most: int) -> None:
    into[position] = value
    into.move_to_end(position)
    if len(into) > most:
        into.popitem(last=False)

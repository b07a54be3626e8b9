"""A command that push tracks, and its receipt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.contract import Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.push.states import CommandEvent, CommandState, next_state

__all__ = ["Answer", "TrackedCommand", "receipt_of"]


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
    maybe_seen: bool = False
    """A former owner may have sent it."""
    pushed_at_us: int = 0
    confirmed_at_us: int = 0
    answer: Answer | None = None
    pulled: bool = False
    """It was parked and was read by position: the subscription has its acknowledgement already."""
    resend: bool = False
    """It was settled before, and is sent again: the device asked for it, or perhaps never had it."""
    listed: bool = False
    """It is among its device's parked commands although it is in flight and not acknowledged."""
    after_receipt: CommandEvent | None = None
    """What follows its receipt, where the receipt precedes the cursor."""
    settled: bool = False
    """Nothing was sent, and its receipt is written without waiting for the cursor."""
    size: int = 0
    """Bytes of its payload that count as pending; 0 for a pulled one."""
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

    def drop_payloads(self) -> None:
        """Release the memory of the payloads, which the receipt contains."""
        self.command = replace(self.command, payload=b"")
        if self.answer is not None:
            self.answer = self.answer._replace(payload=b"")


def receipt_of(tracked: TrackedCommand, partition: int, state: str, reason: str) -> Receipt:
    """Return the receipt of a command in a final state."""
    command = tracked.command
    answer = tracked.answer or Answer(b"", 0, 0)
    return Receipt(
        command_id=command.command_id,
        device=command.device,
        mqtt_topic=command.mqtt_topic,
        state=state,
        reason=reason,
        position=tracked.position.encode(partition),
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

"""Answers of devices to commands that wait in Pulsar again.

An answer names a position. The owner remembers whose command that is for the last commands that it sent without an answer,
and the last answers to them. Both lists are bounded; a forgotten command is sent again, marked as a repetition.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

from bridge.contract.commands import CommandPosition
from bridge.push.command import Answer, TrackedCommand
from bridge.push.states import CommandState

__all__ = ["LateAnswers"]

_ATTEMPTS: Final = 20_000
_ANSWERS: Final = 1000

V = TypeVar("V")


class _Attempt(NamedTuple):
    device: str
    attempts: int
    pushed_at_us: int
    confirmed_at_us: int


class LateAnswers:
    """The commands that were sent without an answer, and the answers that came late."""

    def __init__(self, *, answers: bool) -> None:
        """``answers``: whether the answers of devices confirm."""
        self._enabled = answers
        self._attempts: OrderedDict[CommandPosition, _Attempt] = OrderedDict()
        self._answers: OrderedDict[CommandPosition, Answer] = OrderedDict()

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

    def settle(self, tracked: TrackedCommand) -> bool:
        """Give a pulled command the answer that came before it. Returns whether there was one."""
        attempt = self._attempts.pop(tracked.position, None)
        answer = self._answers.pop(tracked.position, None)
        if answer is None:
            if attempt is not None:
                self._attempts[tracked.position] = attempt
            return False
        if attempt is not None:
            tracked.attempts = max(tracked.attempts, attempt.attempts)
            tracked.pushed_at_us, tracked.confirmed_at_us = attempt.pushed_at_us, attempt.confirmed_at_us
        tracked.answer = answer
        return True

    def forget_device(self, name: str) -> None:
        """The device wants its commands again, answered or not."""
        for position in [position for position, one in self._attempts.items() if one.device == name]:
            self.forget(position)

    def forget(self, position: CommandPosition) -> None:
        """The command is settled."""
        self._attempts.pop(position, None)
        self._answers.pop(position, None)


def _put(into: OrderedDict[CommandPosition, V], position: CommandPosition, value: V, most: int) -> None:
    into[position] = value
    into.move_to_end(position)
    if len(into) > most:
        into.popitem(last=False)

"""Answers that come after their command's time is over, when it waits in Pulsar again. Pure.

An answer names a position; whose command that is, is remembered for those that were pushed by this owner and not
answered. The last ones, that is: both lists are bounded, and what is forgotten is pushed once more, marked.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

from bridge.contract.commands import CommandPosition
from tests.support.push_oracle.queues import Item

__all__ = ["Given", "LateAnswers"]

_TRIED: Final = 20_000
_GIVEN: Final = 1000

V = TypeVar("V")


class _Try(NamedTuple):
    device: str
    attempts: int
    pushed_at_us: int
    confirmed_at_us: int


class Given(NamedTuple):
    """An answer, its head where it is long."""

    payload: bytes
    length: int
    at_us: int


class LateAnswers:
    """What was pushed in vain, and what was answered all the same."""

    def __init__(self) -> None:
        self._tried: OrderedDict[CommandPosition, _Try] = OrderedDict()
        self._given: OrderedDict[CommandPosition, Given] = OrderedDict()

    def tried(self, item: Item) -> None:
        """A command that was pushed goes back to waiting in Pulsar."""
        one = _Try(item.command.device, item.attempts, item.pushed_at_us, item.confirmed_at_us)
        _put(self._tried, item.position, one, _TRIED)

    def device_of(self, position: CommandPosition) -> str | None:
        """Return whose command it is, None when it was not tried, or is not known any more."""
        found = self._tried.get(position)
        return None if found is None else found.device

    def give(self, position: CommandPosition, given: Given) -> None:
        """The device has answered a command that is not here."""
        _put(self._given, position, given, _GIVEN)

    def settle(self, item: Item) -> bool:
        """Give a command that was pulled the answer that came before it. Returns whether there was one."""
        tried = self._tried.pop(item.position, None)
        given = self._given.pop(item.position, None)
        if given is None:
            if tried is not None:
                self._tried[item.position] = tried
            return False
        if tried is not None:
            item.attempts = max(item.attempts, tried.attempts)
            item.pushed_at_us, item.confirmed_at_us = tried.pushed_at_us, tried.confirmed_at_us
        item.answer, item.answer_length, item.answered_at_us = given
        return True

    def forget_device(self, name: str) -> None:
        """The device wants its commands once more, answered or not."""
        for position in [place for place, one in self._tried.items() if one.device == name]:
            self.forget(position)

    def forget(self, position: CommandPosition) -> None:
        """The command is done with."""
        self._tried.pop(position, None)
        self._given.pop(position, None)


def _put(into: OrderedDict[CommandPosition, V], position: CommandPosition, value: V, most: int) -> None:
    into[position] = value
    into.move_to_end(position)
    if len(into) > most:
        into.popitem(last=False)

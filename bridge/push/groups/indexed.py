"""Pushes of group entries: each waits for the payload of its group command, and later pushes to its device wait as well.

Each partition has one; all calls are made on its thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from bridge.contract.commands import CommandPosition
from bridge.push.actions import Push

__all__ = ["GONE", "Indexed", "Lost"]

GONE: Final = "the payload of the group command is not in Pulsar any more"


@dataclass(frozen=True, slots=True)
class Lost:
    """A push that cannot be made; ``number`` as the core knows it."""

    number: int


class Indexed:
    """Gives each push its payload, in the order of its device."""

    def __init__(self, ask: Callable[[CommandPosition], bytes | None]) -> None:
        """``ask`` returns a payload, or None and calls for ``came``."""
        self._ask = ask
        self._waiting: dict[str, deque[Push]] = {}  # by device; the first one's payload is asked for
        self._for: dict[CommandPosition, list[str]] = {}  # devices whose first one waits for this payload

    def add(self, push: Push) -> Iterator[Push]:
        """Yield the push with its payload, or nothing yet."""
        device = push.command.device
        if device in self._waiting:
            self._waiting[device].append(push)
            return
        found = self._ready(push, {})
        if isinstance(found, Push):
            yield found
        else:
            self._waiting[device] = deque([push])

    def came(self, position: CommandPosition, payload: bytes | None) -> Iterator[Push | Lost]:
        """Yield what can be pushed now that a payload is here, or turned out to be lost (None).

        The caller may take the next one later: what is added for a device meanwhile waits behind.
        """
        for device in self._for.pop(position, []):
            waiting = self._waiting[device]
            while waiting:
                found = self._ready(waiting[0], {position: payload})
                if found is None:
                    break
                waiting.popleft()
                yield found
            else:
                del self._waiting[device]

    def forget(self) -> None:
        """The connection ended: nothing that waits is pushed; the core says again what is to be pushed."""
        self._waiting.clear()
        self._for.clear()

    def _ready(self, push: Push, here: dict[CommandPosition, bytes | None]) -> Push | Lost | None:
        ref = push.command.ref
        if ref is None:
            return push
        if ref.position in here:
            payload = here[ref.position]
            if payload is None:
                return Lost(push.number)
        else:
            # Noted first: the answer may be on its way before ``ask`` returns, and is handled after this.
            payload = self._ask(ref.position)
            if payload is None:
                self._for.setdefault(ref.position, []).append(push.command.device)
                return None
        return replace(push, command=replace(push.command, payload=payload))

"""The actions that a partition's core has decided, until the shell takes them."""

from __future__ import annotations

from bridge.contract.commands import CommandPosition
from bridge.push.actions import Action, DeadLetter, StoreCursor, StoreReceipt, StoreSegment
from bridge.push.command import TrackedCommand, receipt_of

__all__ = ["Outbox"]


class Outbox:
    """Actions in the order in which the shell is to begin them."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
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

    def stored(self) -> None:
        """Pulsar has answered a write."""
        self.writes -= 1

    def store_cursor(self, device: str, records: tuple[tuple[str, bytes], ...]) -> None:
        """Write a device's cursor."""
        self._write(StoreCursor(device, records))

    def store_receipt(self, tracked: TrackedCommand, state: str, reason: str) -> None:
        """Write the receipt of a command, which needs its payload no more."""
        self._write(StoreReceipt(tracked.position, receipt_of(tracked, self._partition, state, reason)))
        tracked.drop_payloads()

    def store_dead_letter(self, position: CommandPosition, device: str, reason: str) -> None:
        """Write a message to the dead letters."""
        self._write(DeadLetter(position, device, reason))

    def store_segment(
        self, key: str, payload: bytes, parked: tuple[CommandPosition, ...] = (), *, relocation: int = 0
    ) -> None:
        """Write a segment."""
        self._write(StoreSegment(key, payload, parked, relocation))

    def remove_segment(self, key: str) -> None:
        """Remove a segment."""
        self._write(StoreSegment(key, b""))

    def _write(self, action: Action) -> None:
        self.writes += 1
        self._actions.append(action)

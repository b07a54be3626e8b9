"""Waits for the receipts of commands that this process writes: to devices, and to groups with all their members."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.contract import BROADCAST_STATE, RECEIPTS_TOPIC, REMARKS, Receipt
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.partitioning import partition_of
from bridge.errors import ContractError, TerminalError
from bridge.pulsar.client import EARLIEST, PulsarClient, message_id, received
from bridge.pulsar.messages import position_of
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import ledgers_of

__all__ = ["Awaited", "ReceiptsSince"]

_READ_MS: Final = 50
_TURN: Final = 1000


@dataclass(slots=True)
class _Members:
    count: int | None = None
    """Their number; None until the command is expanded."""
    ended: set[str] = field(default_factory=set)


class Awaited:
    """Commands without a receipt that ends them. Pure.

    A receipt ``duplicate`` ends a command as well: an earlier message of the same id decides what the device gets.
    """

    def __init__(self) -> None:
        self._devices: set[tuple[str, str]] = set()
        self._groups: dict[tuple[str, str], _Members] = {}

    def __len__(self) -> int:
        return len(self._devices) + len(self._groups)

    def add(self, command_id: str, *, device: str = "", group: str = "") -> None:
        """Await a command to a device, or to a group. The latter ends with the last of its members."""
        if group:
            self._groups.setdefault((group, command_id), _Members())
        else:
            self._devices.add((device, command_id))

    def take(self, receipt: Receipt) -> bool:
        """Take a receipt. Returns whether it ends an awaited command, or concerns an awaited command to a group."""
        of_group = receipt.group, receipt.group_command_id
        members = self._groups.get(of_group)
        if members is None:
            known = (receipt.device, receipt.command_id) in self._devices
            self._devices.discard((receipt.device, receipt.command_id))
            return known
        if receipt.state == BROADCAST_STATE:
            return True
        if not receipt.device:
            members.count = receipt.members if receipt.state == "expanded" else 0
        elif receipt.state in REMARKS or receipt.device in members.ended:
            return False
        else:
            members.ended.add(receipt.device)
        if members.count is not None and len(members.ended) >= members.count:
            del self._groups[of_group]
        return True

    def partitions(self, count: int) -> list[int]:
        """Return the partitions of the receipts, of ``count``, that have the receipts of these commands."""
        if self._groups:
            return list(range(count))
        return sorted({partition_of(device, count) for device, _ in self._devices})


class ReceiptsSince:
    """Receipts that push writes from now on. Create it before the first command is written."""

    def __init__(self, client: PulsarClient) -> None:
        """Raises TerminalError without the topic, or if Pulsar's admin does not list its ledgers."""
        self._client = client
        topic = client.settings.system_topic(RECEIPTS_TOPIC)
        self._ends = {name: self._end(name) for name in client.partitioned(topic)}
        if not self._ends:
            raise TerminalError(
                f"the topic {topic} does not exist", remedy="`pulsebridge push` creates it at its start"
            )

    def read(self, awaited: Awaited, timeout_s: float) -> Iterator[Receipt]:
        """Yield the receipts of awaited commands as they arrive, until all have ended, for at most ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        names = list(self._ends)
        readers = {names[n]: self._reader(n, names[n]) for n in awaited.partitions(len(names))}
        try:
            while awaited and time.monotonic() < deadline:
                for name, reader in readers.items():
                    for _ in range(_TURN):
                        message = received(reader.read_next, _READ_MS, f"reading {name}")
                        if message is None:
                            break
                        if position_of(message.message_id())[:2] <= self._ends[name][:2]:
                            continue  # a reader begins with the whole entry at its start
                        try:
                            receipt = Receipt.decode(message.data())
                        except ContractError:
                            continue  # of another program
                        if awaited.take(receipt):
                            yield receipt
        finally:
            for reader in readers.values():
                close_quietly(reader)

    def _end(self, name: str) -> CommandPosition:
        ledgers = ledgers_of(self._client.settings, name)
        if ledgers is None:
            raise TerminalError(
                f"Pulsar's admin does not list the ledgers of {name}, so its end is not known",
                remedy="grant consume on the system namespace, or do not wait for receipts",
            )
        return ledgers.end

    def _reader(self, number: int, name: str) -> Any:
        end = self._ends[name]
        start = EARLIEST if end == BEFORE_ALL else message_id(number, end.ledger, end.entry, -1)
        return self._client.reader(name, start, inclusive=False)

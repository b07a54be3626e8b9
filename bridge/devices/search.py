"""Finds commands and what became of them: in the receipts, then in the log, then among the dead letters.

Receipts tell the device, and with it the partition, and where the command stands; so of the log only that partition is
read, from there on. A command without a receipt is looked for in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from bridge.commands import Command, CommandPosition, decode_command
from bridge.contract import COMMANDS_TOPIC, RECEIPTS_TOPIC, Receipt
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.records import DeadLetter
from bridge.devices.history import Family, candidates, named_like_a_copy, root_of, whole
from bridge.devices.reading import PushTopics
from bridge.errors import ContractError, TerminalError
from bridge.murmur3 import partition_of
from bridge.push.taken import key_of, position_of

__all__ = ["Search"]


class Search:
    """One look. Raises TransientError while Pulsar cannot be reached."""

    def __init__(self, topics: PushTopics) -> None:
        self._topics = topics
        self._families: dict[str, Family] = {}

    def by_id(self, command_ids: Collection[str], device: str = "", *, letters: bool = False) -> list[Family]:
        """Return the family of each command, once, in the order of the log; one that is found nowhere has no copy but
        itself. ``device`` is whose they are, where that is known; ``letters``: look among the dead letters in any case.
        """
        roots = {root for one in command_ids for root in candidates(one)}
        self._families = {root: Family(root) for root in sorted(roots)}
        self._read_receipts(device)
        self._read_log([self._family_of(one) for one in command_ids], device)
        found: dict[str, Family] = {}
        for command_id in command_ids:
            family = self._family_of(command_id)
            family.copy(command_id)
            found[family.root] = family
        return self._with_letters(found.values(), always=letters)

    def by_state(self, device: str, states: Collection[str]) -> list[Family]:
        """Return the commands of a device whose newest copy ended in one of these states, in the order of the log."""
        self._families = {}
        self._read_receipts(device, states)
        self._read_log(self._families.values(), device)
        wanted = [one for one in self._families.values() if one.newest.state in states]
        return self._with_letters(wanted, always=False)

    def _family_of(self, command_id: str) -> Family:
        for root in sorted(candidates(command_id), key=len):
            if command_id in self._families[root].copies:
                return self._families[root]
        return self._families[command_id]

    def _read_receipts(self, device: str, states: Collection[str] = ()) -> None:
        for partition in self._partitions_of(RECEIPTS_TOPIC, device):
            for message in self._topics.scan(RECEIPTS_TOPIC, partition):
                if device and key_of(message) != device:
                    continue
                with suppress(ContractError):
                    self._take_receipt(Receipt.decode(message.data()), states)

    def _take_receipt(self, receipt: Receipt, states: Collection[str]) -> None:
        root = receipt.resend_of or receipt.command_id
        if receipt.state in states:
            self._families.setdefault(root, Family(root))
        if root in self._families:
            self._families[root].take_receipt(receipt)
        self._note(root)

    def _note(self, root: str) -> None:
        """Note a command that is called as a copy of another one would be."""
        named = named_like_a_copy(root)
        if named is not None and named[0] in self._families:
            self._families[named[0]].taken.add(named[1])

    def _read_log(self, wanted: Iterable[Family], device: str) -> None:
        for partition, start in self._where(wanted, device).items():
            for message in self._topics.scan(COMMANDS_TOPIC, partition, start=start, queue=100):
                properties = message.properties()
                self._note(root_of(properties))
                family = self._families.get(root_of(properties))
                if family is not None:
                    with suppress(ContractError):  # one that is no command is among the dead letters
                        command = decode_command(properties, message.data())
                        family.take_command(partition, position_of(message.message_id()), command)

    def _where(self, wanted: Iterable[Family], device: str) -> dict[int, CommandPosition | None]:
        """Return which partitions are to be read, each from where; None: from its beginning."""
        starts: dict[int, CommandPosition | None] = {}
        for family in wanted:
            receipts = [one for copy in family.copies.values() for one in copy.receipts]
            known = device or (receipts[0].device if receipts else "")
            if not known:
                return dict.fromkeys(range(self._topics.partitions))
            partition, first = self._topics.partition_of(known), _first(receipts)
            so_far = starts.get(partition, first)
            starts[partition] = None if first is None or so_far is None else min(first, so_far)
        return starts

    def _with_letters(self, families: Iterable[Family], *, always: bool) -> list[Family]:
        found = sorted(families, key=lambda one: (one.place, one.root))
        wanted = [
            one
            for one in found
            if always or not any(copy.command is not None for copy in one.copies.values())
        ]
        with suppress(TerminalError):  # no dead letter was ever written
            log = DeadLetterLog(self._topics.client)
            by_root = {one.root: one for one in wanted if one.device}
            partitions = {partition_of(one.device, len(log.partitions)) for one in by_root.values()}
            for partition in sorted(partitions):
                for record in log.scan(partition):
                    if isinstance(record, DeadLetter):
                        family = by_root.get(root_of(record.told))
                        if family is not None:
                            family.take_letter(record, _command_of(record))
        return found

    def _partitions_of(self, local: str, device: str) -> list[int]:
        count = self._topics.count(local)
        return [partition_of(device, count)] if device and count else list(range(count))


def _first(receipts: list[Receipt]) -> CommandPosition | None:
    positions = []
    for one in receipts:
        with suppress(ContractError):
            positions.append(CommandPosition.decode(one.position)[2])
    return min(positions, default=None)


def _command_of(letter: DeadLetter) -> Command | None:
    if not whole(letter):
        return None
    try:
        return decode_command(letter.told, letter.payload)
    except ContractError:
        return None

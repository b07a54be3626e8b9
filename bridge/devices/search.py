"""Finds commands and what became of them: in the receipts, then in the log, then among the commands that were moved
because their devices are away for long, then among those to groups, then among the dead letters.

A command is known by its id and its device. Where the device is given, one partition of each topic is read, and of the
log only what stands behind the command's first place, which its receipts tell. Without it everything is: an id may
stand for commands of many devices, some of which have no receipt yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal

from bridge.commands import Command, CommandPosition, read_command
from bridge.contract import (
    C_DEVICE,
    C_GROUP,
    C_ID,
    COMMANDS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    GROUP_ROSTER_TOPIC,
    PARKED_TOPIC,
    RECEIPTS_TOPIC,
    Receipt,
)
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.records import DeadLetter
from bridge.devices.history import Family, InGroup, candidates, named_like_a_copy, root_of, whole
from bridge.devices.reading import PushTopics
from bridge.errors import ContractError, TerminalError
from bridge.murmur3 import partition_of
from bridge.pulsar_client import NO_TEXT, key_of, properties_of
from bridge.push.groups.roster import Progress, Roster
from bridge.push.taken import position_of

__all__ = ["Search"]

_PROGRESS: Final = '["progress"'


class Search:
    """One look. Raises TransientError while Pulsar cannot be reached."""

    def __init__(self, topics: PushTopics) -> None:
        self._topics = topics
        self._families: dict[tuple[str, str], Family] = {}
        self._roots: set[str] = set()
        self._named: dict[tuple[str, str], set[int]] = {}
        """Commands that are called as copies of others would be: of which command and device, which numbers."""
        self.left_out: list[str] = []
        """What stands among the commands and was not read: where, and why."""

    def by_id(self, command_ids: Collection[str], device: str = "", *, letters: bool = False) -> list[Family]:
        """Return the family of each command, once, in the order of the log; one of each device that has such a command.
        One that is found nowhere has no copy but itself. ``device`` is whose they are, where that is known; ``letters``:
        look among the dead letters in any case.
        """
        self._begin({root for one in command_ids for root in candidates(one)})
        self._read_receipts(device)
        known = {one: self._called(one) for one in command_ids}
        from_start = not device or not all(known.values())
        firsts = [] if from_start else [family for them in known.values() for family in them]
        self._read_log(device, self._starts(firsts) or dict.fromkeys(self._commands_of(device)))
        if not device or not self._all_found(command_ids):
            self._read_moved(device)
        if not device and not self._all_found(command_ids):
            self._read_groups()
        if letters or not self._all_found(command_ids):
            self._read_letters(device)
        found: dict[tuple[str, str], Family] = {}
        for command_id in command_ids:
            for family in self._called(command_id) or [Family(command_id, device)]:
                family.copy(command_id)
                family.asked.add(command_id)
                found[family.key] = family
        return self._in_order(found.values())

    def by_state(self, device: str, states: Collection[str], *, group: str = "", since_us: int = 0) -> list[Family]:
        """Return the commands whose newest copy ended in one of these states, in the order of the log: of a device, or of
        the members of a group, or those alone that a device has as a member. ``since_us``: only what was emitted at this
        time or later, in µs since the epoch.
        """
        self._begin(set())
        self._read_receipts(device, states, group)
        if not self._families:
            return []
        self._read_log(device, self._starts(self._families.values()))
        wanted = [
            one for one in self._families.values() if one.newest.state in states and one.emitted_at_us >= since_us
        ]
        for read in (self._read_moved, self._read_letters):
            if not _have_content(wanted):
                read(device)
        return self._in_order(wanted)

    def _all_found(self, command_ids: Iterable[str]) -> bool:
        """Whether something is known of each, and its command stands where it was read."""
        return all(found and _have_content(found) for found in map(self._called, command_ids))

    def _begin(self, roots: set[str]) -> None:
        self._families, self._roots, self._named = {}, roots, {}
        self.left_out = []

    def _called(self, command_id: str) -> list[Family]:
        """Return the families that have a command of this id, one of each device."""
        found: dict[str, Family] = {}
        for root in sorted(candidates(command_id), key=len):
            for family in self._families.values():
                if family.root == root and command_id in family.copies:
                    found.setdefault(family.device, family)
        return list(found.values())

    def _family(self, root: str, device: str) -> Family | None:
        """Return a family that is wanted, new where it was not known."""
        if root in self._roots:
            return self._families.setdefault((root, device), Family(root, device))
        return self._families.get((root, device))

    def _in_order(self, families: Iterable[Family]) -> list[Family]:
        found = sorted(families, key=lambda one: (one.place, one.key))
        for family in found:
            family.taken |= self._named.get(family.key, set())
        return found

    def _read_receipts(self, device: str, states: Collection[str] = (), group: str = "") -> None:
        for partition in self._partitions_of(RECEIPTS_TOPIC, device):
            for message in self._topics.scan(RECEIPTS_TOPIC, partition):
                if device and key_of(message) != device:
                    continue
                with suppress(ContractError):
                    receipt = Receipt.decode(message.data())
                    if not device or receipt.device == device:  # else of a group that is called so
                        begins = receipt.state in states and group in ("", receipt.group)
                        self._take_receipt(receipt, begins=begins and bool(receipt.device))

    def _take_receipt(self, receipt: Receipt, *, begins: bool) -> None:
        """Take a receipt of what is wanted, which it is from this one on where it ``begins`` a family."""
        root, device = receipt.resend_of or receipt.command_id, receipt.device
        if begins:
            self._families.setdefault((root, device), Family(root, device))
        family = self._family(root, device)
        if family is not None:
            family.take_receipt(receipt)
        self._note(root, device)

    def _note(self, root: str, device: str) -> None:
        """Note a command that is called as a copy of another one would be."""
        named = named_like_a_copy(root)
        if named is not None and (not self._roots or named[0] in self._roots):
            self._named.setdefault((named[0], device), set()).add(named[1])

    def _read_log(self, device: str, starts: Mapping[int, CommandPosition | None]) -> None:
        """Read these partitions, each from a place on, or from its beginning."""
        for partition, position, command in self._commands(COMMANDS_TOPIC, device, starts):
            self._families[_key_of(command)].take_command(partition, position, command)

    def _starts(self, families: Iterable[Family]) -> dict[int, CommandPosition | None]:
        """Return where the commands of these families may stand, as far as their receipts tell."""
        starts: dict[int, CommandPosition | None] = {}
        for family in families:
            partition, first = self._topics.partition_of(family.device), _first(family)
            so_far = starts.get(partition, first)
            starts[partition] = None if first is None or so_far is None else min(first, so_far)
        return starts

    def _read_moved(self, device: str) -> None:
        starts = dict.fromkeys(one for one in self._commands_of(device) if one < self._topics.count(PARKED_TOPIC))
        for partition, place, command in self._commands(PARKED_TOPIC, device, starts):
            self._families[_key_of(command)].take_moved(partition, place, command)

    def _commands(
        self, local: str, device: str, starts: Mapping[int, CommandPosition | None]
    ) -> Iterator[tuple[int, CommandPosition, Command]]:
        """Yield the commands that are wanted, each with the place where it stands; its family is there."""
        for partition, start in starts.items():
            for message in self._topics.scan(local, partition, start=start, queue=100):
                position, properties = position_of(message.message_id()), properties_of(message)
                if properties is None:
                    self._leave_out(local, partition, position, NO_TEXT)
                    continue
                whose = properties.get(C_DEVICE, "")
                self._note(root_of(properties), whose)
                if (device and whose != device) or not self._wants(root_of(properties), whose):
                    continue
                try:
                    command = read_command(properties, message.data())
                except ContractError as e:
                    self._leave_out(local, partition, position, e.what)
                    continue
                self._family(*_key_of(command))
                yield partition, position, command

    def _leave_out(self, local: str, partition: int, position: CommandPosition, why: str) -> None:
        self.left_out.append(f"{position.encode(partition)} of {local}: {why}")

    def _wants(self, root: str, device: str) -> bool:
        return root in self._roots or (root, device) in self._families

    def _commands_of(self, device: str) -> list[int]:
        return [self._topics.partition_of(device)] if device else list(range(self._topics.partitions))

    def _read_groups(self) -> None:
        """Read the commands to groups: one that was not given to its members yet has no receipt, and no entry."""
        if not self._topics.count(GROUP_COMMANDS_TOPIC):
            return
        found: list[tuple[str, str, CommandPosition]] = []
        for message in self._topics.scan(GROUP_COMMANDS_TOPIC, 0, queue=100):
            position, properties = position_of(message.message_id()), properties_of(message)
            if properties is None:
                self._leave_out(GROUP_COMMANDS_TOPIC, 0, position, NO_TEXT)
            elif (command_id := properties.get(C_ID, "")) in self._roots:
                found.append((command_id, properties.get(C_GROUP, ""), position))
        progress = self._progress_of_groups() if found else Progress()
        for command_id, group, position in found:
            family = self._family(command_id, "")
            assert family is not None
            how: Literal["waiting", "begun", "done"] = "done" if position <= progress.done else "waiting"
            family.take_in_group(command_id, InGroup(group, 0, position, "begun" if position == progress.at else how))

    def _progress_of_groups(self) -> Progress:
        roster = Roster()
        if self._topics.count(GROUP_ROSTER_TOPIC):
            for key, payload in self._topics.keyed(GROUP_ROSTER_TOPIC, 0):
                if key.startswith(_PROGRESS):  # of the members there may be many
                    with suppress(ContractError):
                        roster.take(key, payload)
        return roster.progress

    def _read_letters(self, device: str) -> None:
        with suppress(TerminalError):  # no dead letter was ever written
            log = DeadLetterLog(self._topics.client)
            count = len(log.partitions)
            for partition in [partition_of(device, count)] if device else range(count):
                for record in log.scan(partition):
                    if not isinstance(record, DeadLetter) or C_ID not in record.told:
                        continue
                    # Of a command to a group the letter has the group's name as its device.
                    whose = record.device if C_DEVICE in record.told or C_GROUP not in record.told else ""
                    if not device or whose == device:
                        family = self._family(root_of(record.told), whose)
                        if family is not None:
                            family.take_letter(record, _command_of(record))

    def _partitions_of(self, local: str, device: str) -> list[int]:
        count = self._topics.count(local)
        return [partition_of(device, count)] if device and count else list(range(count))


def _key_of(command: Command) -> tuple[str, str]:
    return command.resend_of or command.command_id, command.device


def _have_content(families: Iterable[Family]) -> bool:
    return all(any(copy.command is not None for copy in one.copies.values()) for one in families)


def _first(family: Family) -> CommandPosition | None:
    positions = []
    for copy in family.copies.values():
        for one in copy.receipts:
            with suppress(ContractError):
                positions.append(CommandPosition.decode(one.position)[2])
    return min(positions, default=None)


def _command_of(letter: DeadLetter) -> Command | None:
    if not whole(letter):
        return None
    try:
        return read_command(letter.told, letter.payload)
    except ContractError:
        return None

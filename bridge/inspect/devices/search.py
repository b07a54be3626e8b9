"""Search for commands and their history.

It reads the receipts, the log, the relocated commands, the group commands and the dead letters, in this order. Push
relocates commands if their device is offline for long. Id and device together identify a command. With a device, it
reads one partition of each topic, and the log only from the command's first position, which its receipts contain.
Without one, it reads all partitions: many devices may have a command with the id, and some of these may lack a receipt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final, Literal

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
from bridge.contract.commands import Command, CommandPosition, read_command
from bridge.contract.partitioning import partition_of
from bridge.dead_letters.history import Family, InGroup, candidates, named_like_a_copy, root_of, whole
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.records import DeadLetter
from bridge.errors import ContractError, TerminalError
from bridge.inspect.devices.reading import PushTopics
from bridge.pulsar.client import NO_TEXT, key_of, properties_of
from bridge.pulsar.messages import position_of
from bridge.push.groups.roster import Progress, Roster

__all__ = ["Search"]

_PROGRESS: Final = '["progress"'


class Search:
    """One search. Raises TransientError while Pulsar cannot be reached."""

    def __init__(self, topics: PushTopics) -> None:
        self._topics = topics
        self._families: dict[tuple[str, str], Family] = {}
        self._roots: set[str] = set()
        self._named: dict[tuple[str, str], set[int]] = {}
        """First id and device → numbers of commands whose ids have the form of a copy's id."""
        self.left_out: list[str] = []
        """Position and reason of each unreadable message among the commands."""

    def by_id(self, command_ids: Collection[str], device: str = "", *, letters: bool = False) -> list[Family]:
        """Return the families of the commands in the order of the log.

        Each device that has such a command has a family. A command that is not found is a family of itself. ``device``
        is its device, empty if not known. With ``letters``, always read the dead letters.
        """
        self._begin({root for one in command_ids for root in candidates(one)})
        self._read_receipts(device)
        known = {one: self._families_of(one) for one in command_ids}
        whole_log = not device or not all(known.values())
        firsts = [] if whole_log else [family for families in known.values() for family in families]
        self._read_commands(COMMANDS_TOPIC, device, self._starts(firsts) or dict.fromkeys(self._commands_of(device)))
        if not device or not self._all_found(command_ids):
            self._read_relocated(device)
        if not device and not self._all_found(command_ids):
            self._read_groups()
        if letters or not self._all_found(command_ids):
            self._read_letters(device)
        found: dict[tuple[str, str], Family] = {}
        for command_id in command_ids:
            for family in self._families_of(command_id) or [Family(command_id, device)]:
                family.copy(command_id)
                family.asked.add(command_id)
                found[family.key] = family
        return self._in_order(found.values())

    def by_state(self, device: str, states: Collection[str], *, group: str = "", since_us: int = 0) -> list[Family]:
        """Return the families whose newest copy is in one of these states, in log order.

        ``device`` and ``group`` select the commands of a device, of the members of a group, or of a device as a member.
        ``since_us`` selects commands emitted at this time or later, in µs since the epoch.
        """
        self._begin(set())
        self._read_receipts(device, states, group)
        if not self._families:
            return []
        self._read_commands(COMMANDS_TOPIC, device, self._starts(self._families.values()))
        wanted = [
            one for one in self._families.values() if one.newest.state in states and one.emitted_at_us >= since_us
        ]
        for read in (self._read_relocated, self._read_letters):
            if not _have_content(wanted):
                read(device)
        return self._in_order(wanted)

    def _all_found(self, command_ids: Iterable[str]) -> bool:
        """Return whether each id has a family, and each family a command with its content."""
        return all(found and _have_content(found) for found in map(self._families_of, command_ids))

    def _begin(self, roots: set[str]) -> None:
        self._families, self._roots, self._named = {}, roots, {}
        self.left_out = []

    def _families_of(self, command_id: str) -> list[Family]:
        """Return the families that have a command of this id, one for each device."""
        found: dict[str, Family] = {}
        for root in sorted(candidates(command_id), key=len):
            for family in self._families.values():
                if family.root == root and command_id in family.copies:
                    found.setdefault(family.device, family)
        return list(found.values())

    def _family(self, root: str, device: str) -> Family | None:
        """Return a wanted family, created if necessary; None for another one."""
        if root in self._roots:
            return self._families.setdefault((root, device), Family(root, device))
        return self._families.get((root, device))

    def _in_order(self, families: Iterable[Family]) -> list[Family]:
        found = sorted(families, key=lambda one: (one.position, one.key))
        for family in found:
            family.reserved |= self._named.get(family.key, set())
        return found

    def _read_receipts(self, device: str, states: Collection[str] = (), group: str = "") -> None:
        for partition in self._partitions_of(RECEIPTS_TOPIC, device):
            for message in self._topics.scan(RECEIPTS_TOPIC, partition):
                if device and key_of(message) != device:
                    continue
                with suppress(ContractError):
                    receipt = Receipt.decode(message.data())
                    if not device or receipt.device == device:  # else it belongs to a group with this name
                        wanted = receipt.state in states and group in ("", receipt.group)
                        self._take_receipt(receipt, wanted=wanted and bool(receipt.device))

    def _take_receipt(self, receipt: Receipt, *, wanted: bool) -> None:
        """Add a receipt to its family if that is wanted; ``wanted`` makes the family wanted from now on."""
        root, device = receipt.resend_of or receipt.command_id, receipt.device
        if wanted:
            self._families.setdefault((root, device), Family(root, device))
        family = self._family(root, device)
        if family is not None:
            family.take_receipt(receipt)
        self._note(root, device)

    def _note(self, root: str, device: str) -> None:
        """Record a command whose id has the form of a copy's id."""
        named = named_like_a_copy(root)
        if named is not None and (not self._roots or named[0] in self._roots):
            self._named.setdefault((named[0], device), set()).add(named[1])

    def _starts(self, families: Iterable[Family]) -> dict[int, CommandPosition | None]:
        """Return partition → first position of these families in the log, from receipts; None if not known."""
        starts: dict[int, CommandPosition | None] = {}
        for family in families:
            partition, first = self._topics.partition_of(family.device), _first(family, self._topics.generation)
            so_far = starts.get(partition, first)
            starts[partition] = None if first is None or so_far is None else min(first, so_far)
        return starts

    def _read_relocated(self, device: str) -> None:
        starts = dict.fromkeys(one for one in self._commands_of(device) if one < self._topics.count(PARKED_TOPIC))
        self._read_commands(PARKED_TOPIC, device, starts)

    def _read_commands(self, local: str, device: str, starts: Mapping[int, CommandPosition | None]) -> None:
        """Read these partitions of the log or of the relocated commands, each from its start position, or from the
        beginning if that is None.
        """
        for partition, start in starts.items():
            for message in self._topics.scan(local, partition, start=start, queue=100):
                position, properties = position_of(message.message_id()), properties_of(message)
                if properties is None:
                    self._leave_out(local, partition, position, NO_TEXT)
                    continue
                root, of_device = root_of(properties), properties.get(C_DEVICE, "")
                self._note(root, of_device)
                family = None if device and of_device != device else self._family(root, of_device)
                if family is None:
                    continue
                try:
                    command = read_command(properties, message.data())
                except ContractError as e:
                    self._leave_out(local, partition, position, e.what)
                    continue
                family.take_command(partition, position, command, moved=local == PARKED_TOPIC)

    def _leave_out(self, local: str, partition: int, position: CommandPosition, why: str) -> None:
        self.left_out.append(f"{self._topics.shown(partition, position)} of {local}: {why}")

    def _commands_of(self, device: str) -> list[int]:
        return [self._topics.partition_of(device)] if device else list(range(self._topics.partitions))

    def _read_groups(self) -> None:
        """Read the group commands: before its expansion a group command has no receipt."""
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
            how = "begun" if position == progress.at else how
            family.copy(command_id).in_group.append(InGroup(group, 0, position, how))

    def _progress_of_groups(self) -> Progress:
        roster = Roster()
        if self._topics.count(GROUP_ROSTER_TOPIC):
            for key, payload in self._topics.keyed(GROUP_ROSTER_TOPIC, 0):
                if key.startswith(_PROGRESS):  # the members may be many
                    with suppress(ContractError):
                        roster.take(key, payload)
        return roster.progress

    def _read_letters(self, device: str) -> None:
        with suppress(TerminalError):  # the dead letter topic does not exist
            log = DeadLetterLog(self._topics.client)
            count = len(log.partitions)
            for partition in [partition_of(device, count)] if device else range(count):
                for record in log.scan(partition):
                    if not isinstance(record, DeadLetter) or C_ID not in record.properties:
                        continue
                    # The device of a group command's letter is the name of the group.
                    of_device = (
                        record.device if C_DEVICE in record.properties or C_GROUP not in record.properties else ""
                    )
                    if not device or of_device == device:
                        family = self._family(root_of(record.properties), of_device)
                        if family is not None:
                            family.take_letter(record, _command_of(record))

    def _partitions_of(self, local: str, device: str) -> list[int]:
        count = self._topics.count(local)
        return [partition_of(device, count)] if device and count else list(range(count))


def _have_content(families: Iterable[Family]) -> bool:
    return all(any(copy.command is not None for copy in one.copies.values()) for one in families)


def _first(family: Family, generation: int) -> CommandPosition | None:
    """Return the first position that a receipt names, None without one or if it is in the topic of another generation."""
    positions = []
    for copy in family.copies.values():
        for one in copy.receipts:
            with suppress(ContractError):
                of, _, position = CommandPosition.decode(one.position)
                if of != generation:
                    return None
                positions.append(position)
    return min(positions, default=None)


def _command_of(letter: DeadLetter) -> Command | None:
    if not whole(letter):
        return None
    try:
        return read_command(letter.properties, letter.payload)
    except ContractError:
        return None

"""History of a command and of its resent copies, and the decision whether to resend it.

A copy has the id ``ID~2``, ``ID~3``, … and names the first id in ``resend_of``. A family is a command with its copies.
The state of the newest copy is the state of the family, so that two resends of a command write one copy. As in push,
id and device together identify a command: the same id for another device is another command.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from bridge.contract import C_ID, C_RESEND_OF, FAILURES, P_DEAD_CUT, REMARKS, Receipt
from bridge.contract.commands import Command, CommandPosition
from bridge.dead_letters.records import DeadLetter

__all__ = [
    "Copy",
    "Family",
    "InGroup",
    "Refusal",
    "candidates",
    "named_like_a_copy",
    "next_copy",
    "of_one_device",
    "root_of",
]

_DEVICES_SHOWN: Final = 5
_COPY: Final = re.compile(r"(.+)~([2-9]|[1-9]\d+)\Z", re.DOTALL)


class Refusal(NamedTuple):
    """A command that is not resent, and the reason."""

    command_id: str
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.command_id}: {self.why}" + (f"; {self.remedy}" if self.remedy else "")


class InGroup(NamedTuple):
    """Position of a command in the topic of group commands, and its state in the expander."""

    group: str
    partition: int
    position: CommandPosition
    how: Literal["waiting", "begun", "done"]
    """``waiting`` before the expansion to the members, ``begun`` during it, ``done`` after it."""


@dataclass(slots=True)
class Copy:
    """One command of a family, with all records that were found."""

    command_id: str
    command: Command | None = None
    """The command in the log, or in the dead letters."""
    positions: list[tuple[int, CommandPosition]] = field(default_factory=list)
    """Partition and position in the log. A command that was written twice has two positions and is pushed once."""
    moved: list[tuple[int, CommandPosition]] = field(default_factory=list)
    """Partition and position of relocated copies of its message, written because its device was offline for long."""
    receipts: list[Receipt] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    in_group: list[InGroup] = field(default_factory=list)
    """Its positions in the topic of group commands."""

    @property
    def receipt(self) -> Receipt | None:
        """The last receipt, preferably one that ends the command."""
        settling = [one for one in self.receipts if one.state not in REMARKS]
        found = settling or self.receipts
        return found[-1] if found else None

    @property
    def state(self) -> str:
        """The state of its receipt.

        Without one: ``pending`` if it is in the log, is relocated, or is a group command that is not yet expanded to
        all members; ``rejected`` if only the dead letter is left; else ``unknown``.
        """
        receipt = self.receipt
        stored = bool(self.positions or self.moved) or any(one.how != "done" for one in self.in_group)
        if receipt is not None and (receipt.state not in REMARKS or not stored):
            return receipt.state
        if stored:
            return "pending"
        return "rejected" if self.letters else "unknown"


@dataclass(slots=True)
class Family:
    """A command of one device and its copies, by id."""

    root: str
    device: str = ""
    """Empty for a command to a group, and for one that was not found."""
    asked: set[str] = field(default_factory=set)
    """The ids of the search; empty if the search was by state."""
    copies: dict[str, Copy] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)
    """Numbers that a copy cannot have, because another command of the device already has that id."""

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the family: first id and device."""
        return self.root, self.device

    def copy(self, command_id: str) -> Copy:
        """Return a copy by its id; create it if it is not known."""
        return self.copies.setdefault(command_id, Copy(command_id))

    @property
    def in_order(self) -> list[Copy]:
        """The first command, then the copies by number."""
        return sorted(self.copies.values(), key=lambda one: number_of(one.command_id, self.root))

    @property
    def newest(self) -> Copy:
        """The copy whose state is the state of the family."""
        return self.in_order[-1]

    @property
    def group(self) -> str:
        """The group of a group command; empty for a command to one device, also if a group command created it."""
        receipts = [one for copy in self.copies.values() for one in copy.receipts]
        stored = [one.group for copy in self.copies.values() for one in copy.in_group]
        return next((one.group for one in receipts if not one.device and one.group), stored[0] if stored else "")

    @property
    def emitted_at_us(self) -> int:
        """Time at which the first of them was emitted, in µs since the epoch; 0 if it is not known."""
        for one in self.in_order:
            of_receipt = one.receipts[0].emitted_at_us if one.receipts else 0
            if found := of_receipt or (one.command.emitted_at_us if one.command is not None else 0):
                return found
        return 0

    @property
    def position(self) -> tuple[int, CommandPosition]:
        """Its first partition and position in the log; several families are resent in this order."""
        return min((position for one in self.in_order for position in one.positions), default=_LAST)

    def take_receipt(self, receipt: Receipt) -> None:
        """Add a receipt, in the order of the log."""
        self.copy(receipt.command_id).receipts.append(receipt)

    def take_command(self, partition: int, position: CommandPosition, command: Command, *, moved: bool = False) -> None:
        """Add a command of the log; with ``moved`` a relocated one."""
        found = self.copy(command.command_id)
        found.command = found.command or command
        (found.moved if moved else found.positions).append((partition, position))

    def take_letter(self, letter: DeadLetter, command: Command | None) -> None:
        """Add a dead letter; ``command`` is its command, None if it is cut or is not a valid command."""
        found = self.copy(letter.properties[C_ID])
        found.letters.append(letter)
        found.command = found.command or command


_LAST: Final = (1 << 62, CommandPosition(0, 0, 0))


def number_of(command_id: str, root: str) -> int:
    """Return the number of a command in its family: 1 for the first."""
    found = _COPY.match(command_id)
    return int(found[2]) if found is not None and found[1] == root else 1


def named_like_a_copy(command_id: str) -> tuple[str, int] | None:
    """Return the first id and the number that a copy's id contains, else None. A client may also choose such an id."""
    found = _COPY.match(command_id)
    return None if found is None else (found[1], int(found[2]))


def candidates(command_id: str) -> set[str]:
    """Return the possible first ids of a command's family: its id, with and without the number."""
    found = _COPY.match(command_id)
    return {command_id} if found is None else {command_id, found[1]}


def root_of(properties: Mapping[str, str]) -> str:
    """Return the first id of a command's family, from its properties; empty if they name no command."""
    return properties.get(C_RESEND_OF) or properties.get(C_ID, "")


def of_one_device(families: Iterable[Family]) -> tuple[list[Family], list[Refusal]]:
    """Return the families with a unique id, and a refusal of each id that several devices have.

    The user must name the device of such an id.
    """
    found = list(families)
    named: dict[str, list[Family]] = defaultdict(list)
    for family in found:
        for command_id in sorted(family.asked):
            named[command_id].append(family)
    clear = {same_id[0].key for same_id in named.values() if len(same_id) == 1}
    refused = [_of_several(command_id, same_id) for command_id, same_id in named.items() if len(same_id) > 1]
    return [one for one in found if one.key in clear or not one.asked], refused


def _of_several(command_id: str, families: list[Family]) -> Refusal:
    devices = sorted(one.device or "(a group)" for one in families)
    more = len(devices) - _DEVICES_SHOWN
    shown = ", ".join(devices[:_DEVICES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return Refusal(
        command_id, f"{len(devices)} devices have a command of this id: {shown}", "name the device: --device NAME"
    )


def whole(letter: DeadLetter) -> bool:
    """Return whether a dead letter has the whole payload and all properties of its command."""
    return not letter.lost_bytes and P_DEAD_CUT not in letter.properties


def next_copy(
    family: Family, *, now_us: int, force: bool = False, expires_at_ms: int | None = None
) -> Command | Refusal:
    """Return the next copy of a family's command, or the reason against a resend.

    ``expires_at_ms`` is the new expiry, 0 for none, None for the old one. ``force`` also resends a delivered command
    and a pending first command; a pending copy is never resent. The command of a member of a group has no payload but
    its position (``ref``): the caller reads the payload.
    """
    newest, first = family.newest, family.root
    copied = newest.command_id != first
    named = f"its copy {newest.command_id}" if copied else ""
    if family.group and newest.state == "pending":
        return Refusal(
            first,
            f"it is a command to the group {family.group} that is not yet expanded to its members",
            "push expands it while it runs: see pulsebridge status",
        )
    if family.group and newest.state == "rejected":
        return Refusal(
            first,
            f"it is a command to the group {family.group}, and no member received it",
            "correct the error that its receipt names, then run pulsebridge resend",
        )
    if newest.state == "unknown" and not family.group:
        return Refusal(first, "Pulsar has no record of it", "check the id; retention may have removed it")
    if family.group:
        return Refusal(
            first,
            f"it is a command to the group {family.group}, and each member has its own command id",
            "write a new command with a new id, or resend the failed commands of the members: "
            f"--group {family.group} --state STATE",
        )
    if newest.state == "pending" and (copied or not force):
        remedy = "" if copied else "push delivers it; --force writes a second copy"
        return Refusal(first, f"{named or 'it'} is pending", remedy)
    if newest.state not in (*FAILURES, "pending") and not force:
        return Refusal(first, f"{named or 'it'} is {newest.state}", "--force resends it")
    command = next((one.command for one in family.in_order if one.command is not None), None)
    if command is None:
        return Refusal(first, "its payload is not in Pulsar any more, neither in the log nor in the dead letters")
    expires = command.expires_at_ms if expires_at_ms is None else expires_at_ms
    if 0 < expires * 1000 <= now_us:
        return Refusal(first, "it has expired", "give a new expiry: --expires-in 1h, or --expires-in never")
    number = max(number_of(newest.command_id, first), *family.reserved, 1) + 1
    return replace(
        command,
        command_id=f"{first}~{number}",
        resend_of=first,
        expires_at_ms=expires,
        emitted_at_us=now_us,
    )

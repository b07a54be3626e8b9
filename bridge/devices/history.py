"""What became of a command, and of the copies by which it was sent again; whether it may be sent again. Pure.

A copy has the id ``ID~2``, ``ID~3``, … and names the first id in ``resend_of``. A family is a command with its copies:
its newest one says how it stands, so that a command which is sent again twice is sent once. A command is known by its
id and its device together, as push knows it: the same id for another device is another command.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from bridge.commands import Command, CommandPosition
from bridge.contract import C_ID, C_RESEND_OF, P_DEAD_CUT, Receipt
from bridge.dead_letters.records import DeadLetter

__all__ = [
    "FAILED",
    "Copy",
    "Family",
    "InGroup",
    "Refusal",
    "again",
    "candidates",
    "named_like_a_copy",
    "of_one_device",
    "root_of",
]

FAILED: Final = ("expired", "rejected", "overflowed")
"""States of receipts after which a command is sent again without force."""
_DEVICES_SHOWN: Final = 5
_COPY: Final = re.compile(r"(.+)~([2-9]|[1-9]\d+)\Z", re.DOTALL)


class Refusal(NamedTuple):
    """A command that is not sent again, and why."""

    command_id: str
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.command_id}: {self.why}" + (f"; {self.remedy}" if self.remedy else "")


class InGroup(NamedTuple):
    """Where a command to a group stands among these, and what the expander says of it."""

    group: str
    partition: int
    position: CommandPosition
    how: Literal["waiting", "begun", "done"]
    """Whether it waits to be given to the members, is being given to them, or has come to its end."""


@dataclass(slots=True)
class Copy:
    """One command of a family, as far as it was found."""

    command_id: str
    command: Command | None = None
    """As it stands in the log, or among the dead letters."""
    positions: list[tuple[int, CommandPosition]] = field(default_factory=list)
    """Where it stands in the log: partition and place. Written twice, it stands there twice, and is pushed once."""
    moved: list[tuple[int, CommandPosition]] = field(default_factory=list)
    """Where copies of its message stand among the commands that were moved, because its device is away for long."""
    receipts: list[Receipt] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    in_group: list[InGroup] = field(default_factory=list)
    """Where it stands among the commands to groups."""

    @property
    def receipt(self) -> Receipt | None:
        """The receipt that counts: the last one, but never ``duplicate``, which tells of another copy of it."""
        settling = [one for one in self.receipts if one.state != "duplicate"]
        found = settling or self.receipts
        return found[-1] if found else None

    @property
    def state(self) -> str:
        """The state of its receipt; ``pending`` for one that has none and stands in the log, or among the moved ones, or
        among the commands to groups and was not given to all members yet; ``rejected`` for one of which only the dead
        letter is left; else ``unknown``.
        """
        receipt = self.receipt
        stands = bool(self.positions or self.moved) or any(one.how != "done" for one in self.in_group)
        if receipt is not None and (receipt.state != "duplicate" or not stands):
            return receipt.state
        if stands:
            return "pending"
        return "rejected" if self.letters else "unknown"


@dataclass(slots=True)
class Family:
    """A command of one device and its copies, by id."""

    root: str
    device: str = ""
    """Whose it is; empty for a command to a group, and for one that is found nowhere."""
    asked: set[str] = field(default_factory=set)
    """By which ids it was looked for; empty where it was found by its state."""
    copies: dict[str, Copy] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    """Numbers that a copy may not have, because another command of the device happens to be called so."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.root, self.device

    def copy(self, command_id: str) -> Copy:
        """Return one of them, new where it was not known."""
        return self.copies.setdefault(command_id, Copy(command_id))

    @property
    def in_order(self) -> list[Copy]:
        """The first, then the copies by their numbers."""
        return sorted(self.copies.values(), key=lambda one: number_of(one.command_id, self.root))

    @property
    def newest(self) -> Copy:
        """The one that says how the family stands."""
        return self.in_order[-1]

    @property
    def group(self) -> str:
        """The group, for a command to one; empty for what is a device's own, also where a group command made it so."""
        receipts = [one for copy in self.copies.values() for one in copy.receipts]
        stand = [one.group for copy in self.copies.values() for one in copy.in_group]
        return next((one.group for one in receipts if not one.device and one.group), stand[0] if stand else "")

    @property
    def emitted_at_us(self) -> int:
        """When the first of them was emitted, 0 where nothing tells."""
        for one in self.in_order:
            told = one.receipts[0].emitted_at_us if one.receipts else 0
            if found := told or (one.command.emitted_at_us if one.command is not None else 0):
                return found
        return 0

    @property
    def place(self) -> tuple[int, CommandPosition]:
        """Where it stood first, by which several are sent again in the order that they had."""
        return min((place for one in self.in_order for place in one.positions), default=_LAST)

    def take_receipt(self, receipt: Receipt) -> None:
        """Take a receipt, in the order of the log."""
        self.copy(receipt.command_id).receipts.append(receipt)

    def take_command(self, partition: int, position: CommandPosition, command: Command) -> None:
        """Take a command that stands in the log."""
        found = self.copy(command.command_id)
        found.command = found.command or command
        found.positions.append((partition, position))

    def take_moved(self, partition: int, place: CommandPosition, command: Command) -> None:
        """Take a command that stands among the moved ones."""
        found = self.copy(command.command_id)
        found.command = found.command or command
        found.moved.append((partition, place))

    def take_in_group(self, command_id: str, place: InGroup) -> None:
        """Take a command that stands among those to groups."""
        self.copy(command_id).in_group.append(place)

    def take_letter(self, letter: DeadLetter, command: Command | None) -> None:
        """Take a dead letter; ``command`` is what it was, None where it is not whole or was none."""
        found = self.copy(letter.told[C_ID])
        found.letters.append(letter)
        found.command = found.command or command


_LAST: Final = (1 << 62, CommandPosition(0, 0, 0))


def number_of(command_id: str, root: str) -> int:
    """Return which of its family a command is: 1 for the first."""
    found = _COPY.match(command_id)
    return int(found[2]) if found is not None and found[1] == root else 1


def named_like_a_copy(command_id: str) -> tuple[str, int] | None:
    """Return of which command an id would be which copy; it may be a command that somebody has called so."""
    found = _COPY.match(command_id)
    return None if found is None else (found[1], int(found[2]))


def candidates(command_id: str) -> set[str]:
    """Return which ids the first of this command's family may have: its own, or what stands before its number."""
    found = _COPY.match(command_id)
    return {command_id} if found is None else {command_id, found[1]}


def root_of(properties: Mapping[str, str]) -> str:
    """Return the first id of a command's family, from its properties; empty for what names no command."""
    return properties.get(C_RESEND_OF) or properties.get(C_ID, "")


def of_one_device(families: Iterable[Family]) -> tuple[list[Family], list[Refusal]]:
    """Return the families that an id alone names, and a refusal of each id that stands for commands of several devices:
    to send one of them again, or all, is not for us to guess.
    """
    found = list(families)
    named: dict[str, list[Family]] = defaultdict(list)
    for family in found:
        for command_id in sorted(family.asked):
            named[command_id].append(family)
    clear = {them[0].key for them in named.values() if len(them) == 1}
    refused = [_of_several(command_id, them) for command_id, them in named.items() if len(them) > 1]
    return [one for one in found if one.key in clear or not one.asked], refused


def _of_several(command_id: str, families: list[Family]) -> Refusal:
    devices = sorted(one.device or "(a group)" for one in families)
    more = len(devices) - _DEVICES_SHOWN
    shown = ", ".join(devices[:_DEVICES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return Refusal(command_id, f"{len(devices)} devices have a command of this id: {shown}", "say whose: --device NAME")


def whole(letter: DeadLetter) -> bool:
    """Whether a dead letter has all that its command had."""
    return not letter.lost_bytes and P_DEAD_CUT not in letter.told


def again(family: Family, *, now_us: int, force: bool = False, expires_at_ms: int | None = None) -> Command | Refusal:
    """Return the command by which a family is sent again, or why it is not.

    ``expires_at_ms`` is its new expiry, 0 for none, None for the one that it had. ``force`` sends again what was
    delivered, and what is pending for the first time; a copy that is pending is never doubled. What was written for a
    member of a group names the place of its payload (``ref``) and has none: that is for the caller to read.
    """
    newest, first = family.newest, family.root
    copied = newest.command_id != first
    named = f"was sent again as {newest.command_id}, which" if copied else ""
    if family.group and newest.state == "pending":
        return Refusal(
            first,
            f"it is a command to the group {family.group} and was not given to its members yet",
            "it comes by itself while push runs: see pulsebridge status",
        )
    if family.group and newest.state == "rejected":
        return Refusal(
            first,
            f"it is a command to the group {family.group}, and none of its members was given it",
            "pulsebridge dead-letters replay brings it back, once what its receipt says is mended",
        )
    if newest.state == "unknown" and not family.group:
        return Refusal(
            first, "nothing in Pulsar tells of it", "see that the id is right; retention may have removed it"
        )
    if family.group:
        return Refusal(
            first,
            f"it is a command to the group {family.group}, and was given to each member under an id of its own",
            f"write it again under a new id, or send again what failed of its members: --group {family.group} --state STATE",
        )
    if newest.state == "pending" and (copied or not force):
        remedy = "" if copied else "it comes by itself; --force writes a second copy"
        return Refusal(first, f"{named or 'it'} is pending", remedy)
    if newest.state not in (*FAILED, "pending") and not force:
        return Refusal(first, f"{named or 'it'} is {newest.state}", "--force sends it all the same")
    command = _content(family.in_order)
    if command is None:
        return Refusal(first, "its payload is not in Pulsar any more, neither in the log nor among the dead letters")
    expires = command.expires_at_ms if expires_at_ms is None else expires_at_ms
    if 0 < expires * 1000 <= now_us:
        return Refusal(first, "its time is over", "give a new one: --expires-in 1h, or --expires-in never")
    number = max(number_of(newest.command_id, first), *family.taken, 1) + 1
    return replace(
        command,
        command_id=f"{first}~{number}",
        resend_of=first,
        expires_at_ms=expires,
        emitted_at_us=now_us,
    )


def _content(copies: Iterable[Copy]) -> Command | None:
    return next((one.command for one in copies if one.command is not None), None)

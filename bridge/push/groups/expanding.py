"""Expansion of a group command: an index entry for each member, also for those that join later.

Each write to the log returns when Pulsar has stored it. The process may die between any two of them, or within one.

Commit order of a group command
-------------------------------
0. Memberships that were written before it are read, and the roster follows them (below): they count.
1. ``store``: the command, without its payload, is open, and it is the one that is under way.
2. ``write_entries``, of a broadcast: for each MQTT broker a command to the group itself, which push publishes once. It names
   the group's previous command, which the roster gives to each owner alike. It precedes the entries, because a partition
   that is full of entries which wait for answers would not read it. Died here, or before the first chunk is stored: it is
   written again under the same id, which push drops, or sends again with a mark.
3. ``write_entries``: a chunk of members, in the order of their names, each entry under an id of its own that depends on
   the command and the device alone. Died here: the chunk is written again, and push drops the repeated ids.
4. ``store``: up to which member it came. 3 and 4 again until all have theirs.
5. ``write_receipts``: the receipt ``expanded``. After a crash here it is written twice.
6. ``store``: it is the group's last command, and it is done.
7. ``release`` once it and all before it have expired: acknowledged, so that Pulsar may trim the payload.

Commit order of a join: the entries of the group's open commands, in order; then the roster. A device that left and comes
back gets what was written since. A member that leaves keeps what was written for it before.

Other commands (not valid, unknown group, known id, expired) get a receipt at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from bridge.contract import Receipt
from bridge.contract.commands import BEFORE_ALL, MAX_TEXT_BYTES, Command, CommandPosition, command_problem
from bridge.contract.groups import GroupCommand, broadcast_of, entry_of
from bridge.push.groups.log import GroupLog
from bridge.push.groups.roster import Membership, Open, Progress, Roster

__all__ = ["BadCommand", "Expander"]

CHUNK: Final = 1000
"""Entries that are written before how far they came is stored."""
_AGAIN_AT_ONCE: Final = 200  # there is no hurry, and a group command may have come meanwhile

_NO_BROADCASTS: Final = "a broadcast needs push.confirm: device, because only answers show which devices had it"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BadCommand:
    """A message that is no group command, and what is known of it."""

    reason: str
    command_id: str = ""
    group: str = ""


@dataclass(eq=False)
class Expander:
    """Gives group commands to members. An event that raises is half done: the next owner completes it."""

    _roster: Roster
    _membership: Membership
    _log: GroupLog
    _template: str  # for commands that name no topic
    _longest_us: int  # how long a command may be open
    _chunk: int = CHUNK
    _broadcast_topic: str = ""  # template of the topics of broadcasts; empty if devices do not answer
    _links: Sequence[str] = ("",)  # the MQTT brokers, each of which gets a broadcast
    _generation: int = 0  # of the commands, which positions in receipts name
    _ids: set[tuple[str, str]] = field(init=False)
    _handled: deque[CommandPosition] = field(default_factory=deque)  # came, and not released; in order
    _highest: CommandPosition = BEFORE_ALL
    _first: bool = True
    _aged: deque[tuple[Any, ...]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._ids = {(one.command.group, one.command.command_id) for one in self._roster.open.values()}

    @property
    def open(self) -> int:
        """Commands that have not expired."""
        return len(self._roster.open)

    def next_expiry_us(self) -> int | None:
        """Return when ``passed`` is due, in µs since the epoch; None without an open command."""
        return min((one.command.expires_at_ms * 1000 for one in self._roster.open.values()), default=None)

    # --- events ---

    def resume(self, now_us: int) -> None:
        """The roster was read, and the memberships to their end: first the command that a former owner had begun, for
        those who were members then; then those who came and went meanwhile.
        """
        progress = self._roster.progress
        if progress.in_between and progress.at in self._roster.open:
            self._expand()
        self.changed(now_us)

    def changed(self, now_us: int) -> None:
        """Memberships changed, or may have."""
        groups = self._membership.take_changed()
        if self._first:
            self._first = False
            groups = sorted(self._membership.groups | self._roster.members.keys())
        for group in groups:
            wanted = self._membership.members(group)
            have = self._roster.members.get(group, set())
            joining, leaving = sorted(wanted - have), sorted(have - wanted)
            for some in _chunks(leaving, self._chunk):
                self._log.store([self._roster.parted(group, device) for device in some])
            if joining:
                self._join(group, joining, now_us)

    def arrived(
        self, position: CommandPosition, command: GroupCommand | BadCommand, published_us: int, now_us: int
    ) -> None:
        """A message of the group commands came; all that are not released come again with each connection."""
        if position > self._highest:
            self._highest = position
            self._handled.append(position)
        if position <= self._roster.progress.done:
            return
        self.changed(now_us)
        if isinstance(command, GroupCommand):
            command = self._bounded(command, published_us)
            refusal = self._refusal(position, command, now_us)
            if refusal is None:
                progress = replace(self._roster.progress, at=position, after="")
                self._ids.add((command.group, command.command_id))
                # In this order: an open command that is not known to be under way would count as a repetition.
                self._log.store([self._roster.moved(progress), self._roster.opened(position, command)])
                self._expand()
                return
            state, reason = refusal
        else:
            state, reason = "rejected", command.reason
        if state == "rejected":
            self._log.give_up(reason)
        if command.command_id:
            self._log.write_receipts([self._receipt(position, command, state, reason)])
        self._log.store([self._roster.moved(Progress(position))])

    def passed(self, now_us: int) -> None:
        """Time passed: what has expired is closed, and Pulsar may trim it."""
        over = [position for position, one in self._roster.open.items() if one.expired(now_us)]
        for one in over:
            command = self._roster.open[one].command
            self._ids.discard((command.group, command.command_id))
        changes = [self._roster.closed(position) for position in over]
        changes += self._roster.forgotten() if over else []
        for some in _chunks(changes, self._chunk):
            self._log.store(some)
        # Entries are acknowledged whole, and there may be more of the batch that came last.
        ends = [self._highest] if self._highest.batch_index >= 0 else []
        until = min([*self._roster.open, *ends], default=None)
        last: CommandPosition | None = None
        while self._handled and (until is None or self._handled[0][:2] < until[:2]):
            last = self._handled.popleft()
        if last is not None:
            self._log.release(last)

    def aged(self) -> None:
        """Records of the roster are old: all are written again, by ``rewritten``."""
        self._aged = deque(self._roster.standing())

    def rewritten(self) -> None:
        """Write some of the old records again. Between two other events no command is half done."""
        some = [self._aged.popleft() for _ in range(min(_AGAIN_AT_ONCE, len(self._aged)))]
        changes = [change for key in some if (change := self._roster.rewritten(key)) is not None]
        if changes:
            self._log.store(changes)

    # --- inside ---

    def _bounded(self, command: GroupCommand, published_us: int) -> GroupCommand:
        begin = min(command.emitted_at_us or published_us, published_us)
        latest_ms = max(1, (begin + self._longest_us) // 1000)
        return replace(command, expires_at_ms=min(command.expires_at_ms or latest_ms, latest_ms))

    def _refusal(self, position: CommandPosition, command: GroupCommand, now_us: int) -> tuple[str, str] | None:
        if command.expires_at_ms * 1000 <= now_us:
            return "expired", ""
        if (command.group, command.command_id) in self._ids:
            return "duplicate", "this group has a command of that id"
        if command.group not in self._roster.groups | self._membership.groups:
            return (
                "rejected",
                f"no group {command.group!r}: no rule of push.groups.declared names it, and it never had a member",
            )
        if not command.broadcast:
            return None
        if not self._broadcast_topic:
            return "rejected", _NO_BROADCASTS
        problem = command_problem(self._broadcasts(position, command, 0)[0])
        return None if problem is None else ("rejected", f"broadcast: {problem}")

    def _broadcasts(self, position: CommandPosition, command: GroupCommand, size: int) -> list[Command]:
        after = self._roster.before(command.group, position)
        return [broadcast_of(command, link, position, after, size, self._broadcast_topic) for link in self._links]

    def _expand(self) -> None:
        """Give the command under way to the members of the roster who lack it."""
        progress = self._roster.progress
        position, one = progress.at, self._roster.open[progress.at]
        members = self._roster.members.get(one.command.group, set())
        if one.command.broadcast and members and not progress.after:
            self._log.write_entries(self._broadcasts(position, one.command, one.size))
        for some in _chunks(sorted(name for name in members if name > progress.after), self._chunk):
            self._write((device, position, one) for device in some)
            self._log.store([self._roster.moved(replace(progress, after=some[-1]))])
        self._log.write_receipts([self._receipt(position, one.command, "expanded", "", len(members))])
        self._log.store(self._roster.done(one.command.group, position))

    def _join(self, group: str, devices: Sequence[str], now_us: int) -> None:
        roster = self._roster
        if group not in roster.groups:
            self._log.store([roster.known(group)])
        theirs = [
            (position, one)
            for position, one in sorted(roster.open.items())
            if one.command.group == group and not one.expired(now_us)
        ]
        for some in _chunks(devices, max(1, self._chunk // max(1, len(theirs)))):
            lacking = [
                (device, position, one)
                for device in some
                for position, one in theirs
                if position > roster.left.get((group, device), BEFORE_ALL)
            ]
            if lacking:
                self._write(lacking)
            self._log.store([roster.joined(group, device) for device in some])

    def _write(self, lacking: Iterable[tuple[str, CommandPosition, Open]]) -> None:
        entries: list[Command] = []
        refused: list[Receipt] = []
        for device, position, one in lacking:
            entry = entry_of(one.command, device, position, one.size, self._template)
            problem = command_problem(entry)
            if problem is None:
                entries.append(entry)
            else:
                receipt = self._receipt(position, one.command, "rejected", str(problem))
                topic = entry.mqtt_topic[:MAX_TEXT_BYTES]
                refused.append(replace(receipt, command_id=entry.command_id, device=device, mqtt_topic=topic))
        if entries:
            self._log.write_entries(entries)
        if refused:
            self._log.write_receipts(refused)

    def _receipt(
        self, position: CommandPosition, command: GroupCommand | BadCommand, state: str, reason: str, members: int = 0
    ) -> Receipt:
        whole = command if isinstance(command, GroupCommand) else None
        return Receipt(
            command_id=command.command_id,
            device="",
            mqtt_topic=(whole.mqtt_topic or self._template) if whole else "",
            state=state,
            reason=reason,
            position=position.encode(0, self._generation),
            emitted_at_us=whole.emitted_at_us if whole else 0,
            group=command.group,
            group_command_id=command.command_id,
            members=members,
        )


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

"""Which devices are in which group, and the state of the expander as records of the compacted topic ``group-roster``.

===============================  ==========================================================================
key (JSON array)                 value
===============================  ==========================================================================
``["progress"]``                 up to where group commands are done with, and how far the one is that is not
``["group", name]``              a group that has had members, and its last command that is done with
``["member", group, device]``    in the group, with an entry for each of its open commands; or ``left`` after which one
``["open", ledger, entry, i]``   a command that has not expired, without its payload
``["owner"]``                    the process that owns the roster
===============================  ==========================================================================

Every value names in ``o`` the owner that wrote it. A tombstone removes what is not needed any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import structlog

from bridge.contract import GROUP_ROSTER_VERSION
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.decoding import (
    checked_fields,
    checked_position,
    checked_text,
    checked_whole,
    decodes,
    json_of_record,
    json_record,
)
from bridge.contract.groups import GroupCommand
from bridge.settings.push import GroupRule

__all__ = ["OWNER", "Change", "Membership", "Open", "Progress", "Roster", "matches", "owner_of"]

log = structlog.get_logger("push")

_SIGNS: Final = "*?"
_PROGRESS: Final = ("progress",)


class Change(NamedTuple):
    """A record to be written: its key, and what it says; None for a tombstone."""

    key: tuple[Any, ...]
    body: dict[str, Any] | None

    def encode(self, owner: str) -> tuple[str, bytes]:
        """Return key and payload of the message."""
        key = json.dumps(self.key, separators=(",", ":"), ensure_ascii=False)
        if self.body is None:
            return key, b""
        record = {"v": GROUP_ROSTER_VERSION, "o": owner} | self.body
        return key, json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


OWNER: Final = Change(("owner",), {})
"""By this an owner says that it is one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """All group commands up to ``done`` have come to their end. ``at`` is one that has not, BEFORE_ALL for none; its
    members up to ``after``, in the order of their names, have their entries.
    """

    done: CommandPosition = BEFORE_ALL
    at: CommandPosition = BEFORE_ALL
    after: str = ""

    @property
    def in_between(self) -> bool:
        """Whether a command was begun and is not done."""
        return self.at != BEFORE_ALL


@dataclass(frozen=True, slots=True)
class Open:
    """A group command that has not expired. ``size`` is that of its payload, which is in Pulsar."""

    command: GroupCommand
    size: int

    def expired(self, now_us: int) -> bool:
        """Return whether no further member gets it."""
        return now_us >= self.command.expires_at_ms * 1000


@dataclass
class Roster:
    """The state that the records make. ``take`` reads one; the other methods change it and return what to write."""

    progress: Progress = field(default_factory=Progress)
    groups: set[str] = field(default_factory=set)
    last: dict[str, CommandPosition] = field(default_factory=dict)
    """The last command of a group that is done with; open ones aside."""
    members: dict[str, set[str]] = field(default_factory=dict)
    left: dict[tuple[str, str], CommandPosition] = field(default_factory=dict)
    """Who left a group, and the last command that it was a member for."""
    open: dict[CommandPosition, Open] = field(default_factory=dict)

    @decodes("a record of the roster of groups")
    def take(self, key: str, payload: bytes) -> None:
        """Take a record. Raises ContractError for one that is not of this version; then nothing of it counts."""
        kind, *rest = json_of_record(key)
        body = json_record(payload, "roster of groups", [GROUP_ROSTER_VERSION]) if payload else None
        if kind == "progress" and body is not None:
            self._take_progress(body)
        elif kind == "group":
            self._take_group(checked_text(rest[0]), body or {})
        elif kind == "member":
            self._take_member(checked_text(rest[0]), checked_text(rest[1]), body)
        elif kind == "open":
            self._take_open(CommandPosition(*checked_position(rest)), body)

    def _take_progress(self, body: dict[str, Any]) -> None:
        done, at = (CommandPosition(*checked_position(body[name])) for name in ("done", "at"))
        found = Progress(done, at, checked_text(body["after"]))
        # A write of a replaced owner may be stored last: progress never goes back.
        if (found.done, found.at, found.after) > (self.progress.done, self.progress.at, self.progress.after):
            self.progress = found

    def _take_group(self, group: str, body: dict[str, Any]) -> None:
        self.groups.add(group)
        if "last" in body:
            last = CommandPosition(*checked_position(body["last"]))
            self.last[group] = max(last, self.last.get(group, BEFORE_ALL))  # as with progress

    def _take_member(self, group: str, device: str, body: dict[str, Any] | None) -> None:
        left = None
        if body is not None and "left" in body:
            left = CommandPosition(*checked_position(body["left"]))
        self.left.pop((group, device), None)
        self.members.get(group, set()).discard(device)
        if left is not None:
            self.left[group, device] = left
        elif body is not None:
            self.members.setdefault(group, set()).add(device)

    def _take_open(self, position: CommandPosition, body: dict[str, Any] | None) -> None:
        if body is None:
            self.open.pop(position, None)
            return
        kinds = {name: kind for name, kind in GroupCommand.__annotations__.items() if name != "payload"}
        command = GroupCommand(**checked_fields(body, kinds), payload=b"")
        self.open[position] = Open(command, checked_whole(body["size"], 0))

    def _record(self, key: tuple[Any, ...]) -> Change:
        """Return a record with what is so now, a tombstone for what is not."""
        kind, *rest = key
        body: dict[str, Any] | None = {}
        if kind == "progress":
            done, at, after = self.progress.done, self.progress.at, self.progress.after
            body = {"done": list(done), "at": list(at), "after": after}
        elif kind == "group" and rest[0] in self.last:
            body = {"last": list(self.last[rest[0]])}
        elif kind == "open":
            one = self.open.get(CommandPosition(*rest))
            body = None if one is None else asdict(one.command) | {"size": one.size}
            if body is not None:
                del body["payload"]
        elif kind == "member" and rest[1] not in self.members.get(rest[0], ()):
            last = self.left.get((rest[0], rest[1]))
            body = None if last is None else {"left": list(last)}
        return Change(key, body)

    def moved(self, progress: Progress) -> Change:
        """The expander came so far."""
        self.progress = progress
        return self._record(_PROGRESS)

    def opened(self, position: CommandPosition, command: GroupCommand) -> Change:
        """A command is given to the members from now on, until it expires."""
        self.open[position] = Open(replace(command, payload=b""), len(command.payload))
        return self._record(("open", *position))

    def closed(self, position: CommandPosition) -> Change:
        """A command has expired."""
        del self.open[position]
        return self._record(("open", *position))

    def known(self, group: str) -> Change:
        """The group has had members."""
        self.groups.add(group)
        return self._record(("group", group))

    def before(self, group: str, position: CommandPosition) -> CommandPosition:
        """Return the position of the group's command before ``position``, BEFORE_ALL without one."""
        theirs = [
            self.last.get(group, BEFORE_ALL),
            *(at for at, one in self.open.items() if one.command.group == group),
        ]
        return max((at for at in theirs if at < position), default=BEFORE_ALL)

    def done(self, group: str, position: CommandPosition) -> list[Change]:
        """The command came to its end; the progress is written last. A group that never had members has no record."""
        self.last[group] = position
        known = [self._record(("group", group))] if group in self.groups else []
        return [*known, self.moved(Progress(position))]

    def joined(self, group: str, device: str) -> Change:
        """The device is in the group and has entries for its open commands."""
        self.left.pop((group, device), None)
        self.members.setdefault(group, set()).add(device)
        return self._record(("member", group, device))

    def parted(self, group: str, device: str) -> Change:
        """The device left. What it had is kept in mind as long as a command of that time is open."""
        self.members[group].discard(device)
        last = max((at for at, one in self.open.items() if one.command.group == group), default=None)
        if last is not None:
            self.left[group, device] = last
        return self._record(("member", group, device))

    def standing(self) -> list[tuple[Any, ...]]:
        """Return the keys of all records that are not tombstones."""
        members = [(group, device) for group, devices in self.members.items() for device in devices]
        return [
            OWNER.key,
            _PROGRESS,
            *(("group", group) for group in self.groups),
            *(("member", *key) for key in [*members, *self.left]),
            *(("open", *position) for position in self.open),
        ]

    def rewritten(self, key: tuple[Any, ...]) -> Change | None:
        """Return a record as it says what is so now, None where it was removed since."""
        change = self._record(key)
        return None if change.body is None else change

    def forgotten(self) -> list[Change]:
        """Those who left before any command that is still open."""
        oldest: dict[str, CommandPosition] = {}
        for position, one in self.open.items():
            oldest[one.command.group] = min(position, oldest.get(one.command.group, position))
        gone = [key for key, last in self.left.items() if key[0] not in oldest or last < oldest[key[0]]]
        for key in gone:
            del self.left[key]
        return [self._record(("member", *key)) for key in gone]


@decodes("a record of the roster of groups")
def owner_of(key: str, payload: bytes) -> str | None:
    """Return who wrote a record; None for a tombstone. Raises ContractError for what is no record of any version."""
    kind, *_ = json_of_record(key)
    checked_text(kind)
    owner = checked_text(json_of_record(payload)["o"]) if payload else ""
    return owner or None


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` is what ``pattern`` says: ``*`` is any text, ``?`` one character, all else itself."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


class Membership:
    """The groups as they should be: by the settings, and by the table that Spark writes. ``take_changed`` returns those that
    may have changed since the last call.

    A rule names devices, or patterns over the devices that are *known*: those that the table names in any group, those
    that a rule names, and those that have had a command. What a device publishes makes no member: else each invented name
    would cost an entry of each command (H43). A device that rule and table both name is in the group once.
    """

    def __init__(self, rules: Sequence[GroupRule], most: int = sys.maxsize) -> None:
        """``most`` bounds the devices that the patterns of one group mean."""
        self._named: dict[str, set[str]] = {}
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._table: dict[str, set[str]] = {}
        self._matching: dict[str, set[str]] = {}
        """By group, the known devices that its patterns mean; of the others nothing is kept."""
        self._most = most
        for rule in rules:
            patterns = tuple(one for one in rule.devices if any(sign in one for sign in _SIGNS))
            self._named[rule.name] = set(rule.devices) - set(patterns)
            if patterns:
                self._patterns[rule.name] = patterns
        self._changed = set(self._named)
        for named in self._named.values():
            self.knows(named)

    @property
    def has_patterns(self) -> bool:
        """Whether it matters which devices there are."""
        return bool(self._patterns)

    @property
    def groups(self) -> set[str]:
        """The groups that have a rule, or a member in the table."""
        return self._named.keys() | self._table.keys()

    def put(self, group: str, device: str, *, member: bool) -> None:
        """Take a record of the table."""
        there = self._table.setdefault(group, set())
        if member != (device in there):
            self._changed.add(group)
        if member:
            there.add(device)
            self.knows([device])
        else:
            there.discard(device)
        if not there:
            del self._table[group]

    def knows(self, devices: Iterable[str]) -> None:
        """These devices are there."""
        devices = set(devices)
        for group in self._patterns:
            self._take(group, devices)

    def _take(self, group: str, devices: Iterable[str]) -> None:
        matching, patterns = self._matching.setdefault(group, set()), self._patterns[group]
        for name in devices:
            if name in matching or not any(matches(pattern, name) for pattern in patterns):
                continue
            if len(matching) >= self._most:
                log.warning(
                    "the patterns of a group mean more devices than push.groups.max_matches, the others get no commands "
                    "to it; raise it, or write the members with Spark",
                    group=group,
                    most=self._most,
                    shown=1,
                )
                return
            matching.add(name)
            self._changed.add(group)

    def members(self, group: str) -> set[str]:
        """Return who should be in the group."""
        found = self._matching.get(group, set())
        return found | self._named.get(group, set()) | self._table.get(group, set())

    def take_changed(self) -> list[str]:
        """Return the groups whose members may be others than when this was called last, in order."""
        changed, self._changed = sorted(self._changed), set()
        return changed

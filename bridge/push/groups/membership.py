"""Which devices are in which group: by the settings, and by the table that Spark writes.

A rule names devices, or patterns over the devices that are *known*: those that the table names in any group, those that
a rule names, and those that have had a command. What a device publishes makes no member: else each invented name would
cost an entry of each command (H43). A device that rule and table both name is in the group once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import structlog

from bridge.settings.push import GroupRule

__all__ = ["Membership", "matches"]

log = structlog.get_logger("push")

_SIGNS: Final = "*?"


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` is what ``pattern`` says: ``*`` is any text, ``?`` one character, all else itself."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


class Membership:
    """The groups as they should be. ``take_changed`` returns those that may have changed since the last call."""

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

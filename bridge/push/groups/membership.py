"""Which devices are in which group: by the settings, and by the table that Spark writes.

A rule names devices, or patterns over the devices that are *known*: those that the table names in any group, those that
a rule names, and those that have had a command. What a device publishes makes no member: else each invented name would
cost an entry of each command (H43). A device that rule and table both name is in the group once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import structlog

from bridge.contract import CURSORS_TOPIC, GROUP_MEMBERS_TOPIC, partition_name
from bridge.contract.commands import BEFORE_ALL
from bridge.contract.groups import member_of
from bridge.errors import ContractError
from bridge.pulsar.client import (
    EARLIEST,
    Message,
    MessageId,
    PulsarClient,
    key_of,
    received,
)
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import read_to_end
from bridge.push.cursor import ids_device
from bridge.push.groups.log import Stopped
from bridge.push.position_reader import leave_out_foreign, position_of, record_key
from bridge.push.segments import segment_device
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.push import GroupRule

__all__ = ["KnownDevices", "MemberTable", "Membership", "matches"]

log = structlog.get_logger("push")

_SIGNS: Final = "*?"


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` is what ``pattern`` says: ``*`` is any text, ``?`` one character, all else itself.

    It takes no longer than length by length, whatever the pattern.
    """
    at = star = mark = 0
    p = 0
    star = -1
    while at < len(name):
        if p < len(pattern) and pattern[p] == "*":
            star, mark = p, at
            p += 1
        elif p < len(pattern) and pattern[p] in ("?", name[at]):
            p += 1
            at += 1
        elif star >= 0:
            mark += 1
            p, at = star + 1, mark
        else:
            return False
    return not pattern[p:].strip("*")


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


_AT_ONCE: Final = 10_000


class MemberTable:
    """The memberships that Spark wrote: loaded whole, then followed. All on the thread that makes it."""

    def __init__(
        self,
        client: PulsarClient,
        settings: PulsarSettings,
        membership: Membership,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read all of it. Raises TransientError or RefusedError, and Stopped when it is ``over`` before."""
        self._over = over
        self._settings = settings
        self._topic = partition_name(settings.system_topic(GROUP_MEMBERS_TOPIC), 0)
        self._client = client
        self._membership = membership
        self._last = BEFORE_ALL
        last = self._load()
        # Not the compacted view any more: there a tombstone could be removed before it was read.
        self._reader: Any = client.reader(self._topic, last, inclusive=last is EARLIEST)

    def _load(self) -> MessageId:
        """Read the compacted view. Records that only this view still has are not read by later reads."""
        reader: Any = self._client.reader(self._topic, EARLIEST, compacted=True)
        last = EARLIEST
        try:
            for message in read_to_end(reader, self._settings, self._topic, compacted=True, over=self._over):
                self._put(message)
                last = message.message_id()
        finally:
            close_quietly(reader)
        if self._over():
            raise Stopped
        return last

    def _put(self, message: Message) -> None:
        self._last = position_of(message.message_id())
        key, payload = record_key(message, self._topic), message.data()
        if not key:
            return  # what compaction leaves of a message in the midst of a batch; or it is no UTF-8
        try:
            group, device, member = member_of(key, payload)
        except ContractError as e:
            leave_out_foreign(self._topic, message.message_id(), str(e), key)
            return
        self._membership.put(group, device, member=member)

    def take(self) -> None:
        """Bring what came to the membership, without waiting, and not all of what comes without end."""
        for _ in range(_AT_ONCE):
            message = received(self._reader.read_next, 0, f"reading {self._topic}")
            if message is None:
                return
            self._put(message)

    def take_all(self) -> None:
        """Bring all that Pulsar has now to the membership. Raises TransientError when it does not answer, Stopped when it
        is to end before. A command to a group waits for this.
        """
        for message in read_to_end(self._reader, self._settings, self._topic, last=self._last, over=self._over):
            self._put(message)
        if self._over():
            raise Stopped

    def close(self) -> None:
        """Close the reader; before the client is closed."""
        close_quietly(self._reader)


class KnownDevices:
    """The devices that have had a command: those with a cursor. Asked for now and then, where patterns want to know."""

    def __init__(self, client: PulsarClient, settings: PulsarSettings, membership: Membership) -> None:
        """Opens a reader for each partition. Raises TransientError or RefusedError."""
        self._membership = membership
        self._settings = settings
        self._read: set[str] = set()
        self._readers: dict[str, Any] = {
            name: client.reader(name, EARLIEST, compacted=True)
            for name in client.partitioned(settings.system_topic(CURSORS_TOPIC))
        }

    def take(self) -> None:
        """Bring those that came since the last time to the membership. Raises TransientError."""
        found: set[str] = set()
        for name, reader in self._readers.items():
            known = name in self._read
            for message in read_to_end(reader, self._settings, name, compacted=True, trusting=known):
                device = _device_of(key_of(message) or "")
                if device:
                    found.add(device)
            self._read.add(name)
        self._membership.knows(found)

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers.values():
            close_quietly(reader)


def _device_of(key: str) -> str | None:
    """Return the device of a record, None where it is of none: no device's name begins with U+0000, push's own keys do."""
    device = ids_device(key) or segment_device(key) or key
    return device if device and not device.startswith("\0") else None

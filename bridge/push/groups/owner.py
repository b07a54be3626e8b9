"""Gives group commands to their members, in one process at a time: the shell of ``expanding``, in a thread of its own.

Any push process may do it; the one with the exclusive producer of the roster does, and another takes over when that one dies.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

import structlog

from bridge.contract import C_GROUP, C_ID, CURSORS_TOPIC, GROUP_MEMBERS_TOPIC, GROUP_ROSTER_TOPIC, partition_name
from bridge.contract.commands import BEFORE_ALL, is_broadcaster
from bridge.contract.cursors import ids_device, split_key
from bridge.contract.groups import GroupCommand, decode_group_command, member_of
from bridge.contract.names import MAX_NAME_BYTES
from bridge.contract.segments import segment_device
from bridge.errors import ContractError
from bridge.health import Part
from bridge.pulsar.client import EARLIEST, NO_TEXT, Message, PulsarClient, key_of, properties_of, received
from bridge.pulsar.messages import leave_out_foreign, position_of, record_key
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import read_partition, read_to_end
from bridge.push.brokers import brokers_of
from bridge.push.groups.expanding import BadCommand, Expander
from bridge.push.groups.log import GroupLog, Stopped
from bridge.push.groups.roster import Membership
from bridge.push.metrics import PushMetrics
from bridge.push.sessions import Sessions, wait_for
from bridge.settings import Settings

__all__ = ["GroupOwner", "KnownDevices", "MemberTable"]

log = structlog.get_logger("push")

_ABSENT_S: Final = 30.0
_RECEIVE_MS: Final = 500
_LOOK_S: Final = 30.0  # how often devices are looked for that a pattern may mean


_AT_ONCE: Final = 10_000


class MemberTable:
    """The memberships that Spark wrote: loaded whole, then followed. All on the thread that makes it."""

    def __init__(self, client: PulsarClient, membership: Membership, over: Callable[[], bool] = lambda: False) -> None:
        """Read all of it. Raises TransientError or RefusedError, and Stopped when it is ``over`` before."""
        self._over = over
        self._settings = client.settings
        self._topic = partition_name(client.settings.system_topic(GROUP_MEMBERS_TOPIC), 0)
        self._membership = membership
        self._last = BEFORE_ALL
        last = EARLIEST
        # Records that only the compacted view still has are not read by later reads.
        for message in read_partition(client, self._topic, compacted=True, over=over):
            self._put(message)
            last = message.message_id()
        if over():
            raise Stopped
        # Not the compacted view any more: there a tombstone could be removed before it was read.
        self._reader: Any = client.reader(self._topic, last, inclusive=last is EARLIEST)

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
        """Bring all that Pulsar has now to the membership, before a group command. Raises TransientError or Stopped."""
        for message in read_to_end(self._reader, self._settings, self._topic, last=self._last, over=self._over):
            self._put(message)
        if self._over():
            raise Stopped

    def close(self) -> None:
        """Close the reader; before the client is closed."""
        close_quietly(self._reader)


class KnownDevices:
    """The devices that have had a command: those with a cursor. Read now and then, if a group has patterns."""

    def __init__(self, client: PulsarClient, membership: Membership) -> None:
        """Opens a reader for each partition. Raises TransientError or RefusedError."""
        self._membership = membership
        self._settings = client.settings
        self._read: set[str] = set()
        topic = client.settings.system_topic(CURSORS_TOPIC)
        names = client.partitioned(topic) if membership.has_patterns else []
        self._readers: dict[str, Any] = {name: client.reader(name, EARLIEST, compacted=True) for name in names}

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
    device = ids_device(key) or segment_device(key) or split_key(key)[0]
    return None if not device or device.startswith("\0") or is_broadcaster(device) else device


class GroupOwner:
    """Owns the roster of groups whenever Pulsar lets it, until it is stopped."""

    stuck, away = False, ()
    """As a ``Share``: it needs no MQTT broker."""

    def __init__(
        self, settings: Settings, metrics: PushMetrics, part: Part, failed: Callable[[BaseException], None]
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._part = part
        self._sessions = Sessions("groups", self._run_session, part, failed)
        self._owns = False
        self.has = False
        """Whether this process has the exclusive producer of the roster."""
        self._wanted = threading.Event()
        self._wanted.set()
        self._fence = False
        self._aged = threading.Event()
        self.start, self.join = self._sessions.start, self._sessions.join
        self._stopping = self._sessions.stopping
        self.stop = self._stopping.set
        """Asks for the end; what is half done is done by the next owner."""

    def roster_aged(self) -> bool:
        """Have the records of the roster written again. Returns whether this process owns it. From any thread."""
        if self._owns:
            self._aged.set()
        return self._owns

    def want(self, wanted: bool, *, fence: bool) -> None:
        """Try to own the roster, and if ``fence`` take it from a process that is silent; or leave it to another process.
        What is owned stays: the groups are one share, which no other process needs. From any thread.
        """
        self._fence = fence
        (self._wanted.set if wanted else self._wanted.clear)()

    def _run_session(self) -> None:
        try:
            with suppress(Stopped):
                self._once()
        finally:
            self.has = False
            self._metrics.gauges["group_open"].set(0)

    def _once(self) -> None:
        pulsar = self._settings.pulsar
        patient = pulsar.model_copy(update={"operation_timeout": min(pulsar.operation_timeout, 5.0)})
        with PulsarClient(patient) as client:
            if not client.partitioned(pulsar.system_topic(GROUP_ROSTER_TOPIC)):
                # Only without provisioning: the operator that made the other topics may not know of these yet.
                self._part.stands_by("the topics of groups are not there: run `pulsebridge provision`")
                self._stopping.wait(_ABSENT_S)
                return
            groups = self._settings.push.groups
            group_log = GroupLog(client, uuid.uuid4().hex[:12], self._stopping.is_set, self._metrics)
            self._wait_for(lambda: group_log.own(fence=self._fence), self._wanted.is_set)
            self.has = True
            roster = group_log.read()
            membership = Membership(groups.declared, groups.max_matches)
            with (
                closing(MemberTable(client, membership, self._stopping.is_set)) as table,
                closing(KnownDevices(client, membership)) as known,
            ):
                expander = Expander(
                    roster,
                    membership,
                    group_log,
                    groups.topic,
                    int(groups.expiry * 1_000_000),
                    _broadcast_topic=groups.broadcast_topic if self._settings.push.confirm == "device" else "",
                    _links=tuple(brokers_of(self._settings).settings),
                    _generation=self._settings.pulsar.command_generation,
                )
                self._wait_for(group_log.subscribe)
                self._sessions.worked = self._owns = True
                try:
                    self._expand(group_log, expander, table, known)
                finally:
                    self._owns = False

    def _wait_for(self, attempt: Callable[[], None], wanted: Callable[[], bool] = lambda: True) -> None:
        if not wait_for(attempt, self._stopping, self._part, "the groups", wanted):
            raise Stopped

    def _expand(self, group_log: GroupLog, expander: Expander, table: MemberTable, known: KnownDevices) -> None:
        """Give out what comes until stopped. Raises Stopped, FencedError or TransientError."""
        self._aged.clear()
        known.take()
        table.take_all()
        expander.resume(_now_us())
        self._part.ready()
        log.info("groups are ours", open=expander.open)
        next_look = time.monotonic() + _LOOK_S
        while not self._stopping.is_set():
            message = group_log.receive(_RECEIVE_MS)
            if message is not None:
                known.take()
                table.take_all()
                command = _decoded(message, self._settings.max_name_bytes)
                position, published_us = position_of(message.message_id()), message.publish_timestamp() * 1000
                expander.arrived(position, command, published_us, _now_us())
            elif time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_S
                known.take()
            table.take()
            expander.changed(_now_us())
            due = expander.next_expiry_us()
            if message is not None or (due is not None and due <= _now_us()):
                expander.passed(_now_us())
            if self._aged.is_set():
                self._aged.clear()
                expander.aged()
            expander.rewritten()
            self._metrics.gauges["group_open"].set(expander.open)
        raise Stopped


def _decoded(message: Message, max_name_bytes: int = MAX_NAME_BYTES) -> GroupCommand | BadCommand:
    properties = properties_of(message)
    if properties is None:
        return BadCommand(NO_TEXT, "", "")
    try:
        return decode_group_command(properties, message.data(), max_name_bytes)
    except ContractError as e:
        # Its receipt is to fit into a message of Pulsar, whatever is wrong with it.
        names = (properties.get(name, "")[:MAX_NAME_BYTES] for name in (C_ID, C_GROUP))
        return BadCommand(str(e), *names)


def _now_us() -> int:
    return time.time_ns() // 1000

"""Reads push's topics beside their owners: readers of its own, nothing acknowledged, nothing written.

For each partition: the compacted view of the cursors, that of presence, and of the commands what the subscription of
push has not acknowledged, up to a bound. One partition is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.commands import NOWHERE, Command, CommandPosition, decode_command, read_command
from bridge.contract import (
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    PARKED_TOPIC,
    PRESENCE_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    Receipt,
    partition_name,
)
from bridge.devices.acknowledged import Acknowledged
from bridge.devices.view import DeviceView, PartitionView, Waiting
from bridge.errors import ContractError, TerminalError
from bridge.murmur3 import partition_of
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import (
    EARLIEST,
    Message,
    PulsarClient,
    key_of,
    message_id,
    our_errors,
    properties_of,
)
from bridge.push.parked import GONE
from bridge.push.position_reader import PositionReader
from bridge.push.taken import Taken, position_of, record_key
from bridge.topic_end import Ledgers, read_to_end

__all__ = [
    "BACKLOG",
    "OLDEST",
    "Budget",
    "Owner",
    "PushTopics",
    "ReceiptsRead",
    "emitted_us",
    "waiting_command",
]

BACKLOG: Final = 100_000
"""How many messages of the backlog are read at most, of all partitions, unless told otherwise."""
OLDEST: Final = 1000
"""Of how many devices the oldest waiting command is read: far apart each takes a reader of its own."""
READER: Final = "pulsebridge-devices"
_RECEIVE_MS: Final = 1000
_PATIENCE: Final = 30
"""So many times nothing comes although something should, before it is given up."""
_BACK: Final = (1000, 10_000, 100_000)
"""How many entries before the end of a receipts partition are looked through, for a device's last ones."""

Progress = Callable[[str, int], None]
"""Called with what is being read, and how many messages of it were."""


def emitted_us(command: Command, published_ms: int) -> int:
    """Return when a command was emitted, or published where it does not say, in µs since the epoch."""
    return command.emitted_at_us or published_ms * 1000


def waiting_command(message: Taken | None) -> Command | None:
    """Return a command that waits, by the rules of whatever release took it; None for what is none, and without any."""
    try:
        return None if message is None else read_command(message.properties, message.payload)
    except ContractError:
        return None


@dataclass(slots=True)
class Budget:
    """How many messages of the backlog may still be read."""

    left: int
    read: int = 0
    spent: bool = False
    """Whether there was more than that."""
    left_out: int = 0
    """How many of those that were read are no commands."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {"backlog": self.read, "backlog_cut": self.spent, "backlog_left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who serves a partition."""

    process: str
    """``host/pid`` of the last process that owned it, empty when nobody ever did."""
    serves: bool
    """Whether a process holds the partition at this moment."""
    since: str = ""
    """When its connection to Pulsar was made."""


@dataclass(slots=True)
class ReceiptsRead:
    """The last receipts of a device, in order, and how far back was looked."""

    receipts: list[Receipt] = field(default_factory=list)
    entries: int = 0
    whole: bool = False
    """Whether all that Pulsar keeps was looked through."""


class PushTopics:
    """The topics of one installation. Raises TransientError while Pulsar cannot be reached."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, progress: Progress = lambda _what, _count: None
    ) -> None:
        """Raises TerminalError where there is no commands topic."""
        self.client = client
        self._admin = admin
        self._progress = progress
        self.commands = admin.settings.system_topic(COMMANDS_TOPIC)
        self.partitions = admin.partition_count(self.commands)
        if not self.partitions:
            raise TerminalError(
                f"there is no commands topic {self.commands}",
                remedy="check pulsar.tenant and pulsar.system_namespace; `pulsebridge push` makes it at its first start",
            )

    def count(self, local: str) -> int:
        """Return how many partitions a system topic has, 0 when it is not there."""
        return self._admin.partition_count(self.full_name(local))

    def full_name(self, local: str) -> str:
        """Return the name of a system topic as Pulsar has it."""
        return self._admin.settings.system_topic(local)

    def partition_of(self, device: str) -> int:
        """Return the partition of a device's commands."""
        return partition_of(device, self.partitions)

    # --- one partition ---

    def records(self, partition: int, *, remembered_ids: int = 0) -> PartitionView:
        """Read cursors, parked ids and presence of a partition."""
        view = PartitionView(partition, remembered_ids=remembered_ids)
        for local, take in ((CURSORS_TOPIC, view.take_record), (PRESENCE_TOPIC, view.take_presence)):
            if partition < self.count(local):
                for key, payload in self.keyed(local, partition):
                    take(key, payload)
        return view

    def keyed(self, local: str, partition: int) -> Iterator[tuple[str, bytes]]:
        """Yield the records of a compacted system topic by their keys; one that push did not write is left out."""
        for message in self.scan(local, partition, compacted=True):
            key = record_key(message, local)
            if key is not None:
                yield key, message.data()

    def unacknowledged(self, partition: int, budget: Budget) -> Iterator[tuple[CommandPosition, Command, int]]:
        """Yield the commands of a partition that push has not acknowledged, as far as the budget allows, each with its
        position before it and behind it when it was published, in ms.

        What push will not take for a command is left out, and counted.
        """
        cursors = self._admin.internal_stats(partition_name(self.commands, partition))["cursors"]
        if PUSH_SUBSCRIPTION not in cursors:
            return
        acknowledged = Acknowledged(cursors[PUSH_SUBSCRIPTION])
        for message in self.scan(COMMANDS_TOPIC, partition, after=acknowledged.until, queue=100):
            if not budget.left:
                budget.spent = True
                return
            budget.left -= 1
            budget.read += 1
            where = position_of(message.message_id())
            if acknowledged.covers(where.ledger, where.entry):
                continue
            properties = properties_of(message)
            try:
                command = None if properties is None else decode_command(properties, message.data())
            except ContractError:
                command = None
            if command is None:
                budget.left_out += 1
                continue
            yield where, command, message.publish_timestamp()

    def scan(
        self,
        local: str,
        partition: int,
        *,
        after: tuple[int, int] | None = None,
        start: CommandPosition | None = None,
        compacted: bool = False,
        queue: int = 500,
    ) -> Iterator[Message]:
        """Yield what stands in a partition of a system topic to its present end: all of it, or what is ``after`` an
        entry, or from ``start`` on.
        """
        name = partition_name(self.full_name(local), partition)
        begin: Any = EARLIEST
        if after is not None:
            begin = message_id(partition, *after, -1)
        elif start is not None:
            begin = message_id(partition, *start)
        reader: Any = self.client.reader(
            name, begin, queue=queue, inclusive=after is None, compacted=compacted, name=READER
        )
        count = 0
        last = NOWHERE if after is None else CommandPosition(*after, -1)
        if start is not None:
            last = CommandPosition(start.ledger, start.entry - 1, -1)
        try:
            for message in read_to_end(reader, self.client.settings, name, last=last, compacted=compacted):
                count += 1
                if count % 500 == 0:
                    self._progress(name.rpartition("/")[2], count)
                yield message
        finally:
            with our_errors(f"closing the reader of {name}"):
                reader.close()

    # --- of one device ---

    def oldest(self, devices: list[DeviceView]) -> None:
        """Find out when the oldest waiting command of each device was emitted, where it is not known yet, of so many of
        the first as ``OLDEST`` says; in the order of the log, since one that stands near behind another costs little.
        """
        wanted = [one for one in devices if one.oldest is not None and not one.oldest_us][:OLDEST]
        for partition in sorted({one.partition for one in wanted}):
            mine = [(one.oldest, one) for one in wanted if one.partition == partition and one.oldest]
            mine.sort(key=lambda pair: pair[0].position)
            read = self.read(partition, [waiting for waiting, _ in mine])
            for count, ((_, one), (_, message)) in enumerate(zip(mine, read, strict=True)):
                command = waiting_command(message)
                if message is not None and command is not None:
                    one.oldest_us = emitted_us(command, message.published_ms)
                self._progress(f"the oldest commands of partition {partition}", count)

    def read(self, partition: int, waiting: list[Waiting]) -> Iterator[tuple[Waiting, Taken | None]]:
        """Read commands that wait; None for a message that Pulsar does not have any more."""
        reader = PositionReader(self.client, partition_name(self.commands, partition), partition)
        moved = partition_name(self._admin.settings.system_topic(PARKED_TOPIC), partition)
        copies = PositionReader(self.client, moved, partition)
        try:
            for one in waiting:
                place = None if one.parked is None else one.parked.place
                if place == GONE:
                    yield one, None
                else:
                    yield one, reader.read(one.position) if place is None else copies.read(place)
        finally:
            reader.close()
            copies.close()

    def last_receipts(self, device: str, most: int) -> ReceiptsRead:
        """Return the last ``most`` receipts of a device, looking back from the end of its partition as far as need be."""
        found = ReceiptsRead()
        topic = self._admin.settings.system_topic(RECEIPTS_TOPIC)
        count = self._admin.partition_count(topic)
        if not count or not most:
            return found
        partition = partition_of(device, count)
        ledgers = Ledgers(self._admin.internal_stats(partition_name(topic, partition)))
        ahead: CommandPosition | None = None
        for back in _BACK:
            begin, found.whole, found.entries = ledgers.before_the_end(back)
            older: list[Receipt] = []
            for message in self.scan(RECEIPTS_TOPIC, partition, start=begin):
                where = position_of(message.message_id())
                if ahead is not None and where[:2] >= ahead[:2]:
                    break
                if key_of(message) == device:
                    with suppress(ContractError):
                        older.append(Receipt.decode(message.data()))
            found.receipts = [*older, *found.receipts][-most:]
            ahead = begin
            if found.whole or len(found.receipts) >= most:
                break
        return found

    def owner(self, view: PartitionView) -> Owner:
        """Return who serves a partition: who wrote its last record, and whether its producer is there."""
        cursors = partition_name(self._admin.settings.system_topic(CURSORS_TOPIC), view.partition)
        publishers = self._admin.stats(cursors).get("publishers") or []
        process = view.owner.token.rpartition("/")[0] if view.owner is not None else ""
        since = str(publishers[0].get("connectedSince", "")) if publishers else ""
        return Owner(process, bool(publishers), since)

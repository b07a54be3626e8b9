"""Reads push's topics with separate readers; it acknowledges and writes nothing.

For each partition it reads the compacted views of cursors and presence. It also reads the commands that push's
subscription has not acknowledged, up to a bound. One partition is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import (
    C_ID,
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    PARKED_TOPIC,
    PRESENCE_TOPIC,
    PUSH_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    Receipt,
    partition_name,
)
from bridge.contract.commands import BEFORE_ALL, Command, CommandPosition, GroupRef, decode_command, read_command
from bridge.contract.partitioning import partition_of
from bridge.contract.segments import GONE
from bridge.errors import ContractError, TerminalError
from bridge.inspect.devices.acknowledged import Acknowledged
from bridge.inspect.devices.view import DeviceView, PartitionView, Waiting
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import EARLIEST, Message, PulsarClient, key_of, message_id, properties_of
from bridge.pulsar.messages import StoredMessage, position_of, record_key
from bridge.pulsar.position_reader import PositionReader
from bridge.pulsar.topic_end import Ledgers, read_partition

__all__ = [
    "OLDEST",
    "Budget",
    "Owner",
    "PushTopics",
    "ReceiptsRead",
    "emitted_us",
    "waiting_command",
]

OLDEST: Final = 1000
"""Number of devices whose oldest waiting command is read: each distant position needs a separate reader."""
READER: Final = "pulsebridge-devices"
_RECEIPT_ENTRIES: Final = (1000, 10_000, 100_000)
"""Entries before the end of a receipts partition that are searched, step by step, for the last receipts of a device."""

Progress = Callable[[str, int], None]
"""Called with the name of a topic and the number of messages read from it."""


def emitted_us(command: Command, published_ms: int) -> int:
    """Return the emit time of a command, else its publish time, in µs since the epoch."""
    return command.emitted_at_us or published_ms * 1000


def waiting_command(message: StoredMessage | None) -> Command | None:
    """Return the command of a stored message, None without a message or for an invalid one. It accepts all releases."""
    try:
        return None if message is None else read_command(message.properties, message.payload)
    except ContractError:
        return None


@dataclass(slots=True)
class Budget:
    """Number of messages of the backlog that may still be read."""

    left: int
    read: int = 0
    spent: bool = False
    """Whether the backlog has more messages."""
    left_out: int = 0
    """Number of read messages that are not valid commands."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The push process that serves a partition."""

    process: str
    """``host/pid`` of the last process that owned it, empty if none did."""
    serves: bool
    """Whether a process owns the partition now."""
    since: str = ""
    """Time at which the process connected to Pulsar."""


@dataclass(slots=True)
class ReceiptsRead:
    """The last receipts of a device, in order, and the number of entries searched."""

    receipts: list[Receipt] = field(default_factory=list)
    entries: int = 0
    whole: bool = False
    """Whether the search covered all that Pulsar keeps."""


class PushTopics:
    """Push's topics of one installation. Raises TransientError while Pulsar cannot be reached."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, progress: Progress = lambda _topic, _count: None
    ) -> None:
        """Raises TerminalError if the commands topic does not exist."""
        self.client = client
        self._admin = admin
        self._progress = progress
        self._group_payload: tuple[GroupRef | None, bytes | None] = None, None
        self.commands = admin.settings.system_topic(COMMANDS_TOPIC)
        self.partitions = admin.partition_count(self.commands)
        if not self.partitions:
            raise TerminalError(
                f"the commands topic {self.commands} does not exist",
                remedy="check pulsar.tenant and pulsar.system_namespace; `pulsebridge push` creates it at its start",
            )

    def count(self, local: str) -> int:
        """Return how many partitions a system topic has, 0 if it does not exist."""
        return self._admin.partition_count(self.full_name(local))

    def full_name(self, local: str) -> str:
        """Return the full name of a system topic."""
        return self._admin.settings.system_topic(local)

    def shown(self, partition: int, position: CommandPosition) -> str:
        """Return the text of a position in a partition of a system topic, as receipts have it."""
        return position.encode(partition, self.generation)

    @property
    def generation(self) -> int:
        """The generation of the commands topic."""
        return self._admin.settings.command_generation

    def partition_of(self, device: str) -> int:
        """Return the partition of a device's commands."""
        return partition_of(device, self.partitions)

    # --- one partition ---

    def records(self, partition: int) -> PartitionView:
        """Read cursors, parked ids and presence of a partition."""
        view = PartitionView(partition)
        for local, take in ((CURSORS_TOPIC, view.take_record), (PRESENCE_TOPIC, view.take_presence)):
            if partition < self.count(local):
                for key, payload in self.keyed(local, partition):
                    take(key, payload)
        return view

    def keyed(self, local: str, partition: int) -> Iterator[tuple[str, bytes]]:
        """Yield key and payload of each record of a compacted system topic that push wrote."""
        for message in self.scan(local, partition, compacted=True):
            key = record_key(message, local)
            if key is not None:
                yield key, message.data()

    def acknowledged(self, partition: int) -> Acknowledged | None:
        """Return what push has acknowledged of a partition, None without its subscription."""
        cursors = self._admin.internal_stats(partition_name(self.commands, partition))["cursors"]
        return Acknowledged(cursors[PUSH_SUBSCRIPTION]) if PUSH_SUBSCRIPTION in cursors else None

    def unacknowledged(self, partition: int, budget: Budget) -> Iterator[tuple[CommandPosition, Command, int]]:
        """Yield position, command and publish time (ms) of each unacknowledged command of a partition.

        It stops at the end of the budget. It skips and counts messages that push does not accept as commands.
        """
        acknowledged = self.acknowledged(partition)
        if acknowledged is None:
            return
        until = CommandPosition(*acknowledged.until, -1)
        for message in self.scan(COMMANDS_TOPIC, partition, start=until, inclusive=False, queue=100):
            if not budget.left:
                budget.spent = True
                return
            budget.left -= 1
            budget.read += 1
            position = position_of(message.message_id())
            if acknowledged.covers(position.ledger, position.entry):
                continue
            properties = properties_of(message)
            try:
                command = None if properties is None else decode_command(properties, message.data())
            except ContractError:
                command = None
            if command is None:
                budget.left_out += 1
                continue
            yield position, command, message.publish_timestamp()

    def scan(
        self,
        local: str,
        partition: int,
        *,
        start: CommandPosition | None = None,
        inclusive: bool = True,
        compacted: bool = False,
        queue: int = 500,
    ) -> Iterator[Message]:
        """Yield the messages of a system topic's partition, from ``start`` or from the beginning to its current end.

        Unless ``inclusive``, it begins after the entry of ``start``.
        """
        name = partition_name(self.full_name(local), partition)
        last = start or BEFORE_ALL
        if start is not None and inclusive:
            last = CommandPosition(start.ledger, start.entry - 1, -1)
        read = read_partition(
            self.client,
            name,
            start=EARLIEST if start is None else message_id(partition, *start),
            inclusive=inclusive,
            last=last,
            compacted=compacted,
            queue=queue,
            name=READER,
        )
        for count, message in enumerate(read, 1):
            if count % 500 == 0:
                self._progress(name.rpartition("/")[2], count)
            yield message

    # --- one device ---

    def oldest(self, devices: list[DeviceView]) -> None:
        """Set the unknown ``oldest_us`` of the first ``OLDEST`` devices from the oldest waiting command of each.

        It reads in the order of the log, because positions near each other share a reader.
        """
        wanted = [one for one in devices if one.oldest is not None and not one.oldest_us][:OLDEST]
        for partition in sorted({one.partition for one in wanted}):
            of_partition = [(one.oldest, one) for one in wanted if one.partition == partition and one.oldest]
            of_partition.sort(key=lambda pair: pair[0].position)
            read = self.read(partition, [waiting for waiting, _ in of_partition])
            for count, ((_, one), (_, message)) in enumerate(zip(of_partition, read, strict=True)):
                command = waiting_command(message)
                if message is not None and command is not None:
                    one.oldest_us = emitted_us(command, message.published_ms)
                self._progress(f"the oldest commands of partition {partition}", count)

    def read(self, partition: int, waiting: list[Waiting]) -> Iterator[tuple[Waiting, StoredMessage | None]]:
        """Yield waiting commands with their messages; None for a message that Pulsar has deleted."""
        commands, relocated = (
            partition_name(topic, partition) for topic in (self.commands, self.full_name(PARKED_TOPIC))
        )
        with (
            closing(PositionReader(self.client, commands, partition)) as reader,
            closing(PositionReader(self.client, relocated, partition)) as copies,
        ):
            for one in waiting:
                copied_to = None if one.parked is None else one.parked.copy
                if copied_to == GONE:
                    yield one, None
                else:
                    yield one, reader.read(one.position) if copied_to is None else copies.read(copied_to)

    def group_payload(self, ref: GroupRef) -> bytes | None:
        """Return the payload of a group command, None if Pulsar has deleted it.

        The last one is cached, because the commands of a group's members are resent together.
        """
        if self._group_payload[0] != ref:
            self._group_payload = ref, self._read_payload(ref)
        return self._group_payload[1]

    def _read_payload(self, ref: GroupRef) -> bytes | None:
        if not self.count(GROUP_COMMANDS_TOPIC):
            return None
        topic = partition_name(self.full_name(GROUP_COMMANDS_TOPIC), 0)
        with closing(PositionReader(self.client, topic, 0, near=1)) as reader:
            message = reader.read(ref.position)
        return message.payload if message is not None and message.properties.get(C_ID) == ref.command_id else None

    def last_receipts(self, device: str, most: int) -> ReceiptsRead:
        """Return the last ``most`` receipts of a device; search from the end of its partition as far as necessary."""
        found = ReceiptsRead()
        topic, count = self.full_name(RECEIPTS_TOPIC), self.count(RECEIPTS_TOPIC)
        if not count or not most:
            return found
        partition = partition_of(device, count)
        ledgers = Ledgers(self._admin.internal_stats(partition_name(topic, partition)))
        searched: CommandPosition | None = None
        for entries in _RECEIPT_ENTRIES:
            begin, found.whole, found.entries = ledgers.before_the_end(entries)
            older: list[Receipt] = []
            for message in self.scan(RECEIPTS_TOPIC, partition, start=begin):
                position = position_of(message.message_id())
                if searched is not None and position[:2] >= searched[:2]:
                    break
                if key_of(message) == device:
                    with suppress(ContractError):
                        older.append(Receipt.decode(message.data()))
            found.receipts = [*older, *found.receipts][-most:]
            searched = begin
            if found.whole or len(found.receipts) >= most:
                break
        return found

    def owner(self, view: PartitionView) -> Owner:
        """Return the owner of a partition: the last record's writer, and whether its producer is connected."""
        cursors = partition_name(self.full_name(CURSORS_TOPIC), view.partition)
        publishers = self._admin.stats(cursors).get("publishers") or []
        process = view.owner.token.rpartition("/")[0] if view.owner is not None else ""
        since = str(publishers[0].get("connectedSince", "")) if publishers else ""
        return Owner(process, bool(publishers), since)

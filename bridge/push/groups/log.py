"""The expander's side of Pulsar: the producer that makes it the owner of the roster, and all that it reads and writes.

It decides nothing. Every method blocks until Pulsar has answered; all are called on the expander's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final

import structlog

from bridge.contract import (
    COMMANDS_TOPIC,
    DEAD_LETTERS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    GROUP_ROSTER_TOPIC,
    GROUPS_SUBSCRIPTION,
    RECEIPTS_TOPIC,
    Receipt,
    partition_name,
)
from bridge.contract.commands import Command, CommandPosition, encode_command
from bridge.dead_letters import dead_letter, letter_key
from bridge.errors import ContractError, FencedError
from bridge.killpoints import reach
from bridge.pulsar.client import (
    EARLIEST,
    Message,
    Producer,
    PulsarClient,
    key_of,
    message_id,
    our_errors,
    properties_of,
)
from bridge.pulsar.messages import leave_out_foreign, read_records
from bridge.pulsar.sending import PartitionWriters, Receipts, owners_producer
from bridge.pulsar.subscription import Subscription
from bridge.push.groups.roster import OWNER, Change, Roster, owner_of
from bridge.push.metrics import PushMetrics

__all__ = ["GroupLog", "Stopped"]

log = structlog.get_logger("push")

_ANSWER_PATIENCE_S: Final = 60.0
"""A restart of Pulsar is shorter, and the client sends again what it had not answered."""
_AT_ONCE: Final = 10_000  # messages without a receipt; the queues of the producers take more
_QUEUE: Final = 4  # group commands may be large

_Sent = tuple[Producer, str, str, bytes, dict[str, Any]]
"""Producer, topic, key, payload and further arguments of a message."""


class Stopped(Exception):
    """Raised when the process is to end while Pulsar has not answered."""


class GroupLog:
    """The Pulsar objects of the expander while this process owns the roster, or tries to."""

    def __init__(self, client: PulsarClient, token: str, over: Callable[[], bool], metrics: PushMetrics) -> None:
        """``token`` names this owner; once ``over`` is true what waits raises Stopped."""
        self._client = client
        self._token = token
        self._over = over
        self._metrics = metrics
        self.commands = partition_name(client.settings.system_topic(GROUP_COMMANDS_TOPIC), 0)
        self._roster = partition_name(client.settings.system_topic(GROUP_ROSTER_TOPIC), 0)
        self._producer: Producer | None = None
        self._proof: Iterable[tuple[str, Message]] = ()  # what we write, and what anyone writes besides
        self._subscription: Subscription
        self._received: Message | None = None
        self._writers = PartitionWriters(client, 60_000, chunking=True)

    def own(self, *, fence: bool = False) -> None:
        """Get the exclusive producer of the roster, as ``owners_producer``. Raises FencedError or TransientError."""
        self._producer = owners_producer(self._client, self._roster, fence=fence)

    def read(self) -> Roster:
        """Return what the former owners knew, up to a record of ours, which proves that it is ours now.

        A record that cannot be read is left out: an entry that is written again for that has the id that it had, and
        push drops repeats.
        """
        roster = Roster()
        self._write_roster([OWNER])
        with closing(read_records(self._client, self._roster, EARLIEST, compacted=True, over=self._over)) as records:
            for key, owner, message in self._owned(records):
                if owner == self._token:
                    last = message.message_id()
                    break
                try:
                    roster.take(key, message.data())
                except ContractError as e:
                    leave_out_foreign(self._roster, message.message_id(), str(e), key)
            else:
                raise Stopped
        self._proof = read_records(self._client, self._roster, last, inclusive=False, over=self._over)
        return roster

    def store(self, changes: Sequence[Change]) -> None:
        """Write records and read them back. Raises FencedError when another owner wrote in between (H23)."""
        self._write_roster(changes)
        seen = 0
        for _, owner, _ in islice(self._owned(self._proof), len(changes)):
            if owner not in (None, self._token):
                raise FencedError("another process gave group commands to their members in between")
            seen += 1
        if seen < len(changes):
            raise Stopped
        reach("group_after_store")

    def _owned(self, records: Iterable[tuple[str, Message]]) -> Iterator[tuple[str, str | None, Message]]:
        """Yield key, owner and message of each record. Foreign ones are reported and left out."""
        for key, message in records:
            try:
                owner = owner_of(key, message.data())
            except ContractError as e:
                leave_out_foreign(self._roster, message.message_id(), str(e))
            else:
                yield key, owner, message

    def _write_roster(self, changes: Iterable[Change]) -> None:
        assert self._producer is not None
        self._write([(self._producer, self._roster, *change.encode(self._token), {}) for change in changes])

    def _write(self, messages: Sequence[_Sent]) -> None:
        """Write messages, and return once Pulsar has stored them. Raises what Pulsar answers, TransientError when it answers
        nothing any more, Stopped when it is over.

        A message that is stored after all does no harm: records of the roster precede those of the next owner, which reads
        them; entries have the ids of those that are written again, and push drops repeats.
        """
        receipts = Receipts()
        for at, (producer, topic, key, payload, more) in enumerate(messages):
            with our_errors(f"writing to {topic}"):
                producer.send_async(payload, callback=receipts.of(at), partition_key=key, **more)
        if messages and not receipts.wait_for_all(f"writing to {messages[0][1]}", _ANSWER_PATIENCE_S, self._over):
            raise Stopped
        for at, (_, topic, *_) in enumerate(messages):
            if (error := receipts.error(at, f"writing to {topic}")) is not None:
                raise error

    def subscribe(self) -> None:
        """Subscribe to the group commands. Raises FencedError while the former owner's connection still does."""
        self._subscription = Subscription(self._client, self.commands, GROUPS_SUBSCRIPTION, queue=_QUEUE)

    def receive(self, timeout_ms: int) -> Message | None:
        """Return the next group command, None when none comes in time."""
        self._received = self._subscription.receive(timeout_ms)
        return self._received

    def release(self, position: CommandPosition) -> None:
        """Acknowledge everything up to a position, its whole entry included."""
        self._subscription.acknowledge(message_id(0, position.ledger, position.entry, -1), cumulative=True)

    def write_entries(self, entries: Sequence[Command]) -> None:
        """Write commands to the commands topic, each device's in their order."""
        reach("group_before_entries")
        for start in range(0, len(entries), _AT_ONCE):
            self._write([self._entry(entry) for entry in entries[start : start + _AT_ONCE]])
        self._metrics.counters["group_entries"].inc(sum(not entry.is_broadcast for entry in entries))
        reach("group_after_entries")

    def _entry(self, entry: Command) -> _Sent:
        topic = self._writers.partition(COMMANDS_TOPIC, entry.device)
        more = {"properties": encode_command(entry), "event_timestamp": entry.emitted_at_us // 1000 or None}
        return self._writers.of(topic, batching=True), topic, entry.device, b"", more

    def write_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Write receipts; those of group commands are keyed by group."""
        self._write([self._receipt(receipt) for receipt in receipts])
        for receipt in receipts:
            if not receipt.device:
                self._metrics.counters["group_commands"].labels(receipt.state).inc()
        reach("group_after_receipt")

    def _receipt(self, receipt: Receipt) -> _Sent:
        key = receipt.device or receipt.group
        topic = self._writers.partition(RECEIPTS_TOPIC, key)
        return self._writers.of(topic, batching=True), topic, key, receipt.encode(), {}

    def give_up(self, reason: str) -> None:
        """Write the message that was received last to the dead letters."""
        message = self._received
        assert message is not None
        log.warning("a command to a group is given up; see the dead letters", why=reason)
        key = letter_key(key_of(message) or "")
        payload, properties = dead_letter(
            message.data(),
            topic=self.commands,
            device=key,
            reason=reason,
            at_us=time.time_ns() // 1000,
            properties=properties_of(message) or {},
        )
        topic = self._writers.partition(DEAD_LETTERS_TOPIC, key)
        self._write([(self._writers.of(topic), topic, key or "unknown", payload, {"properties": properties})])

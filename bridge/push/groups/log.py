"""The expander's side of Pulsar: the producer that makes it the owner of the roster, and all that it reads and writes.

It decides nothing. Every method blocks until Pulsar has answered; all are called on the expander's thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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
from bridge.errors import ContractError, FencedError, PulsebridgeError, TransientError
from bridge.pulsar.client import (
    EARLIEST,
    OK,
    Message,
    MessageId,
    Producer,
    PulsarClient,
    ReceiveTimeout,
    key_of,
    message_id,
    our_errors,
    properties_of,
)
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.sending import close_quietly
from bridge.push.groups.roster import OWNER, Change, Roster, owner_of
from bridge.push.partition_log import WrittenTopics
from bridge.push.position_reader import leave_out_foreign, record_key
from bridge.settings.pulsar import PulsarSettings

__all__ = ["GroupLog", "Stopped"]

_READ_PATIENCE_MS: Final = 10_000
_ANSWER_PATIENCE_S: Final = 60.0
"""Without any answer; a restart of Pulsar is shorter, and the client sends again what it had not answered."""
_AT_ONCE: Final = 10_000
"""Messages without a receipt; the queues of the producers take more."""
_QUEUE: Final = 4
"""Group commands may be large."""


class Stopped(Exception):
    """Raised when the process is to end while Pulsar has not answered."""


class _Answers:
    """Counts what was sent, and waits until Pulsar has stored it.

    Not without end: Pulsar's client tries for ever, and where an answer was lost nothing else would end the wait. What is
    stored after all does no harm. Records of the roster come before those of the next owner, which reads them; the
    entries have the ids of those that are written again, and push drops repeats.
    """

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over
        self._changed = threading.Condition()
        self._pending: Counter[str] = Counter()  # by topic
        self._error: PulsebridgeError | None = None
        self._answered_at = time.monotonic()

    def sent(self, topic: str) -> Callable[[object, MessageId], None]:
        with self._changed:
            self._pending[topic] += 1

        def answered(result: object, _id: MessageId) -> None:  # on a thread of Pulsar's client
            with self._changed:
                self._pending[topic] -= 1
                self._answered_at = time.monotonic()
                if result != OK and self._error is None:
                    self._error = as_our_error(result, f"writing to {topic}")
                self._changed.notify_all()

        return answered

    def wait(self) -> None:
        """Return once all is stored. Raises what Pulsar answered, and TransientError when it answers nothing any more."""
        with self._changed:
            self._answered_at = time.monotonic()
            while self._error is None and (missing := +self._pending):
                if self._over():
                    raise Stopped
                if time.monotonic() - self._answered_at >= _ANSWER_PATIENCE_S:
                    topic, count = missing.most_common(1)[0]
                    raise TransientError(
                        f"writing to {topic}: no answer to {count} messages for {_ANSWER_PATIENCE_S:g} s",
                        remedy="see whether Pulsar's brokers and bookies are up",
                    )
                self._changed.wait(0.2)
            if self._error is not None:
                raise self._error


class _Record(NamedTuple):
    key: str
    owner: str | None


class GroupLog:
    """The Pulsar objects of the expander while this process owns the roster, or tries to."""

    def __init__(self, client: PulsarClient, settings: PulsarSettings, token: str, over: Callable[[], bool]) -> None:
        """``token`` names this owner; once ``over`` is true what waits raises Stopped."""
        self._client = client
        self._token = token
        self._over = over
        self.commands = partition_name(settings.system_topic(GROUP_COMMANDS_TOPIC), 0)
        self._roster = partition_name(settings.system_topic(GROUP_ROSTER_TOPIC), 0)
        self._producer: Producer | None = None
        self._proof: Any = None  # reads what we write, and would show who writes besides
        self._consumer: Any = None
        self._topics = WrittenTopics(client, settings)

    def own(self) -> None:
        """Become the owner: wait for the exclusive producer of the roster (H23).

        Raises TransientError after a few seconds as a standby: try again.
        """
        self._producer = self._client.producer(self._roster, exclusive=True, max_pending=60_000)

    def read(self) -> Roster:
        """Return what the former owners knew, up to a record of ours, which proves that it is ours now."""
        assert self._producer is not None
        roster = Roster()
        self._send(self._producer, self._roster, [OWNER])
        reader: Any = self._client.reader(self._roster, EARLIEST, compacted=True)
        try:
            while True:
                message = self._next(reader)
                found = self._record(message)
                if found is not None and found.owner == self._token:
                    break
                if found is not None:
                    self._take(roster, found.key, message)
        finally:
            close_quietly(reader)
        self._proof = self._client.reader(self._roster, message.message_id(), inclusive=False)
        return roster

    def _take(self, roster: Roster, key: str, message: Message) -> None:
        """Take a record. One that cannot be read is left out: an entry that is written again for that has the id that
        it had, and push drops repeats.
        """
        try:
            roster.take(key, message.data())
        except ContractError as e:
            leave_out_foreign(self._roster, message.message_id(), str(e), key)

    def _next(self, reader: Any) -> Message:
        with our_errors(f"reading {self._roster}"):
            end = time.monotonic() + _READ_PATIENCE_MS / 1000
            while True:
                try:
                    found: Message = reader.read_next(500)
                    return found
                except ReceiveTimeout:
                    if self._over():
                        raise Stopped from None
                    if time.monotonic() > end:
                        raise TransientError(f"reading {self._roster}: nothing comes") from None

    def store(self, changes: Sequence[Change]) -> None:
        """Write records and read them back. Raises FencedError when another owner wrote in between: a producer that
        waits for exclusive access gets it again when its successor leaves, without any notice (H23).
        """
        assert self._producer is not None
        self._send(self._producer, self._roster, changes)
        seen = 0
        while seen < len(changes):
            found = self._record(self._next(self._proof))
            if found is None:
                continue
            if found.owner not in (None, self._token):
                raise FencedError("another process gave group commands to their members in between")
            seen += 1

    def _record(self, message: Message) -> _Record | None:
        """Return the key and the owner of a record, None for what counts for nothing: foreign ones, which are named, and
        what compaction leaves of a message in the midst of a batch.
        """
        key, payload = record_key(message, self._roster), message.data()
        if key is None or (not key and not payload):
            return None
        try:
            return _Record(key, owner_of(key, payload))
        except ContractError as e:
            leave_out_foreign(self._roster, message.message_id(), str(e))
            return None

    def _send(self, producer: Producer, topic: str, changes: Sequence[Change]) -> None:
        answers = _Answers(self._over)
        with our_errors(f"writing to {topic}"):
            for change in changes:
                key, payload = change.encode(self._token)
                producer.send_async(payload, callback=answers.sent(topic), partition_key=key)
        answers.wait()

    def subscribe(self) -> None:
        """Subscribe to the group commands. Raises FencedError while the former owner's connection still does."""
        self._consumer = self._client.consumer(self.commands, GROUPS_SUBSCRIPTION, queue=_QUEUE)

    def receive(self, timeout_ms: int) -> Message | None:
        """Return the next group command, None when none comes in time."""
        with our_errors(f"reading {self.commands}"):
            try:
                found: Message = self._consumer.receive(timeout_ms)
                return found
            except ReceiveTimeout:
                return None

    def release(self, position: CommandPosition) -> None:
        """Acknowledge everything up to a position, its whole entry included."""
        with our_errors(f"acknowledging on {self.commands}"):
            self._consumer.acknowledge_cumulative(message_id(0, position.ledger, position.entry, -1))

    def write_entries(self, entries: Sequence[Command]) -> None:
        """Write commands to the commands topic, each device's in their order; returns when Pulsar has all of them."""
        for start in range(0, len(entries), _AT_ONCE):
            answers = _Answers(self._over)
            for entry in entries[start : start + _AT_ONCE]:
                topic = self._topics.partition(COMMANDS_TOPIC, entry.device)
                with our_errors(f"writing to {topic}"):
                    self._topics.producer(topic, batching=True).send_async(
                        b"",
                        callback=answers.sent(topic),
                        partition_key=entry.device,
                        properties=encode_command(entry),
                        event_timestamp=entry.emitted_at_us // 1000 or None,
                    )
            answers.wait()

    def tell(self, receipts: Sequence[Receipt]) -> None:
        """Write receipts; those of group commands are keyed by group."""
        answers = _Answers(self._over)
        for receipt in receipts:
            key = receipt.device or receipt.group
            topic = self._topics.partition(RECEIPTS_TOPIC, key)
            with our_errors(f"writing to {topic}"):
                self._topics.producer(topic, batching=True).send_async(
                    receipt.encode(), callback=answers.sent(topic), partition_key=key
                )
        answers.wait()

    def give_up(self, message: Message, reason: str) -> None:
        """Write a group command to the dead letters."""
        key = letter_key(key_of(message) or "")
        payload, properties = dead_letter(
            message.data(),
            topic=self.commands,
            device=key,
            reason=reason,
            at_us=time.time_ns() // 1000,
            properties=properties_of(message) or {},
        )
        topic = self._topics.partition(DEAD_LETTERS_TOPIC, key)
        answers = _Answers(self._over)
        with our_errors(f"writing to {topic}"):
            self._topics.producer(topic).send_async(
                payload, callback=answers.sent(topic), partition_key=key or "unknown", properties=properties
            )
        answers.wait()

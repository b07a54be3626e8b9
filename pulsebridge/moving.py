"""Moves the commands of an installation to other topics, where push continues as the next owner.

The other topics are of a greater generation, in another Pulsar cluster, or with another number of partitions (H28), or both.
Positions of one topic mean nothing in another one. So the move copies the logs in their order, notes where each copy is, and
writes push's records with the positions of the copies. If the number differs, devices change partition. All commands of a
device are in one former partition, so their order is kept.

1. Get the exclusive producers of the cursors partitions on both sides, and of the new commands: push runs on neither side,
   and no other process writes new commands.
2. Terminate the former commands topic: Pulsar refuses writers with the former settings.
3. Copy the groups, if the cluster is another one. Copy the commands that the new partitions lack, with their former position
   as a property: first what push has acknowledged, then the rest. A relocated command gets its original place in the order.
4. Write cursors and parked ids.
5. Of each new partition: move the subscription of push behind what was acknowledged. Write the record of an owner, then the
   term with the former partitions. With the last of these the move is done.

After an interruption a second run continues: it finds the copies by their property, and repeats 4 and 5.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from bridge.contract import (
    C_AFTER,
    C_DEVICE,
    C_EMITTED,
    C_MOVED_FROM,
    C_REF,
    COMMANDS_TOPIC,
    CURSORS_TOPIC,
    GROUP_COMMANDS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    PARKED_TOPIC,
    PUSH_SUBSCRIPTION,
    partition_name,
)
from bridge.contract.commands import BEFORE_ALL, CommandPosition
from bridge.contract.cursors import OWNER_KEY, TERM_KEY, OwnerRecord, Term, Unproven, term_record
from bridge.contract.former_positions import FormerPartition, PositionRuns
from bridge.contract.partitioning import partition_of
from bridge.contract.segments import GONE, ParkedId, Segment, encode_segment, read_segment
from bridge.contract.tagged_positions import new_secret
from bridge.errors import ConfigError, ContractError, FencedError, TerminalError
from bridge.inspect.devices.reading import PushTopics
from bridge.killpoints import reach
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import Producer, PulsarClient, message_id, our_errors
from bridge.pulsar.messages import StoredMessage, leave_out_foreign, position_of, record_key, stored_message
from bridge.pulsar.position_reader import PositionReader
from bridge.pulsar.provisioning import create_topic
from bridge.pulsar.provisioning_plan import PARKED_RETENTION, push_needs, rest_path
from bridge.pulsar.sending import Receipts, close_quietly
from bridge.pulsar.topic_end import EVERYTHING
from bridge.push.cursor import Cursor
from bridge.push.cursor_log import CursorRecords
from bridge.push.groups.roster import OWNER, Progress, Roster
from bridge.settings.pulsar import PulsarSettings
from bridge.unreadable import leave_out

__all__ = ["MovedPartition", "move", "move_commands"]

_TOKEN: Final = "moved"
_AT_ONCE: Final = 200
"""Copies without a receipt. Pulsar's client may write them twice; push drops these, because it remembers 256 ids."""
_PATIENCE_S: Final = 60.0
_IDS: Final = 4096
_MAX_INDEX: Final = 2**31 - 1
_START_AGAIN: Final = (
    "stop all writers and push with the new settings, delete its topics of commands, which the page 'Move to another cluster' lists, and repeat the "
    "move; commands that were written there must be written again"
)


class MovedPartition(NamedTuple):
    """What a new commands partition got."""

    copied: int
    devices: int
    lost: int
    """Parked commands that Pulsar did not have any more."""


class _Record(NamedTuple):
    key: str
    payload: bytes
    properties: dict[str, str] | None = None


def move(old: PulsarSettings, new: PulsarSettings) -> list[MovedPartition]:
    """Move the commands from the topics of ``old`` to those of ``new``, as ``move_commands``.

    Raises ConfigError if the generation of ``new`` is not greater: devices compare positions, which begin with it.
    """
    if new.command_generation <= old.command_generation:
        raise ConfigError(
            f"pulsar.command_generation is {new.command_generation} in the new settings and {old.command_generation} in "
            "the old ones, so devices could take new commands for repeats",
            remedy=f"set it to {old.command_generation + 1} or more in the new settings, also for another cluster, and "
            "unset PULSEBRIDGE_PULSAR__… in the environment",
        )
    with (
        PulsarAdmin(old, timeout_s=30) as old_admin,
        PulsarAdmin(new, timeout_s=30) as new_admin,
        PulsarClient(old) as old_client,
        PulsarClient(new) as new_client,
    ):
        former = PushTopics(old_client, old_admin)
        if new.provision == "create":
            new_admin.provision_namespaces()
            *others, commands = push_needs(new).topics
            # Push begins a generation only with its subscription, which comes last.
            for need in (*others, replace(commands, subscriptions=(PARKED_RETENTION,))):
                create_topic(new_admin, need)

        def terminate() -> None:
            old_admin.request("POST", f"/{rest_path(former.commands)}/terminate/partitions")

        return move_commands(former, PushTopics(new_client, new_admin), terminate)


def move_commands(old: PushTopics, new: PushTopics, terminate: Callable[[], None]) -> list[MovedPartition]:
    """Move commands, cursors, parked ids and groups. ``terminate`` ends the former commands topic.

    Returns what each new partition got; nothing if all were moved before. Raises TerminalError while push runs on one of
    the sides, or if the new topics have commands that are not copies.
    """
    with ExitStack() as producers:
        for number in range(old.partitions):
            _own(old, CURSORS_TOPIC, number, producers)
        cursors = [_own(new, CURSORS_TOPIC, number, producers) for number in range(new.partitions)]
        if _is_done(new):
            return []
        commands = [_own(new, COMMANDS_TOPIC, number, producers) for number in range(new.partitions)]
        moving = _Move(old, new, cursors, commands)
        moving.find_copies()
        terminate()
        moving.copy(None if _share_groups(old, new) else _move_groups(old, new, producers))
        return moving.finish()


class _Move:
    def __init__(self, old: PushTopics, new: PushTopics, cursors: list[Producer], commands: list[Producer]) -> None:
        self._old, self._new, self._cursors, self._commands = old, new, cursors, commands
        self._generation = old.client.settings.command_generation
        acknowledged = (old.acknowledged(number) for number in range(old.partitions))
        self._acknowledged = [
            BEFORE_ALL if one is None else CommandPosition(*one.until, _MAX_INDEX) for one in acknowledged
        ]
        self._runs: dict[tuple[int, int], PositionRuns] = {}
        """By former and new partition."""
        self._behind: dict[int, CommandPosition] = {}
        """By new partition: up to there push has acknowledged all originals."""
        self._copied, self._devices, self._lost = Counter[int](), Counter[int](), Counter[int]()

    def _target(self, source: int, device: str) -> int:
        same = self._old.partitions == self._new.partitions
        return source if same else partition_of(device, self._new.partitions)

    def find_copies(self) -> None:
        """Note where the copies are. Raises TerminalError if the new topics have anything else."""
        self._runs, self._copied = defaultdict(PositionRuns), Counter()
        for target in range(self._new.partitions):
            prefix = True
            for source, original, copy in _copies(self._new, COMMANDS_TOPIC, target, self._generation):
                self._runs[source, target].add(original, copy)
                self._copied[target] += 1
                prefix = prefix and original <= self._acknowledged[source]
                if prefix:
                    self._behind[target] = copy

    def copy(self, groups: PositionRuns | None) -> None:
        """Copy what the new partitions lack: of all former ones first what push has acknowledged, then the rest."""
        for first in (True, False):
            for source in range(self._old.partitions):
                _write(
                    (self._commands[target], _record(one, position.encode(source, self._generation), groups))
                    for target, position, one in self._lacking(source)
                    if (position <= self._acknowledged[source]) == first
                )
        reach("move_after_copies")
        self.find_copies()

    def _lacking(self, source: int) -> Iterator[tuple[int, CommandPosition, StoredMessage]]:
        """Yield what the new partitions lack of a former one: new partition, former position, and message."""
        for position, one in self._in_order(source):
            target = self._target(source, one.properties.get(C_DEVICE, one.key))
            last = self._runs[source, target].last
            if last is None or position > last:
                yield target, position, one

    def _in_order(self, source: int) -> Iterator[tuple[CommandPosition, StoredMessage]]:
        """Yield the commands of a former partition, the relocated ones at their original position."""
        waiting = _Records(self._old, source).parked.values()
        relocated = deque(sorted(one for _, one in waiting if one.copy not in (None, GONE)))
        topic = partition_name(self._old.full_name(PARKED_TOPIC), source)
        with closing(PositionReader(self._old.client, topic, source)) as reader:
            for stored in chain(self._old.scan(COMMANDS_TOPIC, source), (None,)):
                message = None if stored is None else stored_message(stored)
                position = EVERYTHING if message is None else message.position
                while relocated and relocated[0].position <= position:
                    one = relocated.popleft()
                    assert one.copy is not None
                    if one.position < position and (copy := reader.read(one.copy)) is not None:
                        yield one.position, copy
                if message is not None:
                    yield position, message

    def finish(self) -> list[MovedPartition]:
        """Write what push knows, so that it begins behind the copies of what was acknowledged."""
        former = [self._translate(source) for source in range(self._old.partitions)]
        reach("move_after_cursors")
        clean = all(one for one, _, _ in former)
        for target, producer in enumerate(self._cursors):
            self._subscribe(target)
            of = [
                FormerPartition(self._generation, source, secret, self._runs[source, target].since(begin))
                for source, (_, secret, begin) in enumerate(former)
                if target == source or self._old.partitions != self._new.partitions
            ]
            _write([(producer, _Record(OWNER_KEY, OwnerRecord(_TOKEN, 0, clean).encode()))])
            _write([(producer, _Record(TERM_KEY, term_record(Term(new_secret(), tuple(of)))))])
        targets = range(self._new.partitions)
        return [MovedPartition(self._copied[one], self._devices[one], self._lost[one]) for one in targets]

    def _translate(self, source: int) -> tuple[bool, bytes, CommandPosition | None]:
        """Write cursors and parked ids of a former partition, with the positions of the copies. Return whether its owner left
        cleanly, its secret, and its first command.
        """
        found = _Records(self._old, source)
        records = found.cursors

        def translated() -> Iterator[tuple[Producer, _Record]]:
            for key, (device, segment) in found.segments.items():
                target = self._target(source, device)
                yield self._cursors[target], _Record(key, _translated_segment(segment, self._runs[source, target]))
            for device, cursor in records.by_device.items():
                target = self._target(source, device)
                self._devices[target] += 1
                _translate_cursor(cursor, self._runs[source, target])
                cursor.stored_in = cursor.ids_stored_in = ()  # they are in the former topic
                for record in cursor.records(device, whole=True):
                    yield self._cursors[target], _Record(*record)

        _write(translated())
        for position, (device, _) in found.parked.items():
            target = self._target(source, device)
            self._lost[target] += self._runs[source, target].exactly(position) is None
        clean = records.clean and found.readable and not records.by_device.unread
        first = next(iter(self._old.scan(COMMANDS_TOPIC, source)), None)
        return clean, records.term.secret or new_secret(), None if first is None else stored_message(first).position

    def _subscribe(self, target: int) -> None:
        """Have push begin after what it has acknowledged. Some originals behind it are acknowledged singly: push gets these
        again, and finds that they are settled or parked.
        """
        topic = partition_name(self._new.commands, target)
        consumer: Any = self._new.client.consumer(topic, PUSH_SUBSCRIPTION, queue=1)
        if target in self._behind:
            with our_errors(f"moving {PUSH_SUBSCRIPTION} on {topic}"):
                consumer.seek(message_id(target, *self._behind[target]))
        close_quietly(consumer)


class _Records:
    """What push has written to a cursors partition."""

    def __init__(self, topics: PushTopics, partition: int) -> None:
        self.cursors, self.readable = CursorRecords(_IDS), True
        self.segments: dict[str, tuple[str, Segment]] = {}
        """Device and ids, by key."""
        self.parked: dict[CommandPosition, tuple[str, ParkedId]] = {}
        """Device and id of each command that waits."""
        for message in topics.scan(CURSORS_TOPIC, partition, compacted=True):
            key = record_key(message, CURSORS_TOPIC)
            try:
                if key:
                    self.cursors.take(key, message.data(), position_of(message.message_id()))
            except ContractError as e:
                leave_out_foreign(CURSORS_TOPIC, message.message_id(), str(e), key or "")
                self.readable = False
        self.cursors.whole()
        self.cursors.by_device.horizon = EVERYTHING
        for device, some in self.cursors.parked.items():
            cursor = self.cursors.by_device.get(device)
            done = BEFORE_ALL if cursor is None else cursor.done
            for key, payload in some.items():
                try:
                    self.segments[key] = device, read_segment(payload)
                except ContractError as e:
                    leave_out(CURSORS_TOPIC, str(e), key=key)
                    self.readable = False
                    continue
                self.parked |= {one.position: (device, one) for one in self.segments[key][1].ids if one.position > done}


def _translate_cursor(cursor: Cursor, runs: PositionRuns) -> None:
    def there(one: ParkedId) -> ParkedId | None:
        copy = runs.exactly(one.position)
        return None if copy is None else one._replace(position=copy, copy=None)

    cursor.position = runs.up_to(cursor.position) or BEFORE_ALL
    if cursor.resend_from is not None:
        cursor.resend_from = runs.up_to(cursor.resend_from) or BEFORE_ALL
    cursor.resend = [copy for one in cursor.resend if (copy := there(one)) is not None]
    cursor.unproven = [Unproven(copy, at) for one, at in cursor.unproven if (copy := there(one)) is not None]
    cursor.maybe_seen_to = None if cursor.maybe_seen_to is None else runs.up_to(cursor.maybe_seen_to)


def _translated_segment(segment: Segment, runs: PositionRuns) -> bytes:
    copies = ((one, runs.exactly(one.position)) for one in segment.ids)
    numbers = [part for one, at in copies if at is not None for part in one._replace(position=at).numbers()]
    return encode_segment(numbers, [], segment.since_us)


def _share_groups(old: PushTopics, new: PushTopics) -> bool:
    """Return whether both sides have the same groups: all generations in a cluster do."""
    urls = {topics.client.settings.service_url for topics in (old, new)}
    return len(urls) == 1 and old.full_name(GROUP_COMMANDS_TOPIC) == new.full_name(GROUP_COMMANDS_TOPIC)


def _move_groups(old: PushTopics, new: PushTopics, producers: ExitStack) -> PositionRuns:
    """Move the open group commands, the members, and the state of their expansion. Returns where the commands are."""
    runs = PositionRuns()
    if not old.count(GROUP_COMMANDS_TOPIC):
        return runs
    _own(old, GROUP_ROSTER_TOPIC, 0, producers)
    producer = _own(new, GROUP_ROSTER_TOPIC, 0, producers)
    done = any(key == OWNER.encode(_TOKEN)[0] for key, _ in new.keyed(GROUP_ROSTER_TOPIC, 0))

    def find_copies() -> None:
        for _, original, copy in _copies(new, GROUP_COMMANDS_TOPIC, 0, 0):
            runs.add(original, copy)

    find_copies()
    if done:
        return runs
    commands, members = (
        new.client.producer(partition_name(new.full_name(local), 0), batching=False)
        for local in (GROUP_COMMANDS_TOPIC, GROUP_MEMBERS_TOPIC)
    )
    stored = map(stored_message, old.scan(GROUP_COMMANDS_TOPIC, 0))
    lacking = (one for one in stored if runs.last is None or one.position > runs.last)
    _write((commands, _record(one, one.position.encode(0), None)) for one in lacking)
    find_copies()
    _write((members, _Record(*one)) for one in old.keyed(GROUP_MEMBERS_TOPIC, 0) if one[0])
    for one in (commands, members):
        close_quietly(one)
    roster = Roster()
    for key, payload in old.keyed(GROUP_ROSTER_TOPIC, 0):
        try:
            roster.take(key, payload)
        except ContractError as e:
            leave_out(GROUP_ROSTER_TOPIC, str(e), key=key)
    was = roster.progress
    begun = runs.exactly(was.at) if was.in_between else None
    roster.progress = Progress(runs.up_to(was.done) or BEFORE_ALL, begun or BEFORE_ALL, was.after)
    roster.last = {group: runs.up_to(last) or BEFORE_ALL for group, last in roster.last.items()}
    roster.left = {key: runs.up_to(last) or BEFORE_ALL for key, last in roster.left.items()}
    roster.open = {copy: one for last, one in roster.open.items() if (copy := runs.exactly(last)) is not None}
    changes = [change for key in roster.standing() if (change := roster.rewritten(key)) is not None]
    changes.sort(key=lambda change: change.key == OWNER.key)  # the record of an owner is the last one
    _write((producer, _Record(*change.encode(_TOKEN))) for change in changes)
    return runs


# --- reading and writing ---


def _own(topics: PushTopics, local: str, partition: int, producers: ExitStack) -> Producer:
    """Return an exclusive producer, as an owner has it. It writes no batches, so each copy has an entry of its own."""
    topic = partition_name(topics.full_name(local), partition)
    try:
        producer = topics.client.producer(topic, exclusive=True, batching=False)
    except FencedError as e:
        raise TerminalError(
            f"a process of push, a writer, or another move has {topic} at {topics.client.settings.service_url}",
            remedy="stop it and repeat the move",
        ) from e
    producers.callback(close_quietly, producer)
    return producer


def _is_done(new: PushTopics) -> bool:
    found = [_Records(new, number).cursors for number in range(new.partitions)]
    if all(one.term.former for one in found):
        return True
    if any(one.owner is not None and one.owner.token != _TOKEN for one in found):
        raise TerminalError("push ran with the new settings before all was moved", remedy=_START_AGAIN)
    return False


def _record(stored: StoredMessage, origin: str, groups: PositionRuns | None) -> _Record:
    """Return a message as it is copied. Without a time of its own it gets the one at which it was published; with
    ``groups`` it names their commands by the positions of their copies.
    """
    properties = {C_EMITTED: str(stored.published_ms * 1000)} | stored.properties | {C_MOVED_FROM: origin}
    if groups is not None:
        with suppress(KeyError, ValueError):  # an invalid command stays as it is: push has a dead letter for it
            at = CommandPosition.parse(properties[C_REF])
            properties[C_REF] = ":".join(map(str, groups.exactly(at) or at))
            after = groups.up_to(CommandPosition.parse(properties[C_AFTER])) or BEFORE_ALL
            properties[C_AFTER] = ":".join(map(str, after))
    return _Record(stored.key, stored.payload, properties)


def _copies(
    topics: PushTopics, local: str, partition: int, generation: int
) -> Iterator[tuple[int, CommandPosition, CommandPosition]]:
    """Yield former partition, original and copy of all that a new partition has. Raises TerminalError for anything else."""
    for message in topics.scan(local, partition):
        stored = stored_message(message)
        try:
            of, source, original = CommandPosition.decode(stored.properties.get(C_MOVED_FROM, ""))
            if of != generation:
                raise ContractError("a copy from other topics")
        except ContractError as e:
            raise TerminalError(
                f"{topics.full_name(local)}, partition {partition}, has a command that is not a copy, at {stored.position}",
                remedy=_START_AGAIN,
            ) from e
        yield source, original, stored.position


def _write(records: Iterable[tuple[Producer, _Record]]) -> None:
    """Write records in order, and return once Pulsar has stored all."""
    waiting, operation = iter(records), "writing to the new topics of commands"
    while some := list(islice(waiting, _AT_ONCE)):
        receipts = Receipts()
        for at, (producer, record) in enumerate(some):
            with our_errors(operation):
                producer.send_async(
                    record.payload,
                    receipts.of(at),
                    properties=record.properties or {},
                    partition_key=record.key or None,
                )
        receipts.wait_for_all(operation, _PATIENCE_S, lambda: False)
        for at in range(len(some)):
            if (error := receipts.error(at, operation)) is not None:
                raise error
        reach("move_in_copies")

"""Writes dead letters to where they were meant to go, and notes among them that it did.

For each partition, in the order of the log, in groups:

1. Each letter of the group is sent to its topic, marked with its id (``pb.replayed``).
2. Pulsar's receipt for each of them.
3. A note with their ids is written to the partition of the dead letters; what a note names is not replayed again.

Died between 2 and 3, or 1 and 2: they are replayed again, the second copy marked as the first, and none is lost.
Two replays at once would write twice. So before anything is read, a replay takes the one producer of a name that
Pulsar lets nobody else have (``replay_lock``), over all machines and until this process ends, however it ends.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.contract import COMMANDS_TOPIC, GROUP_COMMANDS_TOPIC, partition_name
from bridge.dead_letters.blocks import Block, BlockStore
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.plan import Refusal, Replay, replay_of
from bridge.dead_letters.records import DeadLetter, LetterId, Note, Place, Selection, replayed_note
from bridge.dead_letters.replay_lock import take_lock
from bridge.errors import PulsebridgeError, RefusedError, TransientError
from bridge.killpoints import reach
from bridge.mapping import Mapper
from bridge.murmur3 import partition_of
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import OK, Producer, PulsarClient, our_errors
from bridge.pulsar_errors import as_our_error

__all__ = ["Replayer", "Report"]

_GROUP: Final = 100
_GROUP_BYTES: Final = 8 * 1024 * 1024


@dataclass
class Report:
    """What a replay did, or would do."""

    replayed: Counter[str] = field(default_factory=Counter)
    """How many went to each topic."""
    already: int = 0
    """How many of those that are meant were replayed before."""
    refused: list[Refusal] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Topics that were blocked and are not any more."""
    unanswered: list[str] = field(default_factory=list)
    """Workers that blocked a topic and did not say that they write no more dead letters for it."""


class Replayer:
    """One run of a replay. ``mapper`` maps anew by the present rules; without it letters go where they were meant to.

    ``confirm_s`` is how long Pulsar may take to confirm a group, ``release_s`` how long a worker may take to
    answer, both in seconds. ``say`` gets a line for each thing worth telling while it runs.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        selection: Selection,
        *,
        mapper: Mapper | None = None,
        dry_run: bool = False,
        confirm_s: float = 60.0,
        release_s: float = 30.0,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._client = client
        self._admin = admin
        self._selection = selection
        self._mapper = mapper
        self._dry_run = dry_run
        self._confirm_s = confirm_s
        self._release_s = release_s
        self._say = say
        self._log = DeadLetterLog(client)
        self._partitions: dict[str, int] = {}
        self._producers: dict[str, Producer] = {}
        self._refused: dict[str, Refusal] = {}
        self._targets: set[str] = set()
        self._already: set[LetterId] = set()
        self._mine: set[LetterId] = set()
        self.report = Report()

    def run(self) -> Report:
        """Replay what is meant, then end the blocks of the topics whose letters are all replayed.

        Raises TransientError when Pulsar does not confirm: what was confirmed before is noted, the rest stays.
        TerminalError when another replay is running.
        """
        if not self._dry_run:
            first = self._log.partitions[0]
            self._producers[first] = take_lock(self._client, self._admin, first, max_pending=2 * _GROUP)
        try:
            self._pass()
            self._release()
        finally:
            for producer in self._producers.values():
                _close(producer)
            self.report.refused = list(self._refused.values())
            self.report.already = len(self._already)
        return self.report

    # --- one pass over the log ---

    def _pass(self) -> None:
        for partition in range(len(self._log.partitions)):
            done = self._log.replayed(partition)
            group: list[Replay] = []
            size = 0
            for record in self._log.scan(partition):
                planned = self._planned(record, done)
                if planned is None:
                    continue
                group.append(planned)
                size += len(planned.letter.payload)
                if len(group) >= _GROUP or size >= _GROUP_BYTES:
                    self._write(partition, group)
                    group, size = [], 0
            if group:
                self._write(partition, group)

    def _planned(self, record: DeadLetter | Note, done: set[Place]) -> Replay | None:
        if isinstance(record, Note):
            return None
        self._targets.add(record.target)
        if not self._selection.means(record):
            return None
        if record.id.place in done:
            if record.id not in self._mine:
                self._already.add(record.id)
            return None
        planned = replay_of(record, self._admin.settings, self._mapper)
        if isinstance(planned, Refusal):
            self._refused[str(record.id)] = planned
            return None
        return planned

    def _write(self, partition: int, group: list[Replay]) -> None:
        if self._dry_run:
            self.report.replayed.update(one.topic for one in group)
            return
        group = [one for one in group if self._open(one)]
        answers = _Answers(len(group))
        for number, one in enumerate(group):
            with our_errors(f"replaying {one.letter.id} to {one.topic}"):
                self._producer_for(one).send_async(
                    one.letter.payload,
                    answers.of(number),
                    properties=one.properties,
                    partition_key=one.key,
                    event_timestamp=one.letter.event_ms or None,
                )
        reach("replay_before_receipt")
        answers.wait(self._confirm_s)
        reach("replay_before_mark")
        done: list[Place] = []
        failure: PulsebridgeError | None = None
        for number, one in enumerate(group):
            result = answers.results.get(number)
            if result == OK:
                done.append(one.letter.id.place)
                self._mine.add(one.letter.id)
                self.report.replayed[one.topic] += 1
                continue
            error = (
                TransientError(f"Pulsar does not confirm messages to {one.topic}")
                if result is None
                else as_our_error(result, f"replaying {one.letter.id} to {one.topic}")
            )
            if isinstance(error, RefusedError):
                self._refused[str(one.letter.id)] = Refusal(one.letter, error.what)
            else:
                failure = failure or error
        if done:
            self._note(partition, done)
        reach("replay_after_mark")
        if failure is not None:
            raise TransientError(failure.what, remedy="see that the topic takes messages, then run the replay again")

    def _open(self, one: Replay) -> bool:
        """Open the producer of a letter's topic; a topic that refuses it, for good, refuses the letter."""
        try:
            self._producer_for(one)
        except RefusedError as e:
            self._refused[str(one.letter.id)] = Refusal(one.letter, e.what)
            return False
        return True

    def _note(self, partition: int, done: list[Place]) -> None:
        payload, properties = replayed_note(done)
        answers = _Answers(1)
        with our_errors(f"noting what was replayed in {self._log.topic}"):
            self._producer(self._log.partitions[partition]).send_async(
                payload, answers.of(0), properties=properties, partition_key="note"
            )
        answers.wait(self._confirm_s)
        if answers.results.get(0) != OK:
            raise TransientError(
                f"Pulsar did not store what was replayed ({len(done)} messages)",
                remedy="run the replay again: these are written once more, marked with pb.replayed",
            )

    def _producer_for(self, one: Replay) -> Producer:
        count = self._partitions.get(one.topic)
        if count is None:
            settings = self._admin.settings
            of_commands = {
                settings.system_topic(COMMANDS_TOPIC): settings.command_partitions,
                settings.system_topic(GROUP_COMMANDS_TOPIC): 1,
            }
            count = self._admin.create_partitioned(one.topic, of_commands.get(one.topic, settings.partitions))
            self._partitions[one.topic] = count
        return self._producer(partition_name(one.topic, partition_of(one.key, count)) if count else one.topic)

    def _producer(self, name: str) -> Producer:
        found = self._producers.get(name)
        if found is None:
            # Unbatched: a refusal then names one message. More than a group never waits.
            found = self._client.producer(name, batching=False, chunking=False, max_pending=2 * _GROUP)
            self._producers[name] = found
        return found

    # --- ending blocks ---

    def _release(self) -> None:
        """See ``bridge.dead_letters.blocks`` for the order."""
        if self._dry_run:
            return
        store = BlockStore(self._admin)
        targets = [t for t in sorted(self._targets) if t and self._selection.means_target(t)]
        blocked = {topic: found for topic in targets if (found := store.load(topic))}
        blocked = {topic: found for topic, found in blocked.items() if not self._refused_of(topic)}
        if not blocked:
            return
        for topic, blocks in blocked.items():
            for block in blocks:
                if block.state == "blocked":
                    asked = Block(block.partition, block.client_id, "releasing", block.since_us, block.why)
                    store.store(topic, asked)
        self._say("waiting for the ingest workers to hold what they have for: " + ", ".join(blocked))
        self._await_held(store, list(blocked))
        self._pass()
        for topic in blocked:
            for block in store.load(topic):
                store.remove(topic, block)
            self.report.released.append(topic)

    def _refused_of(self, topic: str) -> bool:
        # One that can never be replayed (truncated) must not keep a topic blocked for ever; one that may be, does.
        return any(r.letter.target == topic and not r.letter.lost_bytes for r in self._refused.values())

    def _await_held(self, store: BlockStore, topics: list[str]) -> None:
        deadline = time.monotonic() + self._release_s
        pause = threading.Event()
        while True:
            waiting = [b.client_id for topic in topics for b in store.load(topic) if b.state == "releasing"]
            if not waiting:
                return
            if time.monotonic() > deadline:
                self.report.unanswered = sorted(set(waiting))
                return
            pause.wait(0.3)


class _Answers:
    """The receipts of a group, gathered on Pulsar's threads."""

    def __init__(self, expected: int) -> None:
        self.results: dict[int, Any] = {}
        self._expected = expected
        self._all = threading.Event()

    def of(self, number: int) -> Callable[[Any, Any], None]:
        def answered(result: Any, _id: Any) -> None:  # must never raise: the C++ client would end the process
            self.results[number] = result
            if len(self.results) == self._expected:
                self._all.set()

        return answered

    def wait(self, timeout_s: float) -> None:
        if self._expected:
            self._all.wait(timeout_s)


def _close(producer: Producer) -> None:
    try:
        with our_errors("closing a producer"):
            producer.close()
    except PulsebridgeError:  # what it had to store was waited for
        return

"""Replay of dead letters: writes them to their original topics, and notes with their ids.

For each partition, in the order of the log, in groups:

1. The replay sends each letter of the group to its topic, with its id as property ``pb.replayed``.
2. It waits for Pulsar's receipt for each of them.
3. It writes a note with their ids to the partition of the dead letters. Later replays skip the letters of a note.

If the process dies between 1 and 3, the next replay writes the letters a second time with the same property; none is
lost. Two replays at once would write duplicates, so a replay first takes a lock for all machines: a producer name, unique for
each partition in Pulsar. Pulsar releases the name if the process ends in any way, because its connection closes. If the
machine has crashed or the process is frozen, Pulsar releases the name at the next request of another process: the owner
does not answer for five seconds.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import COMMANDS_TOPIC, GROUP_COMMANDS_TOPIC, partition_name
from bridge.contract.commands import CommandPosition
from bridge.contract.partitioning import partition_of
from bridge.dead_letters.blocks import Block, load_blocks, store_block
from bridge.dead_letters.log import DeadLetterLog
from bridge.dead_letters.plan import Refusal, Replay, replay_of
from bridge.dead_letters.records import DeadLetter, LetterId, Note, Selection, replayed_note
from bridge.errors import FencedError, PulsebridgeError, RefusedError, TerminalError, TransientError
from bridge.killpoints import reach
from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.client import Producer, PulsarClient, our_errors
from bridge.pulsar.sending import PartitionWriters, Receipts
from bridge.routing.mapper import Mapper

__all__ = ["Replayer", "Report"]

_GROUP: Final = 100
_GROUP_BYTES: Final = 8 * 1024 * 1024
_CONFIRM_S: Final = 60.0
"""Timeout for Pulsar's receipts of a group, in seconds."""
_RELEASE_S: Final = 30.0
"""Timeout for the confirmation of a worker, in seconds."""
_LOCK: Final = "pulsebridge-replay"
_PROCESS: Final = "pulsebridge.process"
_LOCK_ATTEMPTS: Final = 5
_LOCK_WAIT_S: Final = 0.2
"""Time between attempts: Pulsar needs a moment to detect the closed connection of a killed replay."""


@dataclass
class Report:
    """Result of a replay, or of a dry run."""

    replayed: Counter[str] = field(default_factory=Counter)
    """Number of replayed letters of each topic."""
    already: int = 0
    """Number of selected letters that an earlier replay wrote."""
    refused: list[Refusal] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Topics whose blocks the replay removed."""
    unanswered: list[str] = field(default_factory=list)
    """Workers that blocked a topic and did not confirm its release."""


class Replayer:
    """One run of a replay. ``mapper`` maps letters by the current rules; without it they go to their original topics.

    ``report_line`` is called with a line for each event of interest.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        selection: Selection,
        *,
        mapper: Mapper | None = None,
        dry_run: bool = False,
        report_line: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._client = client
        self._admin = admin
        self._selection = selection
        self._mapper = mapper
        self._dry_run = dry_run
        self._report_line = report_line
        self._log = DeadLetterLog(client)
        self._partitions: dict[str, int] = {}
        self._writers = PartitionWriters(client, 2 * _GROUP)  # at most one group waits
        self._refused: dict[str, Refusal] = {}
        self._targets: set[str] = set()
        self._already: set[LetterId] = set()
        self._own: set[LetterId] = set()
        self.report = Report()

    def run(self) -> Report:
        """Replay the selected letters, then remove the blocks of the topics whose letters are all replayed.

        Raises TransientError if Pulsar does not confirm: confirmed letters are in a note, the others remain.
        Raises TerminalError if another replay is running.
        """
        if not self._dry_run:
            first = self._log.partitions[0]
            self._writers.add(first, _take_lock(self._client, self._admin, first, max_pending=2 * _GROUP))
        try:
            self._pass()
            self._release()
        finally:
            self._writers.close()
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

    def _planned(self, record: DeadLetter | Note, done: set[CommandPosition]) -> Replay | None:
        if isinstance(record, Note):
            return None
        self._targets.add(record.target)
        if not self._selection.means(record):
            return None
        if record.id.position in done:
            if record.id not in self._own:
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
        receipts = Receipts()
        for one in group:
            with our_errors(_operation(one)):
                self._producer_for(one).send_async(
                    one.letter.payload,
                    receipts.of(one.letter.id),
                    properties=one.properties,
                    partition_key=one.key,
                    event_timestamp=one.letter.event_ms or None,
                )
        reach("replay_before_receipt")
        receipts.wait(_CONFIRM_S)
        reach("replay_before_mark")
        done: list[CommandPosition] = []
        failure: PulsebridgeError | None = None
        for one in group:
            error = receipts.error(one.letter.id, _operation(one))
            if error is None:
                done.append(one.letter.id.position)
                self._own.add(one.letter.id)
                self.report.replayed[one.topic] += 1
            elif isinstance(error, RefusedError):
                self._refused[str(one.letter.id)] = Refusal(one.letter, error.what)
            else:
                failure = failure or error
        if done:
            self._note(partition, done)
        reach("replay_after_mark")
        if failure is not None:
            raise TransientError(failure.what, remedy="check that the topic accepts messages, then repeat the replay")

    def _open(self, one: Replay) -> bool:
        """Open the producer of a letter's topic. If the topic refuses it for good, refuse the letter."""
        try:
            self._producer_for(one)
        except RefusedError as e:
            self._refused[str(one.letter.id)] = Refusal(one.letter, e.what)
            return False
        return True

    def _note(self, partition: int, done: list[CommandPosition]) -> None:
        payload, properties = replayed_note(done)
        receipts = Receipts()
        operation = f"writing a note of the replay to {self._log.topic}"
        with our_errors(operation):
            self._writers.of(self._log.partitions[partition]).send_async(
                payload, receipts.of("note"), properties=properties, partition_key="note"
            )
        receipts.wait(_CONFIRM_S)
        if receipts.error("note", operation) is not None:
            raise TransientError(
                f"Pulsar did not store the note of the replay ({len(done)} messages)",
                remedy="repeat the replay: it writes these messages a second time, with the property pb.replayed",
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
        return self._writers.of(partition_name(one.topic, partition_of(one.key, count)) if count else one.topic)

    # --- release of blocks ---

    def _release(self) -> None:
        """Release the blocks in the steps of ``bridge.dead_letters.blocks``."""
        if self._dry_run:
            return
        targets = [t for t in sorted(self._targets) if t and self._selection.means_target(t)]
        blocked = {topic: found for topic in targets if (found := load_blocks(self._admin, topic))}
        blocked = {topic: found for topic, found in blocked.items() if not self._refused_of(topic)}
        if not blocked:
            return
        for topic, blocks in blocked.items():
            for block in blocks:
                if block.state == "blocked":
                    requested = Block(block.partition, block.client_id, "releasing", block.since_us, block.why)
                    store_block(self._admin, topic, requested)
        self._report_line("waiting for the ingest workers to buffer their messages for: " + ", ".join(blocked))
        self._await_workers(list(blocked))
        self._pass()
        for topic in blocked:
            for block in load_blocks(self._admin, topic):
                self._admin.remove_property(topic, block.name)
            self.report.released.append(topic)

    def _refused_of(self, topic: str) -> bool:
        # A truncated letter can never be replayed, so it must not block a topic for ever; others do.
        return any(r.letter.target == topic and not r.letter.lost_bytes for r in self._refused.values())

    def _await_workers(self, topics: list[str]) -> None:
        deadline = time.monotonic() + _RELEASE_S
        pause = threading.Event()
        while True:
            waiting = [
                b.client_id for topic in topics for b in load_blocks(self._admin, topic) if b.state == "releasing"
            ]
            if not waiting:
                return
            if time.monotonic() > deadline:
                self.report.unanswered = sorted(set(waiting))
                return
            pause.wait(0.3)


def _operation(one: Replay) -> str:
    return f"replaying {one.letter.id} to {one.topic}"


def _take_lock(client: PulsarClient, admin: PulsarAdmin, partition: str, *, max_pending: int) -> Producer:
    """Return the producer that only one replay can have; closing it releases the lock.

    Raises TerminalError with the process that owns it, TransientError while Pulsar cannot be reached.
    """
    for attempt in range(_LOCK_ATTEMPTS):
        if attempt:
            time.sleep(_LOCK_WAIT_S)
        try:
            return client.producer(
                partition,
                batching=False,
                max_pending=max_pending,
                name=_LOCK,
                properties={_PROCESS: f"process {os.getpid()} on {socket.gethostname()}"},
            )
        except FencedError:
            continue
    raise TerminalError(
        f"another replay of the dead letters is running{_owner(admin, partition)}",
        remedy="wait for its end, then list the remaining ones with `pulsebridge dead-letters list --waiting`",
    )


def _owner(admin: PulsarAdmin, partition: str) -> str:
    try:
        publishers = admin.stats(partition).get("publishers") or []
    except PulsebridgeError:  # without the right, the error does not name the owner
        return ""
    for one in publishers:
        if one.get("producerName") == _LOCK:
            process = (one.get("metadata") or {}).get(_PROCESS) or one.get("address", "")
            return f": {process}, since {one.get('connectedSince', 'a while')}"
    return ""

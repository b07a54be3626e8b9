"""Moves the retention subscriptions of compacted topics behind the compaction, with the right to consume alone.

How far depends on what is lost with a record. The log itself keeps each record that is still the last of its key, because a
Pulsar that dies while it compacts may give readers no more than the first hundred entries of its compacted view and then the
log (apache/pulsar#25118). So the subscription stays before the oldest of these records. If that record is a day old, or the
subscription has passed it, its owner is asked to write its records again. Signs of life and instances differ: the next sign
replaces a lost one, and an instance renews its own record. Their subscriptions pass all that the compacted view has.

A retention subscription keeps a compacted topic from being deleted (H24); one that never moves keeps every record that
compaction has replaced. Only Pulsar's admin reports where compaction is, and ``pulsar.provision: off`` does not ask it, nor
does a running process. But the topic shows it: the first record of the compacted view is the oldest that is needed, and the
subscription is moved there by seek, without reading. To move further: a record that the subscription shows and the compacted
view does not was compacted away, so compaction has passed it, and the subscription may pass it too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import structlog

from bridge.contract import (
    CURSORS_TOPIC,
    GROUP_MEMBERS_TOPIC,
    GROUP_ROSTER_TOPIC,
    INSTANCES_TOPIC,
    PRESENCE_TOPIC,
    base_topic,
)
from bridge.contract.commands import CommandPosition
from bridge.errors import FencedError, PulsebridgeError
from bridge.health import Health
from bridge.pulsar.client import EARLIEST, MessageId, PulsarClient, key_of, message_id, our_errors, received
from bridge.pulsar.messages import position_of
from bridge.pulsar.provisioning_plan import COMPACTION_THRESHOLD_BYTES, topic_need
from bridge.pulsar.topic_end import read_partition
from bridge.pulsar.watch import watching
from bridge.settings import Settings

__all__ = [
    "LogRecord",
    "Move",
    "RewriteSchedule",
    "ViewRecord",
    "compacted_away",
    "follow_compaction",
    "is_before",
    "watching_compaction",
]

log = structlog.get_logger("pulsar")

_EVERY_S: Final = 600.0
_AGED_S: Final = 24 * 3600.0
_ASKED_EVERY_S: Final = 6 * 3600.0
"""After this time the rewritten records may be compacted, or not, if they are few."""
_ASKED_AT_MOST: Final = 3
"""For the same oldest record: one without an owner would have all others rewritten for ever."""
_A_LOOK: Final = 100_000
"""At most so many messages are read to see whether a partition is compacted; that takes seconds."""
_RECEIVE_MS: Final = 2000
_LOOKUP_S: Final = 5.0
_FAR_TOO_MUCH_BYTES: Final = 4 * COMPACTION_THRESHOLD_BYTES
"""A topic with so many retained bytes, all of them in the compacted view, is not compacted."""

_FOLLOWED: Final = (CURSORS_TOPIC, PRESENCE_TOPIC, INSTANCES_TOPIC, GROUP_MEMBERS_TOPIC, GROUP_ROSTER_TOPIC)
_TRUSTED: Final = (PRESENCE_TOPIC, INSTANCES_TOPIC)
"""Of these the compacted view alone may have a record, because the next one replaces it: an instance renews its record every
few seconds."""


class ViewRecord(NamedTuple):
    """A record of the compacted view, and when it was published, in ms since the epoch."""

    position: CommandPosition
    published_ms: int
    foreign: bool = False
    """Whether another program wrote it: its key is not UTF-8. Its owner neither reads nor rewrites it."""

    def aged(self, now: float) -> bool:
        """Whether it is old at ``now``, in seconds since the epoch."""
        return now - self.published_ms / 1000 > _AGED_S


class Move(NamedTuple):
    """The result for a subscription: whether it moved, and the oldest record that is the last of its key."""

    moved: bool = False
    oldest: ViewRecord | None = None
    passed: bool = False
    """Whether the subscription has passed that record."""


class LogRecord(NamedTuple):
    """A record that the subscription shows."""

    position: CommandPosition
    message_id: MessageId


def compacted_away(view: Iterable[CommandPosition], retained: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """Yield the retained records that compaction removed.

    Both are in the order of the log; ``view``, the compacted one, begins no later than ``retained``. It reads no more of
    ``retained`` than ``view`` reaches, and no more of either than is needed.
    """
    waiting = iter(retained)
    one: LogRecord | None = None
    for position in view:
        while True:
            one = one or next(waiting, None)
            if one is None:
                return
            if one.position >= position:
                break
            yield one
            one = None
        if one.position == position:
            one = None


def is_before(first: CommandPosition, oldest: CommandPosition) -> bool:
    """Return whether a subscription whose first record is ``first`` may move to ``oldest``, and would move.

    Never back, and by whole entries: within an entry neither a position nor retention is exact.
    """
    return first[:2] < oldest[:2]


def follow_compaction(
    client: PulsarClient,
    partition: str,
    subscription: str,
    *,
    trusting: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Move:
    """Move a retention subscription behind the compaction: to the oldest record that is the last of its key; with
    ``trusting`` to the last record that was compacted away, because the compacted view alone may have the others.

    Does nothing while another process uses the subscription. Creates it, at earliest, if it does not exist. Raises
    TransientError while Pulsar cannot be reached.
    """
    if over():
        return Move()
    try:
        consumer: Any = client.consumer(partition, subscription, queue=200)
    except FencedError:
        return Move()
    reading = _Reading(client, partition, over)
    try:
        first = next(reading.retained(consumer), None)
        if trusting:
            return Move() if first is None else reading.follow_view(consumer, subscription, first)
        return reading.follow_oldest(consumer, subscription, first)
    finally:
        with our_errors(f"closing {subscription} on {partition}"):
            consumer.close()


class _Reading:
    """One partition, as read by its subscription and by its compacted view."""

    def __init__(self, client: PulsarClient, partition: str, over: Callable[[], bool]) -> None:
        self._client = client
        self._partition = partition
        self._over = over
        self._seen = 0

    def retained(self, consumer: Any) -> Iterator[LogRecord]:
        """Yield the records from the subscription on; none is acknowledged, so it shows them all."""
        while not self._over():
            message = received(consumer.receive, _RECEIVE_MS, f"reading {self._partition}")
            if message is None:
                return
            yield LogRecord(position_of(message.message_id()), message.message_id())

    def view(self, start: MessageId) -> Generator[ViewRecord]:
        """Yield what the compacted view has, from ``start`` to its present end."""
        view = read_partition(self._client, self._partition, start=start, compacted=True, queue=200, over=self._over)
        for message in view:
            if self._seen >= _FAR_TOO_MUCH_BYTES:
                return
            # Compaction removes no message from within a batch: it stays there without key and payload.
            key = key_of(message)
            if key != "" or message.data():
                self._seen += len(message.data())
                yield ViewRecord(position_of(message.message_id()), message.publish_timestamp(), key is None)

    def follow_oldest(self, consumer: Any, subscription: str, first: LogRecord | None) -> Move:
        """Move the subscription to the oldest message that is the last of its key; ``first`` is what it shows first."""
        with closing(self.view(EARLIEST)) as view:
            oldest = next((kept for kept in view if not kept.foreign), None)
        if first is None or oldest is None:  # nothing came in time: where the subscription is, is unknown
            return Move(False, oldest)
        if oldest.position < first.position:
            return Move(False, oldest, passed=True)
        if is_before(first.position, oldest.position):
            # By seek, for which nothing in between is read. There is such an entry: the subscription has kept it.
            with our_errors(f"moving {subscription} on {self._partition}"):
                consumer.seek(message_id(-1, *oldest.position[:2], -1))
            return Move(True, oldest)
        if oldest.aged(time.time()):
            retained = chain([first], islice(self.retained(consumer), _A_LOOK))
            with closing(self._compacted_away(first, retained)) as gone:
                if next(gone, None) is None:
                    self._warn_if_not_compacted()
        return Move(False, oldest)

    def follow_view(self, consumer: Any, subscription: str, first: LogRecord) -> Move:
        """Move the subscription to the last message that was compacted away."""
        last = deque(self._compacted_away(first, chain([first], self.retained(consumer))), maxlen=1)
        found = last[0] if last else None
        if found is None or not is_before(first.position, found.position):
            self._warn_if_not_compacted()
            return Move()
        with our_errors(f"moving {subscription} on {self._partition}"):
            consumer.acknowledge_cumulative(found.message_id)
        return Move(True)

    def _compacted_away(self, first: LogRecord, retained: Iterable[LogRecord]) -> Generator[LogRecord]:
        with closing(self.view(first.message_id)) as view:
            yield from compacted_away((kept.position for kept in view), retained)

    def _warn_if_not_compacted(self) -> None:
        if self._seen >= _FAR_TOO_MUCH_BYTES:
            log.warning(
                "partition grows because it is not compacted. Action: run pulsar-admin topicPolicies "
                f"set-compaction-threshold {base_topic(self._partition)} --threshold {COMPACTION_THRESHOLD_BYTES}",
                partition=self._partition,
            )


class _Asked(NamedTuple):
    at: float
    oldest: CommandPosition
    times: int
    """How often in a row for the same one."""


class RewriteSchedule:
    """When an owner is asked to write its records again."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def ask(self, partition: str, followed: Move, now: float, owner: Callable[[], bool]) -> bool:
        """Ask ``owner`` to write its records again if that is due at ``now`` (s since the epoch). Returns whether it will."""
        oldest, asked = followed.oldest, self._asked.get(partition)
        if oldest is None or not (followed.passed or oldest.aged(now)):
            return False
        times = asked.times if asked is not None and asked.oldest == oldest.position else 0
        soon = asked is not None and abs(now - asked.at) < _ASKED_EVERY_S
        if soon or times >= _ASKED_AT_MOST or not owner():
            return False
        self._asked[partition] = _Asked(now, oldest.position, times + 1)
        if times + 1 == _ASKED_AT_MOST:
            log.info(
                "the oldest record of a compacted partition was not rewritten with the others. Action: if the partition "
                "is compacted, see which other program may produce there",
                partition=partition,
                position=str(oldest.position),
            )
        return True


@contextmanager
def watching_compaction(
    settings: Settings, health: Health, partitions: Sequence[int], rewriters: Mapping[str, Callable[[int], bool]]
) -> Iterator[None]:
    """Move the retention subscriptions of the compacted topics now and then while the block runs; of topics with as many
    partitions as the commands those of ``partitions``. ``rewriters``, by topic, has the owner of a partition write its
    records again, and returns whether it will.
    """
    ages = RewriteSchedule()
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _LOOKUP_S})

    def follow() -> None:
        with PulsarClient(pulsar) as client:
            for local in _FOLLOWED:
                need = topic_need(pulsar, local)
                names: list[str] = []
                with _apart(need.topic):
                    names = client.partitioned(need.topic)
                numbers = partitions if local in (CURSORS_TOPIC, PRESENCE_TOPIC) else [0]
                for number in (number for number in numbers if number < len(names)):
                    with _apart(need.topic):
                        subscription, trusting = need.subscriptions[0], local in _TRUSTED
                        moved = follow_compaction(
                            client, names[number], subscription, trusting=trusting, over=lambda: health.ending
                        )
                        log.debug("compaction followed", topic=names[number], moved=moved.moved)
                        if local in rewriters:
                            ages.ask(names[number], moved, time.time(), partial(rewriters[local], number))

    # To the end of its call: it reads with a client of its own.
    with watching("push-compaction", _EVERY_S, follow, over=lambda: health.ending, patience_s=None):
        yield


@contextmanager
def _apart(topic: str) -> Iterator[None]:
    """Keep the failure of one partition, which may be its own fault, from the other partitions."""
    try:
        yield
    except PulsebridgeError as e:
        log.debug("a subscription could not be moved", topic=topic, why=str(e))

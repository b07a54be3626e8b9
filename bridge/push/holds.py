"""Moves the holds of compacted topics behind the compaction, with the right to consume alone: no admin is asked.

How far depends on what is lost with a record. The log itself keeps each one that is still the last of its key, for a
Pulsar that dies while it compacts may give readers no more than the first hundred entries of its compacted view and
then the log (apache/pulsar#25118). So the hold stays before the oldest of these, and where that has stood for a day, or
the hold has passed it, its owner is asked to write what it has once more. Signs of life and instances are another
matter: nobody writes those of a silent device again, and the next one replaces what was lost, as with an instance, which
renews its own. Their holds pass all that the compacted view has.

A hold keeps a compacted topic from vanishing (H24); one that never moves keeps every record that compaction has
replaced, too. Where compaction stands is a matter of Pulsar's admin, which ``pulsar.provision: off`` does not ask and
a long-running push asked only at its start. But it can be seen: what the compacted view begins with is the oldest that is
needed, and the hold goes there by seek, unread what is in between. Where it may go further, a record that the hold's own
subscription shows and the compacted view of the topic does not, was compacted away, so compaction has passed it, and the
hold may pass it too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import structlog

from bridge.contract import (
    CURSORS_TOPIC,
    GROUP_ROSTER_TOPIC,
    PRESENCE_TOPIC,
    base_topic,
    partition_name,
)
from bridge.errors import FencedError, PulsebridgeError
from bridge.health import Health
from bridge.pulsar.client import (
    EARLIEST,
    Message,
    MessageId,
    PulsarClient,
    key_of,
    message_id,
    our_errors,
    received,
)
from bridge.pulsar.provisioning_plan import (
    COMPACTION_THRESHOLD_BYTES,
    CURSOR_RETENTION,
    PRESENCE_RETENTION,
    group_needs,
    instances_need,
)
from bridge.pulsar.topic_end import read_to_end
from bridge.pulsar.watch import Watch
from bridge.settings import Settings

__all__ = [
    "Ages",
    "Followed",
    "Held",
    "Kept",
    "compacted_away",
    "follow_compaction",
    "is_before",
    "watching_holds",
]

log = structlog.get_logger("push")

_EVERY_S: Final = 600.0
_AGED_S: Final = 24 * 3600.0
_ASKED_EVERY_S: Final = 6 * 3600.0
"""So long after an owner was asked its records may have been compacted, or not: there may be few."""
_ASKED_AT_MOST: Final = 3
"""For the same oldest record: one that nobody writes again would have all others written for ever."""
_A_LOOK: Final = 100_000
"""So many messages are read at most to see whether a partition is compacted: they take the interpreter seconds."""
_RECEIVE_MS: Final = 2000
_LOOKUP_S: Final = 5.0
_FAR_TOO_MUCH_BYTES: Final = 4 * COMPACTION_THRESHOLD_BYTES
"""So much that is held and all of it in the compacted view: this topic is not compacted."""

Place = tuple[int, int, int]
"""Ledger, entry and index within the entry's batch."""


class Kept(NamedTuple):
    """A message that the compacted view has, and when it was published, in ms since the epoch."""

    place: Place
    published_ms: int
    foreign: bool = False
    """Whether none of ours wrote it: its key is no UTF-8. Nobody writes it once more, and nobody reads it."""

    def aged(self, now: float) -> bool:
        """Whether it has stood for long at ``now``, in seconds since the epoch."""
        return now - self.published_ms / 1000 > _AGED_S


class Followed(NamedTuple):
    """What came of a look at a hold: whether it moved, and the oldest message that is the last of its key."""

    moved: bool = False
    oldest: Kept | None = None
    passed: bool = False
    """Whether the hold has passed that one, as versions did that trusted the compacted view."""


class Held(NamedTuple):
    """A message that the hold's subscription has shown."""

    place: Place
    message_id: MessageId


def compacted_away(view: Iterable[Place], held: Iterable[Held]) -> Iterator[Held]:
    """Yield the held messages that compaction took away. Pure.

    Both are in the order of the log; ``view``, the compacted one, begins no later than ``held``. No more of ``held`` is
    taken than ``view`` reaches, and no more of either than is asked for.
    """
    waiting = iter(held)
    one: Held | None = None
    for place in view:
        while True:
            one = one or next(waiting, None)
            if one is None:
                return
            if one.place >= place:
                break
            yield one
            one = None
        if one.place == place:
            one = None


def is_before(first: Place, oldest: Place) -> bool:
    """Return whether a hold whose first message is ``first`` may go on to ``oldest``, and would move. Pure.

    Never back, and by whole entries: within one, neither a position nor retention is kept.
    """
    return first[:2] < oldest[:2]


def follow_compaction(
    client: PulsarClient,
    partition: str,
    hold: str,
    *,
    trusting: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Followed:
    """Move a hold behind the compaction: to the oldest message that is the last of its key; with ``trusting`` to the last
    one that was compacted away, for what the compacted view alone may have.

    Nothing comes of it when another process is about it. The hold is made, at earliest, where there is none. Raises
    TransientError while Pulsar cannot be reached.
    """
    if over():
        return Followed()
    try:
        consumer: Any = client.consumer(partition, hold, queue=200)
    except FencedError:
        return Followed()
    reading = _Reading(client, partition, over)
    try:
        first = next(reading.held(consumer), None)
        if trusting:
            return Followed() if first is None else reading.follow_view(consumer, hold, first)
        return reading.follow_oldest(consumer, hold, first)
    finally:
        with our_errors(f"closing {hold} on {partition}"):
            consumer.close()


def _after(first: Held, rest: Iterator[Held]) -> Iterator[Held]:
    yield first
    yield from rest


class _Reading:
    """One look at a partition, by both ways."""

    def __init__(self, client: PulsarClient, partition: str, over: Callable[[], bool]) -> None:
        self._client = client
        self._partition = partition
        self._over = over
        self._seen = 0

    def held(self, consumer: Any) -> Iterator[Held]:
        """Yield what the hold keeps; nobody acknowledges it, so it is shown from its position on."""
        while not self._over():
            message = received(consumer.receive, _RECEIVE_MS, f"reading {self._partition}")
            if message is None:
                return
            yield Held(_place(message), message.message_id())

    def view(self, start: MessageId) -> Generator[Kept]:
        """Yield what the compacted view has, from ``start`` to its present end."""
        reader: Any = self._client.reader(self._partition, start, queue=200, compacted=True)
        try:
            for message in read_to_end(
                reader, self._client.settings, self._partition, start=start, compacted=True, over=self._over
            ):
                if self._seen >= _FAR_TOO_MUCH_BYTES:
                    return
                # Out of the midst of a batch a message is not taken away: it stays there without key and payload.
                key = key_of(message)
                if key != "" or message.data():
                    self._seen += len(message.data())
                    yield Kept(_place(message), message.publish_timestamp(), key is None)
        finally:
            with our_errors(f"closing the reader of {self._partition}"):
                reader.close()

    def follow_oldest(self, consumer: Any, hold: str, first: Held | None) -> Followed:
        """Move the hold to the oldest message that is the last of its key; ``first`` is what the hold shows first."""
        with closing(self.view(EARLIEST)) as view:
            oldest = next((kept for kept in view if not kept.foreign), None)
        if first is None or oldest is None:  # nothing came in time: where the hold stands is not known
            return Followed(False, oldest)
        if oldest.place < first.place:
            return Followed(False, oldest, passed=True)
        if is_before(first.place, oldest.place):
            # By seek, for which nothing in between is read. There is such an entry: the hold has kept it.
            with our_errors(f"moving {hold} on {self._partition}"):
                consumer.seek(message_id(-1, *oldest.place[:2], -1))
            self._tell(hold, oldest.place)
            return Followed(True, oldest)
        if oldest.aged(time.time()):
            held = _after(first, islice(self.held(consumer), _A_LOOK))
            with closing(self._compacted_away(first, held)) as gone:
                if next(gone, None) is None:
                    self._complain()
        return Followed(False, oldest)

    def follow_view(self, consumer: Any, hold: str, first: Held) -> Followed:
        """Move the hold to the last message that was compacted away."""
        last = deque(self._compacted_away(first, _after(first, self.held(consumer))), maxlen=1)
        found = last[0] if last else None
        if found is None or not is_before(first.place, found.place):
            self._complain()
            return Followed()
        with our_errors(f"moving {hold} on {self._partition}"):
            consumer.acknowledge_cumulative(found.message_id)
        self._tell(hold, found.place)
        return Followed(True)

    def _compacted_away(self, first: Held, held: Iterable[Held]) -> Generator[Held]:
        with closing(self.view(first.message_id)) as view:
            yield from compacted_away((kept.place for kept in view), held)

    def _tell(self, hold: str, place: Place) -> None:
        log.debug("hold moved behind the compaction", partition=self._partition, hold=hold, place=place)

    def _complain(self) -> None:
        """Say when the topic is not compacted at all."""
        if self._seen >= _FAR_TOO_MUCH_BYTES:
            log.warning(
                "partition grows because it is not compacted: let an operator run pulsar-admin topicPolicies "
                f"set-compaction-threshold {base_topic(self._partition)} --threshold {COMPACTION_THRESHOLD_BYTES}",
                partition=self._partition,
            )


def _place(message: Message) -> Place:
    where = message.message_id()
    return where.ledger_id(), where.entry_id(), where.batch_index()


class _Asked(NamedTuple):
    at: float
    oldest: Place
    times: int
    """How often in a row for the same one."""


class Ages:
    """When an owner is to be asked to write its records once more. Pure but for what it remembers."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def due(self, partition: str, followed: Followed, now: float) -> bool:
        """Return whether to ask the owner of a partition at ``now``, in seconds since the epoch."""
        oldest, asked = followed.oldest, self._asked.get(partition)
        if oldest is None or not (followed.passed or oldest.aged(now)):
            return False
        if asked is None:
            return True
        in_vain = asked.oldest == oldest.place and asked.times >= _ASKED_AT_MOST
        return not in_vain and abs(now - asked.at) >= _ASKED_EVERY_S

    def asked(self, partition: str, oldest: Place, now: float) -> int:
        """Note that its owner was asked, and will do it. Returns how often it was asked in a row for this ``oldest``."""
        before = self._asked.get(partition)
        times = 1 + (before.times if before is not None and before.oldest == oldest else 0)
        self._asked[partition] = _Asked(now, oldest, times)
        return times


@contextmanager
def watching_holds(
    settings: Settings,
    health: Health,
    partitions: Sequence[int],
    aged: Callable[[int], bool],
    roster_aged: Callable[[], bool],
) -> Iterator[None]:
    """Move the holds of these partitions of cursors and presence, and those of instances and groups, now and then while
    the block runs; ``aged`` is told of a partition of cursors whose owner is to write its records once more, and returns
    whether it will; ``roster_aged`` is told when the owner of the roster of groups is to, and returns the same.
    """
    ages = Ages()
    pulsar = settings.pulsar.model_copy(update={"operation_timeout": _LOOKUP_S})
    cursors = pulsar.system_topic(CURSORS_TOPIC)
    presence = pulsar.system_topic(PRESENCE_TOPIC)
    roster = pulsar.system_topic(GROUP_ROSTER_TOPIC)
    instances, groups = instances_need(pulsar), [need for need in group_needs(pulsar) if need.compacted]

    def follow() -> None:
        with PulsarClient(pulsar) as client:
            moved = partial(follow_compaction, client, over=lambda: health.ending)

            def ask(partition: str, followed: Followed, owner: Callable[[], bool]) -> None:
                now, oldest = time.time(), followed.oldest
                if oldest is not None and ages.due(partition, followed, now) and owner():
                    _told_of(partition, oldest.place, ages.asked(partition, oldest.place, now))

            for number in partitions:
                with _apart(cursors):
                    name = partition_name(cursors, number)
                    ask(name, moved(name, CURSOR_RETENTION), partial(aged, number))
            for need in (instances, *groups):
                with _apart(need.topic):
                    if client.partitioned(need.topic):
                        name = partition_name(need.topic, 0)
                        # An instance renews its record every few seconds.
                        followed = moved(name, need.subscriptions[0], trusting=need is instances)
                        if need.topic == roster:
                            ask(name, followed, roster_aged)
            heard: list[str] = []
            with _apart(presence):
                heard = client.partitioned(presence)
            for number in partitions:
                if number < len(heard):
                    with _apart(presence):
                        moved(heard[number], PRESENCE_RETENTION, trusting=True)

    with Watch("push-holds", _EVERY_S, follow, over=lambda: health.ending):
        yield


@contextmanager
def _apart(topic: str) -> Iterator[None]:
    """Let what fails for one partition, which may be its own fault alone, not keep the others from being looked at."""
    try:
        yield
    except PulsebridgeError as e:
        log.debug("a hold could not be moved", topic=topic, why=str(e))


def _told_of(partition: str, oldest: Place, times: int) -> None:
    """Name a record for which an owner was asked for the last time: it may be of another writer, or nothing was compacted."""
    if times == _ASKED_AT_MOST:
        log.info(
            "the oldest record of a compacted partition still stands, though the others were written again; where the "
            "partition is compacted and this stays, see who else may produce there",
            partition=partition,
            position=":".join(map(str, oldest)),
        )

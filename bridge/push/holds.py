"""Moves the holds of compacted topics behind the compaction, with the right to consume alone: no admin is asked.

How far depends on what is lost with a record. The log itself keeps each one that is still the last of its key, for a
Pulsar that dies while it compacts may give readers no more than the first hundred entries of its compacted view and
then the log (apache/pulsar#25118). So the hold stays before the oldest of these, and where that has stood for a day, or
the hold has passed it, its owner is asked to write what it has once more. Signs of life are another matter: nobody
writes those of a silent device again, and the next one replaces what was lost. Their hold passes all that the compacted
view has.

A hold keeps a compacted topic from vanishing (H24); one that never moves keeps every record that compaction has
replaced, too. Where compaction stands is a matter of Pulsar's admin, which ``pulsar.provision: off`` does not ask and
a long-running push asked only at its start. But it can be seen: a record that the hold's own subscription shows and
the compacted view of the topic does not, was compacted away, so compaction has passed it, and the hold may pass it too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from bridge.provisioning_plan import (
    COMPACTION_THRESHOLD_BYTES,
    CURSOR_HOLD,
    PRESENCE_HOLD,
    group_needs,
    instances_need,
)
from bridge.pulsar_client import EARLIEST, Message, MessageId, PulsarClient, our_errors, received
from bridge.pulsar_watch import Watch
from bridge.push.taken import key_of
from bridge.settings import Settings

__all__ = [
    "Ages",
    "Followed",
    "Held",
    "Kept",
    "compacted_up_to",
    "follow_compaction",
    "last_before",
    "watching_holds",
]

log = structlog.get_logger("push")

_EVERY_S: Final = 600.0
_AGED_S: Final = 24 * 3600.0
_ASKED_EVERY_S: Final = 6 * 3600.0
"""So long after an owner was asked its records may have been compacted, or not: there may be few."""
_A_LOOK: Final = 100_000
"""So many messages are passed at one look: after a day there are more, and they take the interpreter seconds."""
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


def compacted_up_to(view: Iterable[Place], held: Iterable[Held]) -> Held | None:
    """Return the last held message that compaction took away, None when there is none. Pure.

    Both are in the order of the log; ``view``, the compacted one, begins no later than ``held``. No more of ``held`` is
    taken than ``view`` reaches.
    """
    found: Held | None = None
    waiting = iter(held)
    one: Held | None = None
    for place in view:
        while True:
            one = one or next(waiting, None)
            if one is None:
                return found
            if one.place >= place:
                break
            found, one = one, None
        if one.place == place:
            one = None
    return found


def last_before(oldest: Place, held: Iterable[Held]) -> Held | None:
    """Return the last held message before ``oldest``, None when there is none; no later one is taken but the next. Pure."""
    found: Held | None = None
    for one in held:
        if one.place >= oldest:
            break
        found = one
    return found


def follow_compaction(
    client: PulsarClient,
    partition: str,
    hold: str,
    *,
    trusting: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Followed:
    """Move a hold behind the compaction: up to the oldest message that is the last of its key; with ``trusting`` up to
    the last one that was compacted away, for what the compacted view alone may have.

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
        oldest = None if trusting else next(reading.view(EARLIEST), None)
        passed = oldest is not None and (first is None or oldest.place < first.place)
        if first is None or passed or (oldest is None and not trusting):
            return Followed(False, oldest, passed)
        held = _after(first, reading.held(consumer))
        if oldest is not None:
            found = last_before(oldest.place, islice(held, _A_LOOK))
            looked = found is None and oldest.aged(time.time())
            stuck = looked and reading.compacted_up_to(first, _after(first, reading.held(consumer))) is None
        else:
            found = reading.compacted_up_to(first, held)
            stuck = found is None or found.place[:2] <= first.place[:2]
        if stuck:
            reading.complain()
        if stuck or found is None:
            return Followed(False, oldest)
        with our_errors(f"moving {hold} on {partition}"):
            consumer.acknowledge_cumulative(found.message_id)
        log.debug("hold moved behind the compaction", partition=partition, hold=hold, place=found.place)
        return Followed(True, oldest)
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

    def view(self, start: MessageId) -> Iterator[Kept]:
        """Yield what the compacted view has, from ``start`` to its present end."""
        reader: Any = self._client.reader(self._partition, start, queue=200, compacted=True)
        try:
            while not self._over() and self._seen < _FAR_TOO_MUCH_BYTES:
                with our_errors(f"reading {self._partition}"):
                    if not reader.has_message_available():
                        return
                message = received(reader.read_next, _RECEIVE_MS, f"reading {self._partition}")
                if message is None:  # the end was compacted away
                    return
                # Out of the midst of a batch a message is not taken away: it stays there without key and payload.
                if key_of(message) != "" or message.data():
                    self._seen += len(message.data())
                    yield Kept(_place(message), message.publish_timestamp())
        finally:
            with our_errors(f"closing the reader of {self._partition}"):
                reader.close()

    def compacted_up_to(self, first: Held, held: Iterable[Held]) -> Held | None:
        """As the function, from ``first`` on."""
        return compacted_up_to((kept.place for kept in self.view(first.message_id)), held)

    def complain(self) -> None:
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


class Ages:
    """When an owner is to be asked to write its records once more. Pure but for what it remembers."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}

    def due(self, partition: str, followed: Followed, now: float) -> bool:
        """Return whether to ask the owner of a partition at ``now``, in seconds since the epoch."""
        oldest = followed.oldest
        aged = oldest is not None and (followed.passed or oldest.aged(now))
        return aged and abs(now - self._asked.get(partition, 0.0)) >= _ASKED_EVERY_S

    def asked(self, partition: str, now: float) -> None:
        """Note that its owner was asked, and will do it."""
        self._asked[partition] = now


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
    pulsar = settings.pulsar.model_copy(update={"operation_timeout_s": _LOOKUP_S})
    cursors = pulsar.system_topic(CURSORS_TOPIC)
    presence = pulsar.system_topic(PRESENCE_TOPIC)
    roster = pulsar.system_topic(GROUP_ROSTER_TOPIC)
    others = [instances_need(pulsar), *(need for need in group_needs(pulsar) if need.compacted)]

    def follow() -> None:
        with PulsarClient(pulsar) as client:
            moved = partial(follow_compaction, client, over=lambda: health.ending)

            def ask(partition: str, followed: Followed, owner: Callable[[], bool]) -> None:
                now = time.time()
                if ages.due(partition, followed, now) and owner():
                    ages.asked(partition, now)

            for number in partitions:
                name = partition_name(cursors, number)
                ask(name, moved(name, CURSOR_HOLD), partial(aged, number))
            for need in others:
                if client.partitioned(need.topic):
                    name = partition_name(need.topic, 0)
                    followed = moved(name, need.subscriptions[0])
                    if need.topic == roster:
                        ask(name, followed, roster_aged)
            heard = client.partitioned(presence)
            for number in partitions:
                if number < len(heard):
                    moved(heard[number], PRESENCE_HOLD, trusting=True)

    def failed(error: PulsebridgeError) -> None:
        log.debug("the holds could not be moved", why=str(error))

    with Watch("push-holds", _EVERY_S, follow, over=lambda: health.ending, failed=failed):
        yield

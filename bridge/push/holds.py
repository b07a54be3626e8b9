"""Moves the holds of compacted topics behind the compaction, with the right to consume alone: no admin is asked.

A hold keeps a compacted topic from vanishing (H24); one that never moves keeps every record that compaction has
replaced, too. Where compaction stands is a matter of Pulsar's admin, which ``pulsar.provision: off`` does not ask and
a long-running push asked only at its start. But it can be seen: a record that the hold's own subscription shows and
the compacted view of the topic does not, was compacted away, so compaction has passed it, and the hold may pass it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import structlog

from bridge.contract import (
    CURSORS_TOPIC,
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
from bridge.pulsar_client import Message, MessageId, PulsarClient, our_errors, received
from bridge.pulsar_watch import Watch
from bridge.push.taken import key_of
from bridge.settings import Settings

__all__ = ["Held", "compacted_up_to", "follow_compaction", "watching_holds"]

log = structlog.get_logger("push")

_EVERY_S: Final = 600.0
_RECEIVE_MS: Final = 2000
_LOOKUP_S: Final = 5.0
_FAR_TOO_MUCH_BYTES: Final = 8 * COMPACTION_THRESHOLD_BYTES
"""So much that is held and all of it in the compacted view: this topic is not compacted."""

Place = tuple[int, int, int]
"""Ledger, entry and index within the entry's batch."""


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


def follow_compaction(
    client: PulsarClient, partition: str, hold: str, *, over: Callable[[], bool] = lambda: False
) -> bool:
    """Move a hold behind the compaction. Returns whether it moved; False also when another process is about it.

    The hold is made, at earliest, where there is none. Raises TransientError while Pulsar cannot be reached.
    """
    try:
        consumer: Any = client.consumer(partition, hold, queue=200)
    except FencedError:
        return False
    reading = _Reading(client, partition, over)
    try:
        first = next(reading.held(consumer), None)
        if first is None:
            return False
        found = compacted_up_to(reading.view(first), _after(first, reading.held(consumer)))
        if found is None or found.place[:2] <= first.place[:2]:
            reading.complain()
            return False
        with our_errors(f"moving {hold} on {partition}"):
            consumer.acknowledge_cumulative(found.message_id)
        log.debug("hold moved behind the compaction", partition=partition, hold=hold, place=found.place)
        return True
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

    def view(self, first: Held) -> Iterator[Place]:
        """Yield the places that the compacted view has, from ``first`` to its present end."""
        reader: Any = self._client.reader(self._partition, first.message_id, queue=200, compacted=True)
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
                    yield _place(message)
        finally:
            with our_errors(f"closing the reader of {self._partition}"):
                reader.close()

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


@contextmanager
def watching_holds(settings: Settings, health: Health, partitions: Sequence[int]) -> Iterator[None]:
    """Move the holds of these partitions of cursors and presence, and those of instances and groups, now and then while
    the block runs.
    """
    pulsar = settings.pulsar.model_copy(update={"operation_timeout_s": _LOOKUP_S})
    cursors = pulsar.system_topic(CURSORS_TOPIC)
    presence = pulsar.system_topic(PRESENCE_TOPIC)
    others = [instances_need(pulsar), *(need for need in group_needs(pulsar) if need.compacted)]

    def follow() -> None:
        with PulsarClient(pulsar) as client:
            held = [(partition_name(cursors, number), CURSOR_HOLD) for number in partitions]
            for need in others:
                if client.partitioned(need.topic):
                    held.append((partition_name(need.topic, 0), need.subscriptions[0]))
            heard = client.partitioned(presence)
            held += [(heard[number], PRESENCE_HOLD) for number in partitions if number < len(heard)]
            for partition, hold in held:
                if not health.ending:
                    follow_compaction(client, partition, hold, over=lambda: health.ending)

    def failed(error: PulsebridgeError) -> None:
        log.debug("the holds could not be moved", why=str(error))

    with Watch("push-holds", _EVERY_S, follow, over=lambda: health.ending, failed=failed):
        yield

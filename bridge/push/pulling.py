"""Reads parked commands from Pulsar again, by their ids, copies those that wait for very long to the topic of the moved
ones, and moves the holds that keep both; on a thread of its own.

It decides nothing: what is read comes from the core, and each read is answered by ``Pulled``. Where many devices wake
at once, as after a takeover, what all of them wait for is read in the order of the log: one after the other they would
cost a new reader each. Those of which nobody has heard have a reader of their own, for the same reason,
until one of them wants more because it is back: what is read for one device comes in order.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bridge.contract.commands import CommandPosition
from bridge.errors import PulsebridgeError, TransientError
from bridge.pulsar.client import (
    OK,
    MessageId,
    Producer,
    PulsarClient,
    message_id,
    our_errors,
    received,
)
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.provisioning_plan import PARKED_RETENTION
from bridge.push.actions import Copy, Pull
from bridge.push.gate import Gate
from bridge.push.position_reader import PositionReader
from bridge.push.segments import GONE
from bridge.push.taken import Taken, position_of
from bridge.push.threads import telling

__all__ = ["Copied", "Pulled", "Puller", "wanted_by"]

log = structlog.get_logger("push")

_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 30.0
_FIRST_MS: Final = 5000
"""After this time nothing stands behind the hold."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A parked command was read; None when Pulsar does not have it any more."""

    pull: Pull
    position: CommandPosition
    message: Taken | None


@dataclass(frozen=True, slots=True)
class Copied:
    """The commands of a ``Copy`` are stored in the topic of the moved ones; None when that did not work."""

    relocation: int
    copies: tuple[CommandPosition, ...] | None


@dataclass(frozen=True, slots=True)
class _Hold:
    """Let go of what is before ``position``, in the topic of the commands or of the moved ones; ``back``: only hold what
    comes from there on.
    """

    position: CommandPosition
    moved: bool
    back: bool


_Order = Pull | Copy | _Hold
Where = tuple[CommandPosition, CommandPosition | None]
"""Where a command stands, and where its copy does."""


def wanted_by(pulls: Sequence[Pull]) -> list[tuple[Where, list[Pull]]]:
    """Return what the orders name, each once and in the order of the log, with who ordered it. Pure.

    A device that was parked and woke again has orders of both times.
    """
    found: dict[Where, list[Pull]] = defaultdict(list)
    for pull in pulls:
        for where in zip(pull.positions, pull.copies, strict=True):
            found[where].append(pull)
    return sorted(found.items(), key=lambda one: one[0][0])


class Puller:
    """Reads one partition of the commands topic, and of ``moved``, that of the moved commands. ``post`` and ``failed`` are called on the puller's thread."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        moved: str,
        partition: int,
        post: Callable[[object], None],
        failed: Callable[[Exception], None],
        *,
        held_bytes: int,
    ) -> None:
        """Until ``gave`` is called it reads on while less than ``held_bytes`` of payloads were posted."""
        self._client = client
        self._topic = topic
        self._moved = moved
        self._partition = partition
        self._post = post
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._gate = Gate(sys.maxsize, held_bytes)
        self._reading = PositionReader(client, topic, partition, over=self._closing.is_set)
        self._unheard = PositionReader(client, topic, partition, over=self._closing.is_set)
        self._copies = PositionReader(client, moved, partition, over=self._closing.is_set)
        self._producer: Producer | None = None
        self._complained = False
        self._thread = threading.Thread(target=telling(self._run, failed), name=f"push-pull-{partition}", daemon=True)
        self._thread.start()

    def pull(self, order: Pull) -> None:
        """Read what the order names; ``Pulled`` is posted for each. The commands of a device come in the order of the log."""
        self._orders.put(order)

    def copy(self, order: Copy) -> None:
        """Copy what the order names; ``Copied`` is posted."""
        self._orders.put(order)

    def hold_from(self, position: CommandPosition, *, moved: bool = False, back: bool = False) -> None:
        """Let go of what is before ``position``. The owner asks for it after its state was rebuilt (H25). ``back``: let go
        of nothing, but hold what comes from there on.
        """
        self._orders.put(_Hold(position, moved, back))

    def gave(self, size: int) -> None:
        """A message with a payload of ``size`` bytes that was posted is not held any more."""
        self._gate.gave(size)

    def drain(self) -> None:
        """Wait for no room any more: nothing further is asked for."""
        self._gate.close()

    def close(self) -> None:
        """End the thread; before the client is closed."""
        self._closing.set()
        self._gate.close()
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                orders = self._all_waiting()
                pulls = [order for order in orders if isinstance(order, Pull)]
                # One that is heard of while it is tried wants more: what it was tried with comes before that.
                heard = {pull.device for pull in pulls if not pull.probing}
                self._sweep([pull for pull in pulls if pull.device in heard], self._reading)
                self._sweep([pull for pull in pulls if pull.device not in heard], self._unheard)
                for order in orders:
                    if isinstance(order, Copy):
                        self._post(Copied(order.relocation, self._try_to_copy(order)))
                    elif isinstance(order, _Hold):
                        self._try_to_hold(order)
        finally:
            for reader in (self._reading, self._unheard, self._copies):
                reader.close()

    def _all_waiting(self) -> list[_Order | None]:
        """Wait for an order; return it and those that wait behind it."""
        found = [self._orders.get()]
        while True:
            try:
                found.append(self._orders.get_nowait())
            except queue.Empty:
                return found

    def _sweep(self, pulls: list[Pull], reader: PositionReader) -> None:
        """Read once through the log. What is ordered meanwhile comes with the next sweep, so that nobody waits for ever."""
        for (position, place), several in wanted_by(pulls):
            self._gate.enter()
            message = reader.read(position) if place is None else self._copy_at(place)
            if self._closing.is_set():
                return
            for pull in several:
                self._gate.took(0 if message is None else len(message.payload))
                self._post(Pulled(pull, position, message))

    def _copy_at(self, place: CommandPosition) -> Taken | None:
        return None if place == GONE else self._copies.read(place)

    def _try_to_copy(self, order: Copy) -> tuple[CommandPosition, ...] | None:
        """Copy commands. Where that does not work they stay where they are, and are tried again later."""
        try:
            return self._copy(order)
        except PulsebridgeError as e:
            self._producer = None
            if not self._complained:
                self._complained = True
                log.warning(
                    "commands that wait for very long cannot be moved, and keep others from being trimmed: see that "
                    "the topic is there, with as many partitions as the commands",
                    topic=self._moved,
                    why=str(e),
                )
            return None

    def _copy(self, order: Copy) -> tuple[CommandPosition, ...] | None:
        if self._producer is None:
            self._producer = self._client.producer(self._moved, batching=False)
        places = [GONE] * len(order.positions)
        errors: list[object] = []
        answered = threading.Semaphore(0)
        sent = 0
        for at, position in enumerate(order.positions):
            message = self._reading.read(position)
            if message is None and self._closing.is_set():
                return None
            if message is not None:
                sent += 1
                with our_errors(f"writing to {self._moved}"):
                    self._producer.send_async(
                        message.payload,
                        _placed(places, at, errors, answered),
                        partition_key=message.key,
                        properties=message.properties,
                    )
        end = time.monotonic() + _PATIENCE_S
        while sent and not self._closing.is_set():
            if answered.acquire(timeout=_LOOK_S):
                sent -= 1
            elif time.monotonic() > end:
                raise TransientError(f"writing to {self._moved}: no receipt comes")
        if errors:
            raise as_our_error(errors[0], f"writing to {self._moved}")
        return None if sent else tuple(places)

    def _try_to_hold(self, order: _Hold) -> None:
        """Move the hold. Where it stays behind, Pulsar keeps more than is needed, and the next move makes up for it."""
        try:
            self._hold(self._moved if order.moved else self._topic, order.position, back=order.back)
        except PulsebridgeError as e:
            log.debug("the hold of parked commands could not be moved", partition=self._partition, why=str(e))

    def _hold(self, topic: str, position: CommandPosition, *, back: bool) -> None:
        consumer: Any = self._client.consumer(topic, PARKED_RETENTION, queue=1)
        try:
            if back:
                # Where it stands is told by what comes first. It may be further back, for others' sake.
                first = received(consumer.receive, _FIRST_MS, f"looking at {PARKED_RETENTION} on {topic}")
                if first is not None and position_of(first.message_id())[:2] <= position[:2]:
                    return
            with our_errors(f"moving {PARKED_RETENTION} on {topic}"):
                consumer.seek(message_id(self._partition, position.ledger, position.entry, -1))
            log.debug("hold of parked commands moved", topic=topic, position=str(position))
        finally:
            with our_errors(f"closing {PARKED_RETENTION} on {topic}"):
                consumer.close()


def _placed(
    places: list[CommandPosition], at: int, errors: list[object], answered: threading.Semaphore
) -> Callable[[object, MessageId], None]:
    def receipt(result: object, where: MessageId) -> None:  # on a thread of Pulsar's client
        if result == OK:
            places[at] = position_of(where)
        else:
            errors.append(result)
        answered.release()

    return receipt

"""Puller: reads parked commands from Pulsar by position, copies those that are relocated, and moves the retention
subscriptions of both topics; on a thread of its own.

It decides nothing: what is read comes from the core, and each read is answered by ``Pulled``. When many devices wake at
once, as after a takeover, their commands are read together in the order of the log: one after the other they would need a
new reader each. Devices that are probed have a reader of their own, for the same reason, until one of them gives a sign of
life and wants more: the commands of one device come in order.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from bridge.contract.commands import CommandPosition
from bridge.contract.segments import GONE
from bridge.errors import PulsebridgeError
from bridge.pulsar.client import Producer, PulsarClient, message_id, our_errors, received
from bridge.pulsar.messages import StoredMessage, position_of
from bridge.pulsar.position_reader import PositionReader
from bridge.pulsar.provisioning_plan import PARKED_RETENTION
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.sending import Receipts
from bridge.push.actions import Copy, Pull
from bridge.threads import start_thread

__all__ = ["Copied", "Pulled", "Puller", "wanted_by"]

log = structlog.get_logger("push")

_PATIENCE_S: Final = 30.0
_FIRST_MS: Final = 5000  # after this time nothing is behind the subscription


class Pulled(NamedTuple):
    """Event: a parked command was read; None when Pulsar does not have it any more."""

    pull: Pull
    position: CommandPosition
    message: StoredMessage | None


class Copied(NamedTuple):
    """Event: the commands of a ``Copy`` are stored in the topic of relocated commands; None if that failed."""

    relocation: int
    copies: tuple[CommandPosition, ...] | None


Where = tuple[CommandPosition, CommandPosition | None]
"""The position of a command, and of its copy."""


def wanted_by(pulls: Sequence[Pull]) -> list[tuple[Where, list[Pull]]]:
    """Return what the orders name, each once in the order of the log, with its orders: a device may have several."""
    found: dict[Where, list[Pull]] = defaultdict(list)
    for pull in pulls:
        for where in zip(pull.positions, pull.copies, strict=True):
            found[where].append(pull)
    return sorted(found.items(), key=lambda one: one[0][0])


@dataclass(eq=False)
class Puller:
    """Reads a partition of the commands and of ``relocated``. ``post`` and ``failed`` are called on the puller's thread."""

    _client: PulsarClient
    _topic: str
    _relocated: str
    _partition: int
    _post: Callable[[object], None]
    failed: InitVar[Callable[[Exception], None]]
    max_bytes: InitVar[int]  # it reads while it has posted less payloads that were not released

    def __post_init__(self, failed: Callable[[Exception], None], max_bytes: int) -> None:
        client, topic, partition = self._client, self._topic, self._partition
        self._orders: queue.SimpleQueue[Pull | Copy | Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._budget = ReadBudget(sys.maxsize, max_bytes)
        self._reading = PositionReader(client, topic, partition, over=self._closing.is_set)
        self._probing = PositionReader(client, topic, partition, over=self._closing.is_set)
        self._copies = PositionReader(client, self._relocated, partition, over=self._closing.is_set)
        self._producer: Producer | None = None
        self._thread = start_thread(f"push-pull-{partition}", self._run, failed)

    def begin(self, order: Pull | Copy) -> None:
        """Read what the order names, of a device in the order of the log, and post ``Pulled`` for each; or ``Copied``."""
        self._orders.put(order)

    def retain_from(self, position: CommandPosition, *, relocated: bool = False, back: bool = False) -> None:
        """Have Pulsar keep all from ``position`` on, after the owner has rebuilt its state (H25). ``back``: release nothing."""
        self._orders.put(partial(self._retain, self._relocated if relocated else self._topic, position, back=back))

    def release(self, size: int) -> None:
        """A posted message with a payload of ``size`` bytes is not needed any more."""
        self._budget.release(size)

    def drain(self) -> None:
        """Read what is ordered without waiting for room: nothing further is ordered."""
        self._budget.close()

    def close(self) -> None:
        """End the thread; before the client is closed."""
        self._closing.set()
        self._budget.close()
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                orders = [self._orders.get()]
                with suppress(queue.Empty):
                    while True:
                        orders.append(self._orders.get_nowait())
                pulls = [order for order in orders if isinstance(order, Pull)]
                # A device that gives a sign of life while it is probed wants more: its probe comes before that.
                online = {pull.device for pull in pulls if not pull.probing}
                self._sweep([pull for pull in pulls if pull.device in online], self._reading)
                self._sweep([pull for pull in pulls if pull.device not in online], self._probing)
                for order in orders:
                    if isinstance(order, Copy):
                        self._post(Copied(order.relocation, self._copy(order)))
                    elif callable(order):
                        order()
        finally:
            for reader in (self._reading, self._probing, self._copies):
                reader.close()

    def _sweep(self, pulls: list[Pull], reader: PositionReader) -> None:
        """Read once through the log. What is ordered meanwhile is read by the next sweep, so that each order gets its turn."""
        for (position, copy), several in wanted_by(pulls):
            self._budget.wait()
            if copy is None:
                message = reader.read(position)
            else:
                message = None if copy == GONE else self._copies.read(copy)
            if self._closing.is_set():
                return
            for pull in several:
                self._budget.acquire(0 if message is None else len(message.payload))
                self._post(Pulled(pull, position, message))

    def _copy(self, order: Copy) -> tuple[CommandPosition, ...] | None:
        """Copy commands. If that fails they stay where they are, and are tried again later."""
        copies = [GONE] * len(order.positions)
        receipts, sent, operation = Receipts(), [], f"writing to {self._relocated}"
        try:
            if self._producer is None:
                self._producer = self._client.producer(self._relocated, batching=False)
            for at, position in enumerate(order.positions):
                message = self._reading.read(position)
                if message is None and self._closing.is_set():
                    return None
                if message is not None:
                    sent.append(at)
                    with our_errors(operation):
                        self._producer.send_async(
                            message.payload, receipts.of(at), partition_key=message.key, properties=message.properties
                        )
            if not receipts.wait_for_all(operation, _PATIENCE_S, self._closing.is_set):
                return None
            for at in sent:
                if (error := receipts.error(at, operation)) is not None:
                    raise error
                copies[at] = position_of(receipts.message_id(at))
        except PulsebridgeError as e:
            self._producer = None
            log.warning(
                "push cannot relocate commands that are parked for long, and they keep Pulsar from trimming others. Action: "
                "see that the topic exists, with as many partitions as the commands",
                topic=self._relocated,
                why=str(e),
                shown=1,
            )
            return None
        return tuple(copies)

    def _retain(self, topic: str, position: CommandPosition, *, back: bool) -> None:
        """Move the subscription. If that fails Pulsar keeps more than needed until the next move."""
        try:
            consumer: Any = self._client.consumer(topic, PARKED_RETENTION, queue=1)
            try:
                if back:
                    # Its first message shows where it is. It may be further back, for other devices.
                    first = received(consumer.receive, _FIRST_MS, f"looking at {PARKED_RETENTION} on {topic}")
                    if first is not None and position_of(first.message_id())[:2] <= position[:2]:
                        return
                with our_errors(f"moving {PARKED_RETENTION} on {topic}"):
                    consumer.seek(message_id(self._partition, position.ledger, position.entry, -1))
                log.debug("retention subscription of parked commands moved", topic=topic, position=str(position))
            finally:
                with our_errors(f"closing {PARKED_RETENTION} on {topic}"):
                    consumer.close()
        except PulsebridgeError as e:
            log.debug("the retention subscription of parked commands could not be moved", topic=topic, why=str(e))

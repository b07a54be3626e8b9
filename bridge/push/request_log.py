"""The resume requests of one partition's devices in Pulsar, and the search in the commands for what they get.

A request is posted as ``Asked`` and acknowledged when it is answered; a search begins when the core orders one, and ends
with ``Found``. Searches that are ordered at about the same time share one pass over the log, which takes at most half of its
thread's time, so that live commands do not notice it. Both run on threads of their own.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from bridge.contract import C_DEVICE, P_LINK, PUSH_SUBSCRIPTION, full_envelope
from bridge.contract.commands import BEFORE_ALL, CommandPosition, decode_command
from bridge.contract.names import MAX_NAME_BYTES, name_problem
from bridge.contract.tagged_positions import MAX_REQUEST_BYTES
from bridge.errors import ContractError
from bridge.pulsar.client import EARLIEST, Message, MessageId, PulsarClient, key_of, message_id, properties_of
from bridge.pulsar.messages import position_of
from bridge.pulsar.position_reader import read_up_to
from bridge.pulsar.read_budget import ReadBudget
from bridge.pulsar.subscription import Subscription
from bridge.push.actions import FindCommands
from bridge.push.resume import FOUND_WIDTH
from bridge.threads import start_thread

__all__ = ["Asked", "Found", "RequestLog"]

_RECEIVE_MS: Final = 500
_MOST: Final = 1000  # requests that were received and not acknowledged
_QUEUE: Final = 10  # messages that Pulsar's client reads ahead: any client may send large ones
_PIECE: Final = 200  # messages that are read between two pauses
_GATHER_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """A device asks for its commands, at ``at_ms`` since the epoch."""

    message_id: MessageId
    device: str | None  # none for a key that is not a device's name
    payload: bytes  # its head, if it is longer than a request may be
    at_ms: int
    link: str = ""  # the link of ingest at which it came, empty if that is unknown

    @classmethod
    def of(cls, message: Message) -> Asked:
        """Return what push needs of a message, which may be large."""
        key = key_of(message)
        return cls(
            message.message_id(),
            None if key is None or name_problem(key, MAX_NAME_BYTES) else key,
            message.data()[: MAX_REQUEST_BYTES + 1],
            message.event_timestamp() or message.publish_timestamp(),
            _link_of(message),
        )


def _link_of(message: Message) -> str:
    try:
        return full_envelope(properties_of(message) or {}).get(P_LINK, "")
    except ContractError:
        return ""


@dataclass(slots=True)
class Found:
    """Event: what is in Pulsar for one order; see ``Resume.found``."""

    order: FindCommands
    ids: array[int] = field(default_factory=lambda: array("q"))
    trimmed: bool = False
    first: CommandPosition | None = None


class RequestLog:
    """The requests of one partition. ``post`` and ``failed`` are called on its threads, all else by its owner's."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        commands: str,
        partition: int,
        *,
        most_found: int,
        post: Callable[[object], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Subscribe, as the one consumer. Raises FencedError while a former owner's connection has the subscription."""
        self._client = client
        self._commands = commands
        self._partition = partition
        self._most_found = most_found
        self._post = post
        self._closing = threading.Event()
        self._budget = ReadBudget(_MOST, sys.maxsize)
        self._subscription = Subscription(client, topic, PUSH_SUBSCRIPTION, queue=_QUEUE)
        self._orders: queue.SimpleQueue[FindCommands] = queue.SimpleQueue()
        self._failed = failed
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to hand on requests."""
        for name, work in (("asked", self._receive), ("find", self._find_all)):
            self._threads.append(start_thread(f"push-{name}-{self._partition}", work, self._failed))

    def acknowledge(self, message_id: MessageId) -> None:
        """A request is answered, or replaced by a later one. If the acknowledgement is lost it comes again."""
        self._subscription.acknowledge(message_id)
        self._budget.release(0)

    def find(self, order: FindCommands) -> None:
        """Begin a search; ``Found`` is posted."""
        self._orders.put(order)

    def close(self) -> None:
        """End the threads; before the client is closed."""
        self._closing.set()
        self._budget.close()
        for thread in self._threads:
            thread.join()

    def _receive(self) -> None:
        while self._budget.wait():
            message = self._subscription.receive(_RECEIVE_MS)
            if message is not None:
                self._budget.acquire(0)
                self._post(Asked.of(message))

    def _find_all(self) -> None:
        while not self._closing.is_set():
            orders: list[FindCommands] = []
            with suppress(queue.Empty):
                orders.append(self._orders.get(timeout=_RECEIVE_MS / 1000))
                self._closing.wait(_GATHER_S)
                while True:
                    orders.append(self._orders.get_nowait())
            for found in self._search(orders) if orders else ():
                self._post(found)

    def _search(self, orders: list[FindCommands]) -> list[Found]:
        wanted = {order.device: Found(order) for order in orders}
        after = min(order.after for order in orders)
        until = max(order.until for order in orders)
        start = EARLIEST if after.entry < 0 else message_id(self._partition, *after)
        first: CommandPosition | None = None
        since = time.monotonic()
        with closing(read_up_to(self._client, self._commands, start, until, over=self._closing.is_set)) as messages:
            for count, message in enumerate(messages, 1):
                position = position_of(message.message_id())
                first = first or position
                found = wanted.get((properties_of(message) or {}).get(C_DEVICE, ""))
                if found is not None and found.order.after < position <= found.order.until:
                    self._take(found, position, message)
                if count % _PIECE == 0:
                    self._closing.wait(time.monotonic() - since)
                    since = time.monotonic()
        for found in wanted.values():
            # Pulsar trims whole ledgers, so within the ledger of the first one nothing is missing.
            after = found.order.after
            found.trimmed = after != BEFORE_ALL and (first is None or after.ledger < first.ledger)
            found.first = first if found.trimmed else None
        return list(wanted.values())

    def _take(self, found: Found, position: CommandPosition, message: Message) -> None:
        try:
            command = decode_command(message.properties(), message.data())
        except ContractError:
            return  # it went to the dead letters when it came
        found.ids.extend((*position, command.expires_at_ms))
        if len(found.ids) >= 2 * (self._most_found + 1) * FOUND_WIDTH:
            del found.ids[: -(self._most_found + 1) * FOUND_WIDTH]  # the newest count, and that there were more

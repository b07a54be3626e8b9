"""Reads parked commands from Pulsar again, by their ids, copies those that wait for very long to the topic of the moved
ones, and moves the holds that keep both; on a thread of its own.

It decides nothing: what is read comes from the core, and each read is answered by ``Pulled``. A device's commands lie
close together or far apart; the reader goes on where it stands when the next one is near, else a new one begins there.
Where many devices wake at once, as after a takeover, what all of them wait for is read in the order of the log: one
after the other they would cost a new reader each, and after a restart of Pulsar that is a third of a second.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bridge.commands import CommandPosition
from bridge.errors import PulsebridgeError, TransientError
from bridge.provisioning_plan import PARKED_HOLD
from bridge.pulsar_client import (
    OK,
    MessageId,
    Producer,
    PulsarClient,
    message_id,
    our_errors,
    received,
)
from bridge.pulsar_errors import as_our_error
from bridge.push.actions import Copy, Pull
from bridge.push.gate import Gate
from bridge.push.parked import GONE
from bridge.push.taken import Taken, position_of, taken
from bridge.push.threads import telling

__all__ = ["Copied", "NothingComes", "PositionReader", "Pulled", "Puller"]

log = structlog.get_logger("push")

_NEAR: Final = 100
"""Entries that are read and thrown away rather than begin a new reader."""
_QUEUE: Final = 10
"""Entries, and not messages, that Pulsar's client reads ahead: it keeps 3 KB and more of each message in them."""
_PASSED: Final = 4000
_PASSED_BYTES: Final = 4 * 1024 * 1024
"""What is kept of that."""
_READ_MS: Final = 500
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Pulled:
    """A parked command was read; None when Pulsar does not have it any more."""

    pull: Pull
    position: CommandPosition
    message: Taken | None


@dataclass(frozen=True, slots=True)
class Copied:
    """The commands of a ``Copy`` are stored in the topic of the moved ones; None when that did not work."""

    move: int
    places: tuple[CommandPosition, ...] | None


@dataclass(frozen=True, slots=True)
class _Hold:
    """Let go of what is before ``position``, in the topic of the commands or of the moved ones."""

    position: CommandPosition
    moved: bool


_Order = Pull | Copy | _Hold
Where = tuple[CommandPosition, CommandPosition | None]
"""Where a command stands, and where its copy does."""


def wanted_by(pulls: Sequence[Pull]) -> list[tuple[Where, list[Pull]]]:
    """Return what the orders name, each once and in the order of the log, with who ordered it. Pure.

    A device that was parked and woke again has orders of both times.
    """
    found: dict[Where, list[Pull]] = defaultdict(list)
    for pull in pulls:
        for where in zip(pull.positions, pull.places, strict=True):
            found[where].append(pull)
    return sorted(found.items(), key=lambda one: one[0][0])


class NothingComes(TransientError):
    """Raised when for half a minute no message comes, and Pulsar says that there is one."""


class _Patience:
    """Ends a read for which nothing comes."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._answers_since: float | None = None

    def waited(self, doing: str, *, answered: bool) -> None:
        """Nothing came once more; ``answered``: Pulsar says that there is something.

        Raises NothingComes when it said so for half a minute, else TransientError after half a minute.
        """
        now = time.monotonic()
        if not answered:
            self._answers_since = None
            if now - self._since > _PATIENCE_S:
                raise TransientError(f"{doing}: Pulsar does not answer")
        elif self._answers_since is None:
            self._answers_since = now
        elif now - self._answers_since > _PATIENCE_S:
            raise NothingComes(f"{doing}: nothing comes")


class PositionReader:
    """Reads messages of one partition by their positions; cheap where the next one stands near behind the last.

    What is passed on the way is kept for a while: of devices that wake together the commands stand between each other's,
    and a new reader for each step back would cost tens of milliseconds.
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        partition: int,
        *,
        over: Callable[[], bool] = lambda: False,
        near: int = _NEAR,
    ) -> None:
        """``over`` ends a read that waits. Up to ``near`` entries are read and thrown away rather than begin anew; at most
        so many are read ahead.
        """
        self._near = near
        self._client = client
        self._topic = topic
        self._partition = partition
        self._over = over
        self._reader: Any = None
        self._at: CommandPosition | None = None  # what it gave last
        self._passed: OrderedDict[CommandPosition, Taken] = OrderedDict()  # read, and not wanted so far
        self._passed_bytes = 0
        self.opened = 0
        """How many readers it took."""

    def read(self, wanted: CommandPosition) -> Taken | None:
        """Return the message at ``wanted``, None when Pulsar has only later ones or none, or when it is over.

        Raises NothingComes, and what a reader raises.
        """
        passed = self._passed.pop(wanted, None)
        if passed is not None:
            self._passed_bytes -= len(passed.payload)
            return passed
        at = self._at
        near = at is not None and at[0] == wanted[0] and at < wanted and wanted[1] - at[1] <= self._near
        if self._reader is None or not near:
            self.close()
            start = message_id(self._partition, *wanted)
            self.opened += 1
            self._reader = self._client.reader(self._topic, start, queue=min(_QUEUE, self._near))
        patience = _Patience()
        while not self._over():
            came = received(self._reader.read_next, _READ_MS, f"reading {self._topic}")
            if came is None:
                more = self._more()
                if more is False:  # nobody wrote behind what was trimmed
                    self.close()
                    return None
                patience.waited(f"reading {self._topic} at {wanted}", answered=more is not None)
                continue
            message = taken(came)
            self._at = message.position
            if self._at == wanted:
                return message
            if self._at > wanted:  # all from there on was read
                self.close()
                return None
            self._keep(self._at, message)
        return None

    def _more(self) -> bool | None:
        """Whether Pulsar has a message where the reader stands, or behind it; None when it does not answer for now."""
        try:
            with our_errors(f"asking for the end of {self._topic}"):
                return bool(self._reader.has_message_available())
        except TransientError:
            return None

    def _keep(self, position: CommandPosition, message: Taken) -> None:
        self._passed[position] = message
        self._passed_bytes += len(message.payload)
        while len(self._passed) > _PASSED or self._passed_bytes > _PASSED_BYTES:
            _, oldest = self._passed.popitem(last=False)
            self._passed_bytes -= len(oldest.payload)

    def close(self) -> None:
        """Close what is open; the next read opens it again. What Pulsar says to that matters to nobody."""
        reader, self._reader, self._at = self._reader, None, None
        if reader is not None:
            try:
                with our_errors(f"closing the reader of {self._topic}"):
                    reader.close()
            except PulsebridgeError as e:
                log.debug("a reader was not closed cleanly", topic=self._topic, why=str(e))


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
        self._copies = PositionReader(client, moved, partition, over=self._closing.is_set)
        self._producer: Producer | None = None
        self._complained = False
        self._thread = threading.Thread(
            target=telling(self._run, failed), name=f"push-pull-{partition}", daemon=True
        )
        self._thread.start()

    def pull(self, order: Pull) -> None:
        """Read what the order names; ``Pulled`` is posted for each. The commands of a device come in the order of the log."""
        self._orders.put(order)

    def copy(self, order: Copy) -> None:
        """Copy what the order names; ``Copied`` is posted."""
        self._orders.put(order)

    def hold_from(self, position: CommandPosition, *, moved: bool = False) -> None:
        """Let go of what is before ``position``. The owner asks for it after its state was rebuilt (H25)."""
        self._orders.put(_Hold(position, moved))

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
                self._sweep([order for order in orders if isinstance(order, Pull)])
                for order in orders:
                    if isinstance(order, Copy):
                        self._post(Copied(order.move, self._try_to_copy(order)))
                    elif isinstance(order, _Hold):
                        self._try_to_hold(order)
        finally:
            self._reading.close()
            self._copies.close()

    def _all_waiting(self) -> list[_Order | None]:
        """Wait for an order; return it and those that wait behind it."""
        found = [self._orders.get()]
        while True:
            try:
                found.append(self._orders.get_nowait())
            except queue.Empty:
                return found

    def _sweep(self, pulls: list[Pull]) -> None:
        """Read once through the log. What is ordered meanwhile comes with the next sweep, so that nobody waits for ever."""
        for (position, place), several in wanted_by(pulls):
            self._gate.enter()
            message = self._reading.read(position) if place is None else self._copy_at(place)
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
            if answered.acquire(timeout=_READ_MS / 1000):
                sent -= 1
            elif time.monotonic() > end:
                raise TransientError(f"writing to {self._moved}: no receipt comes")
        if errors:
            raise as_our_error(errors[0], f"writing to {self._moved}")
        return None if sent else tuple(places)

    def _try_to_hold(self, order: _Hold) -> None:
        """Move the hold. Where it stays behind, Pulsar keeps more than is needed, and the next move makes up for it."""
        try:
            self._hold(self._moved if order.moved else self._topic, order.position)
        except PulsebridgeError as e:
            log.debug("the hold of parked commands could not be moved", partition=self._partition, why=str(e))

    def _hold(self, topic: str, position: CommandPosition) -> None:
        consumer: Any = self._client.consumer(topic, PARKED_HOLD, queue=1)
        try:
            with our_errors(f"moving {PARKED_HOLD} on {topic}"):
                consumer.seek(message_id(self._partition, position.ledger, position.entry, -1))
            log.debug("hold of parked commands moved", topic=topic, position=str(position))
        finally:
            with our_errors(f"closing {PARKED_HOLD} on {topic}"):
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

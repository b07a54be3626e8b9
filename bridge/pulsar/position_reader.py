"""Reads messages of a partition by their positions: up to one position, or single ones.

A new reader is dear: tens of milliseconds, and a third of a second while Pulsar warms up after a restart. To read on
to a message farther behind costs its way. Both are measured, because neither is known before: an entry may have one
message or a thousand, of some bytes or of megabytes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any, Final

from bridge.contract.commands import CommandPosition
from bridge.errors import TransientError
from bridge.pulsar.client import Message, MessageId, PulsarClient, message_id, our_errors, received
from bridge.pulsar.messages import StoredMessage, position_of, stored_message
from bridge.pulsar.sending import close_quietly
from bridge.pulsar.topic_end import has_entry

__all__ = ["NothingComes", "Pace", "PositionReader", "read_up_to"]

_NEAR: Final = 10_000
_QUEUE: Final = 10
"""Entries, and not messages, that Pulsar's client reads ahead: it keeps 3 KB and more of each message in them."""
_PASSED: Final = 4000
_PASSED_BYTES: Final = 4 * 1024 * 1024
"""What is kept of that."""
_READ_MS: Final = 500
_PATIENCE_S: Final = 30.0
_OPENING_S: Final = 0.05
_ENTRY_S: Final = 0.0005
"""What they cost as long as nothing was measured."""
_LEAST_S: Final = 0.01
_WEIGHT: Final = 0.2
"""Of what was measured last."""


class NothingComes(TransientError):
    """Raised when for half a minute no message comes, and Pulsar says that there is one."""


def read_up_to(
    client: PulsarClient, topic: str, start: MessageId, until: CommandPosition, *, over: Callable[[], bool]
) -> Generator[Message]:
    """Yield the messages of a partition from ``start`` up to that at ``until``, or the first one behind it.

    It ends before if nothing is there, or if it is ``over``. Raises TransientError when nothing comes for half a minute.
    """
    reader: Any = client.reader(topic, start)
    try:
        end = time.monotonic() + _PATIENCE_S
        while not over():
            message = received(reader.read_next, _READ_MS, f"reading {topic}")
            if message is not None:
                yield message
                if position_of(message.message_id()) >= until:
                    return
                end = time.monotonic() + _PATIENCE_S
            elif _more(reader, client, topic, until) is False:
                return
            elif time.monotonic() > end:
                raise TransientError(f"reading {topic}: nothing comes")
    finally:
        close_quietly(reader)


def _more(reader: Any, client: PulsarClient, topic: str, wanted: CommandPosition) -> bool | None:
    """Whether Pulsar has a message at the reader's position or behind it, or the wanted one, which a broker may deny
    (``topic_end``); None while it does not answer.
    """
    try:
        with our_errors(f"asking for the end of {topic}"):
            if reader.has_message_available():
                return True
        return has_entry(client.settings, topic, wanted)
    except TransientError:
        return None


class Pace:
    """What a new reader costs, and an entry that is read on the way, as measured lately; all in seconds."""

    def __init__(self) -> None:
        self._opening: float | None = None
        self._entry: float | None = None

    @property
    def opening(self) -> float:
        """What a new reader takes until it has given its first message."""
        return _OPENING_S if self._opening is None else max(_LEAST_S, self._opening)

    def opened(self, took: float) -> None:
        """A reader was made, and gave its first message."""
        self._opening = _lately(self._opening, took)

    def read(self, entries: int, took: float) -> None:
        """So many entries were read."""
        self._entry = _lately(self._entry, took / entries)

    def reads_on(self, at: CommandPosition, wanted: CommandPosition, near: int) -> bool:
        """Return whether to read on from ``at`` to ``wanted``, over ``near`` entries at most. How far it is into a later
        ledger is not known: that is tried for as long as a new reader takes, which costs at most twice the better way.
        """
        if wanted <= at:
            return False
        away = wanted.entry - at.entry
        entry = _ENTRY_S if self._entry is None else self._entry
        return wanted.ledger > at.ledger or (away <= near and away * entry <= self.opening)


def _lately(known: float | None, now: float) -> float:
    return now if known is None else known + _WEIGHT * (now - known)


class PositionReader:
    """Reads messages of one partition by their positions; cheap if the next one is not far behind the last.

    What is passed on the way is kept for a while: the commands of devices that wake together are mixed in the log,
    and each step back would cost a new reader.
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
        """``over`` ends a read that waits. At most ``near`` entries are read on the way to a message, or ahead."""
        self._near = near
        self._client = client
        self._topic = topic
        self._partition = partition
        self._over = over
        self._reader: Any = None
        self._at: CommandPosition | None = None  # what it gave last
        self._passed: OrderedDict[CommandPosition, StoredMessage] = OrderedDict()  # read, and not wanted so far
        self._passed_bytes = 0
        self._pace = Pace()
        self._spent = 0.0  # since the last entry was whole, or for opening
        self._waited = False
        self.opened = 0
        """How many readers it took."""

    def read(self, wanted: CommandPosition) -> StoredMessage | None:
        """Return the message at ``wanted``, None when Pulsar has only later ones or none, or when it is over.

        Raises NothingComes, TransientError when Pulsar does not answer for half a minute, and what a reader raises.
        """
        passed = self._passed.pop(wanted, None)
        if passed is not None:
            self._passed_bytes -= len(passed.payload)
            return passed
        trying = self._at is not None and self._pace.reads_on(self._at, wanted, self._near)
        if not trying:
            self._open(wanted)
        since = time.monotonic()
        end = since + self._pace.opening
        answered_since: float | None = None
        while not self._over():
            came = self._next()
            if came is None:
                more = _more(self._reader, self._client, self._topic, wanted)
                if more is False:  # nothing was written behind what was trimmed
                    self.close()
                    return None
                now = time.monotonic()
                answered_since = (answered_since or now) if more else None
                if now - (answered_since or since) > _PATIENCE_S:
                    if more:
                        raise NothingComes(f"reading {self._topic} at {wanted}: nothing comes")
                    raise TransientError(f"reading {self._topic} at {wanted}: Pulsar does not answer")
                continue
            message = stored_message(came)
            self._measure(message.position)
            self._at = message.position
            if self._at == wanted:
                return message
            if self._at > wanted:  # all from there on was read
                self.close()
                return None
            self._keep(self._at, message)
            if trying and time.monotonic() > end:
                trying = False
                self._open(wanted)
        return None

    def _open(self, wanted: CommandPosition) -> None:
        self.close()
        began = time.monotonic()
        start = message_id(self._partition, *wanted)
        self.opened += 1
        self._reader = self._client.reader(self._topic, start, queue=min(_QUEUE, self._near))
        self._spent, self._waited = time.monotonic() - began, False

    def _next(self) -> Message | None:
        began = time.monotonic()
        came = received(self._reader.read_next, _READ_MS, f"reading {self._topic}")
        self._spent += time.monotonic() - began
        self._waited = self._waited or came is None
        return came

    def _measure(self, position: CommandPosition) -> None:
        """Nothing is learnt from a time in which Pulsar gave nothing."""
        if self._at is not None and position[:2] == self._at[:2]:
            return
        if not self._waited and self._at is None:
            self._pace.opened(self._spent)
        elif not self._waited and self._at is not None:
            same = position.ledger == self._at.ledger
            self._pace.read(max(1, position.entry - self._at.entry) if same else 1, self._spent)
        self._spent, self._waited = 0.0, False

    def _keep(self, position: CommandPosition, message: StoredMessage) -> None:
        self._passed[position] = message
        self._passed_bytes += len(message.payload)
        while len(self._passed) > _PASSED or self._passed_bytes > _PASSED_BYTES:
            _, oldest = self._passed.popitem(last=False)
            self._passed_bytes -= len(oldest.payload)

    def close(self) -> None:
        """Close what is open; the next read opens it again. Errors of Pulsar are ignored."""
        reader, self._reader, self._at = self._reader, None, None
        if reader is not None:
            close_quietly(reader)

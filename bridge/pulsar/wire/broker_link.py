"""One connection to a Pulsar broker without a thread: a caller that waits for an answer reads it.

For a task that reads one partition after the other. Its process may be frozen or forked between two of them.
PINGs are answered when they are read. The next use of a connection detects that it was closed.
"""

from __future__ import annotations

import itertools
import select
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from bridge.errors import PulsebridgeError
from bridge.pulsar.wire.commands import PING, PONG, REQUEST_FIELD, Answer, Frames, Kind, WireError
from bridge.pulsar.wire.connection import KEEP_ALIVE_S, Accepted

__all__ = ["BrokerLink", "read_any"]

_READ_BYTES: Final = 1024 * 1024
_FRAME_RESERVE: Final = 1024 * 1024
"""Bytes that a frame may have in addition to the largest message: the command. Properties count in the message."""


class BrokerLink:
    """Commands over a socket that a broker has accepted. Used by one thread at a time."""

    def __init__(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self._sock = accepted.sock
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._credentials = accepted.credentials
        self._numbers = itertools.count(1)
        self._frames = Frames(accepted.max_message_bytes + _FRAME_RESERVE)
        self._inbound: deque[Answer] = deque()
        self._waiting: dict[int, deque[Answer]] = {}
        """Commands for each reader that arrived while the caller waited for another answer."""
        self._ended: WireError | None = None
        self._last = time.monotonic()

    @property
    def ended(self) -> WireError | None:
        """The error that ended the connection, None while its socket is open now."""
        while self._ended is None and self._receive(0.0):
            pass
        return self._ended

    def number(self) -> int:
        """Return a number that no other request or reader of this connection has."""
        return next(self._numbers)

    def write(self, frame: bytes) -> None:
        """Send ``frame``; if that fails, the connection has ended."""
        if self._ended is None:
            try:
                self._sock.settimeout(KEEP_ALIVE_S)
                self._sock.sendall(frame)
            except OSError as e:
                self._end(str(e))

    def request(self, number: int, frame: bytes, timeout_s: float) -> Answer | WireError:
        """Send ``frame``, the request ``number``, and return the answer, or the error instead of it."""
        self.write(frame)
        until = time.monotonic() + timeout_s
        while True:
            answer = self._next(until)
            if answer is None:
                return self._ended or WireError("Timeout", f"no answer within {timeout_s:g} s")
            field = REQUEST_FIELD.get(answer.kind)
            if field is not None and answer.number(field) == number:
                return answer.error(2, 3) if answer.kind == Kind.ERROR else answer
            self._store(answer)

    def listen(self, number: int) -> None:
        """Store the commands for the reader ``number`` from now on."""
        self._waiting[number] = deque()

    def ignore(self, number: int) -> None:
        """Drop the commands for the reader ``number``."""
        self._waiting.pop(number, None)

    def next_for(self, number: int, timeout_s: float) -> Answer | WireError | None:
        """Return the next MESSAGE or CLOSE_CONSUMER for a reader, None at the time-out."""
        mine = self._waiting[number]
        until = time.monotonic() + timeout_s
        while not mine:
            answer = self._next(until)
            if answer is None:
                return self._ended
            self._store(answer)
        return mine.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._end("the connection was closed")

    def at_hand_for(self, number: int) -> Answer | WireError | None:
        """Return the next stored command for a reader, without reading; after the end, the error that ended it."""
        mine = self._waiting[number]
        return mine.popleft() if mine else self._ended

    def fileno(self) -> int:
        """Return the socket to wait for, -1 if the connection has ended."""
        return -1 if self._ended is not None else self._sock.fileno()

    def read_once(self) -> None:
        """Store the commands of one read for the readers. Pings a silent broker."""
        self._receive(0.0)
        self._watch()
        while self._inbound:
            self._store(self._inbound.popleft())

    def _store(self, answer: Answer) -> None:
        if answer.kind in (Kind.MESSAGE, Kind.CLOSE_CONSUMER):
            waiting = self._waiting.get(answer.number(1))
            if waiting is not None:
                waiting.append(answer)

    def _next(self, until: float) -> Answer | None:
        """Return the next command that is not of the connection itself, None at time-out or end."""
        while not self._inbound:
            if self._ended is not None:
                return None
            left = until - time.monotonic()
            if left <= 0 and not self._receive(0.0):
                return None
            if left > 0:
                self._receive(min(left, KEEP_ALIVE_S))
                self._watch()
        return self._inbound.popleft()

    def _watch(self) -> None:
        """Ping a silent broker; end the connection to one that stays silent."""
        silent = time.monotonic() - self._last
        if silent > 2 * KEEP_ALIVE_S:
            self._end(f"no data from the broker for {silent:.0f} s")
        elif silent > KEEP_ALIVE_S:
            self.write(PING)

    def _receive(self, timeout_s: float) -> bool:
        """Read once from the kernel, waiting up to ``timeout_s``. Returns whether data arrived."""
        if self._ended is not None:
            return False
        try:
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
            if not pending and not self._poll.poll(timeout_s * 1000):
                return False
            self._sock.settimeout(KEEP_ALIVE_S)
            data = self._sock.recv(_READ_BYTES)
            if not data:
                self._end("the broker closed the connection")
                return False
            self._last = time.monotonic()
            for answer in self._frames.feed(data):
                if answer.kind == Kind.PING:
                    self.write(PONG)
                elif answer.kind == Kind.AUTH_CHALLENGE:
                    self.write(self._credentials())
                elif answer.kind != Kind.PONG:
                    self._inbound.append(answer)
        except (OSError, ValueError, PulsebridgeError) as e:  # ours: no new credentials
            self._end(str(e))
            return False
        return True

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = WireError("Disconnected", why)
            self._sock.close()


def read_any(links: Sequence[BrokerLink], timeout_s: float) -> None:
    """Wait up to ``timeout_s`` until one of these connections is readable, then read once from each."""
    poll = select.poll()
    for link in links:
        if link.fileno() >= 0:
            poll.register(link, select.POLLIN)
    poll.poll(timeout_s * 1000)
    for link in links:
        link.read_once()

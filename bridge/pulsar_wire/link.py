"""One connection to a Pulsar broker without a thread: it is read when somebody waits for an answer.

For a task that reads one partition after the other, in a process that may be frozen or forked between two of them.
PINGs are answered when they are met; a connection that was closed meanwhile is noticed at its next use.
"""

from __future__ import annotations

import itertools
import select
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from bridge.pulsar_wire.accepted import Accepted
from bridge.pulsar_wire.commands import PING, PONG, REQUEST_FIELD, Answer, Frames, Kind, WireError

__all__ = ["BrokerLink", "read_any"]

_READ_BYTES: Final = 1024 * 1024
_KEEP_ALIVE_S: Final = 30.0
_FRAME_RESERVE: Final = 1024 * 1024
"""What a frame may have beside the largest message, in bytes: properties count, the command does not."""


class BrokerLink:
    """Commands over a socket that a broker has accepted. Used by one thread at a time."""

    def __init__(self, accepted: Accepted) -> None:
        self._sock = accepted.sock
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._credentials = accepted.credentials
        self._numbers = itertools.count(1)
        self._frames = Frames(accepted.max_message_bytes + _FRAME_RESERVE)
        self._heard: deque[Answer] = deque()
        self._waiting: dict[int, deque[Answer]] = {}
        """What was heard for each reader while something else was waited for."""
        self._ended: WireError | None = None
        self._last = time.monotonic()

    @property
    def ended(self) -> WireError | None:
        """What ended the connection, None while it is open, as far as its socket knows now."""
        while self._ended is None and self._receive(0.0):
            pass
        return self._ended

    def number(self) -> int:
        """Return a number that no other request or reader of this connection has."""
        return next(self._numbers)

    def write(self, frame: bytes) -> None:
        """Say ``frame``; when that is not possible, the connection has ended."""
        if self._ended is None:
            try:
                self._sock.settimeout(_KEEP_ALIVE_S)
                self._sock.sendall(frame)
            except OSError as e:
                self._end(str(e))

    def request(self, number: int, frame: bytes, timeout_s: float) -> Answer | WireError:
        """Say ``frame``, the request ``number``, and return the answer, or what came in its place."""
        self.write(frame)
        until = time.monotonic() + timeout_s
        while True:
            answer = self._next(until)
            if answer is None:
                return self._ended or WireError("Timeout", f"no answer within {timeout_s:g} s")
            field = REQUEST_FIELD.get(answer.kind)
            if field is not None and answer.number(field) == number:
                return answer.error(2, 3) if answer.kind == Kind.ERROR else answer
            self._keep(answer)

    def listen(self, number: int) -> None:
        """Keep what comes for the reader ``number`` from now on."""
        self._waiting[number] = deque()

    def ignore(self, number: int) -> None:
        """Drop what comes for the reader ``number``."""
        self._waiting.pop(number, None)

    def heard_for(self, number: int, timeout_s: float) -> Answer | WireError | None:
        """Return the next MESSAGE or CLOSE_CONSUMER for a reader, None when nothing comes within the time."""
        mine = self._waiting[number]
        until = time.monotonic() + timeout_s
        while not mine:
            answer = self._next(until)
            if answer is None:
                return self._ended
            self._keep(answer)
        return mine.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._end("the connection was closed")

    def at_hand_for(self, number: int) -> Answer | WireError | None:
        """Return what was heard for a reader and not taken yet, without reading; at the end why there is no more."""
        mine = self._waiting[number]
        return mine.popleft() if mine else self._ended

    def fileno(self) -> int:
        """Return the socket to wait for, -1 when the connection has ended."""
        return -1 if self._ended is not None else self._sock.fileno()

    def read_once(self) -> None:
        """Keep what has come for the readers, as much as one read gives. Asks a silent broker whether it is there."""
        self._receive(0.0)
        self._watch()
        while self._heard:
            self._keep(self._heard.popleft())

    def _keep(self, answer: Answer) -> None:
        if answer.kind in (Kind.MESSAGE, Kind.CLOSE_CONSUMER):
            waiting = self._waiting.get(answer.number(1))
            if waiting is not None:
                waiting.append(answer)

    def _next(self, until: float) -> Answer | None:
        """Return the next command that is not about the connection itself, None at the time or at the end."""
        while not self._heard:
            if self._ended is not None:
                return None
            left = until - time.monotonic()
            if left <= 0 and not self._receive(0.0):
                return None
            if left > 0:
                self._receive(min(left, _KEEP_ALIVE_S))
                self._watch()
        return self._heard.popleft()

    def _watch(self) -> None:
        """Ask a silent broker whether it is there, and do not wait for a dead one for ever."""
        silent = time.monotonic() - self._last
        if silent > 2 * _KEEP_ALIVE_S:
            self._end(f"the broker said nothing for {silent:.0f} s")
        elif silent > _KEEP_ALIVE_S:
            self.write(PING)

    def _receive(self, timeout_s: float) -> bool:
        """Read once what the kernel has, waiting up to ``timeout_s``. Returns whether there was anything."""
        if self._ended is not None:
            return False
        try:
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
            if not pending and not self._poll.poll(timeout_s * 1000):
                return False
            self._sock.settimeout(_KEEP_ALIVE_S)
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
                    self._heard.append(answer)
        except (OSError, ValueError) as e:
            self._end(str(e))
            return False
        return True

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = WireError("Disconnected", why)
            self._sock.close()


def read_any(links: Sequence[BrokerLink], timeout_s: float) -> None:
    """Wait until one of these connections has something to read, up to ``timeout_s``; then read once from each."""
    poll = select.poll()
    for link in links:
        if link.fileno() >= 0:
            poll.register(link, select.POLLIN)
    poll.poll(timeout_s * 1000)
    for link in links:
        link.read_once()

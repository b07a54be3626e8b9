"""One connection to a Pulsar broker, and the thread that reads it.

Callers write from their own threads. The connection's thread later writes bytes that the kernel does not accept at
once, so no caller waits for a slow broker. If the connection closes, requests without an answer and batches without a
receipt fail. Its owner decides whether to redial.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.errors import PulsebridgeError
from bridge.loggers import get_logger
from bridge.poller import Poller
from bridge.pulsar.wire.commands import PING, PONG, REQUEST_FIELD, Answer, Frames, Kind, WireError

if TYPE_CHECKING:
    from bridge.pulsar.wire.producer import BatchProducer

__all__ = ["KEEP_ALIVE_S", "Accepted", "BrokerConnection"]

log = get_logger("pulsar")

KEEP_ALIVE_S: Final = 10.0
"""Silence, in seconds, after which the broker is pinged; after twice that it counts as dead.

Pulsar's client waits three times as long. When the broker of a topic hangs, its topics move after 30 s."""

_READ_BYTES: Final = 64 * 1024
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Accepted(NamedTuple):
    """A socket on which a broker has answered CONNECT."""

    sock: socket.socket
    name: str
    """The broker's name in log messages."""
    max_message_bytes: int
    """The largest message that the broker accepts."""
    credentials: Callable[[], bytes]
    """Makes the frame that answers the broker's request for new credentials. May raise PulsebridgeError."""
    address: str = ""
    """Host and port of the broker itself, also behind a proxy."""


class BrokerConnection:
    """Commands over a socket that a broker has accepted."""

    def __init__(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self._sock = accepted.sock
        self._sock.setblocking(False)
        self._lock = threading.Lock()
        self.ended: WireError | None = None
        """The error that ended the connection, None while it is open."""
        self._closing = False
        self._out = bytearray()
        self._broke: OSError | None = None
        self._requests: dict[int, Future[Answer]] = {}
        self._listeners: dict[int, BatchProducer] = {}
        self._numbers = itertools.count(1)
        self._frames = Frames()
        self._poller = Poller()
        self._last_read = time.monotonic()
        self._pinged = False
        self._thread = threading.Thread(target=self._run, name=f"pulsar-{accepted.name}", daemon=True)
        self._thread.start()

    def number(self) -> int:
        """Return a number that no other request or producer of this connection has."""
        return next(self._numbers)

    def request(self, number: int, frame: bytes, timeout_s: float) -> Answer | WireError:
        """Send ``frame``, the request ``number``, and return the answer, or the error instead of it."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self.ended is not None:
                return self.ended
            self._requests[number] = answer
        self.write(frame)
        try:
            found = answer.result(timeout_s)
        except FutureTimeoutError:
            return WireError("Timeout", f"no answer within {timeout_s:g} s")
        finally:
            self._requests.pop(number, None)
        if not found.kind:
            return self.ended or WireError("AlreadyClosed")
        return found.error(2, 3) if found.kind == Kind.ERROR else found

    def listen(self, number: int, listener: BatchProducer) -> None:
        """Pass the broker's commands for the producer ``number`` to ``listener``."""
        with self._lock:
            if self.ended is None:
                self._listeners[number] = listener
                return
        listener.failed(self.ended, closed=True)

    def ignore(self, number: int) -> None:
        """Ignore the broker's commands for the producer ``number`` from now on."""
        self._listeners.pop(number, None)

    def write(self, frame: bytes) -> None:
        """Send ``frame``. If the connection has ended, its listeners and requests were notified."""
        with self._lock:
            if self.ended is not None or self._broke is not None:
                return
            if not self._out:
                try:
                    sent = self._sock.send(frame)
                except _NOT_NOW:
                    sent = 0
                except OSError as e:
                    self._broke = e
                    sent = len(frame)
                if sent < len(frame):
                    self._out += memoryview(frame)[sent:]
            else:
                self._out += frame
            wake = bool(self._out) or self._broke is not None
        if wake:
            self._poller.wake()

    def close(self) -> None:
        """Close the connection and wait for its thread."""
        self._closing = True
        self._poller.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    # --- the connection's thread ---

    def _run(self) -> None:
        why = WireError("Disconnected", "the broker closed the connection")
        try:
            while not self._closing and self._turn():
                pass
        except (OSError, ValueError, PulsebridgeError) as e:  # ours: no new credentials
            why = WireError("Disconnected", str(e))
        except BaseException as e:  # a defect of ours; the waiting callers must still be notified
            why = WireError("Disconnected", repr(e))
            raise
        finally:
            self._end(WireError("AlreadyClosed", "the connection was closed") if self._closing else why)

    def _turn(self) -> bool:
        now = time.monotonic()
        silent = now - self._last_read
        if silent >= 2 * KEEP_ALIVE_S:
            raise OSError(f"no data from the broker for {silent:.0f} s")
        if silent >= KEEP_ALIVE_S and not self._pinged:
            self._pinged = True
            self.write(PING)
        due = (2 if self._pinged else 1) * KEEP_ALIVE_S - silent
        readable = self._poller.wait(self._sock, max(0.05, due), read=True, write=bool(self._out))
        if self._broke is not None:
            raise self._broke
        if self._out:
            self._flush()
        return not readable or self._read()

    def _flush(self) -> None:
        with self._lock, suppress(*_NOT_NOW):
            while self._out:
                del self._out[: self._sock.send(self._out)]

    def _read(self) -> bool:
        while True:
            try:
                with self._lock:  # TLS: read or write, one at a time
                    data = self._sock.recv(_READ_BYTES)
            except _NOT_NOW:
                return True
            if not data:
                return False
            self._last_read, self._pinged = time.monotonic(), False
            for answer in self._frames.feed(data):
                self._take(answer)
            if not isinstance(self._sock, ssl.SSLSocket):
                return True

    def _take(self, answer: Answer) -> None:
        kind = answer.kind
        if kind == Kind.SEND_RECEIPT:
            listener = self._listeners.get(answer.number(1))
            if listener is not None:
                listener.receipted(answer.number(2), stored=answer.names_an_entry(3))
        elif kind in REQUEST_FIELD:
            if kind == Kind.PRODUCER_SUCCESS and not answer.number(6, 1):
                return  # not ready yet, another one follows
            waiting = self._requests.pop(answer.number(REQUEST_FIELD[kind]), None)
            if waiting is not None:
                waiting.set_result(answer)
        elif kind == Kind.SEND_ERROR:
            listener = self._listeners.get(answer.number(1))
            if listener is not None:
                listener.failed(answer.error(3, 4), closed=False)
        elif kind == Kind.CLOSE_PRODUCER:
            listener = self._listeners.pop(answer.number(1), None)
            if listener is not None:
                listener.failed(WireError("Moved", "the broker unloaded the topic"), closed=True)
        elif kind == Kind.PING:
            if not self._out:  # else the broker does not read, and the unsent bytes are a sign of life as well
                self.write(PONG)
        elif kind == Kind.AUTH_CHALLENGE:
            self.write(self.accepted.credentials())

    def _end(self, error: WireError) -> None:
        with self._lock:
            self.ended = error
            listeners, self._listeners = list(self._listeners.values()), {}
            requests, self._requests = list(self._requests.values()), {}
            self._poller.forget(self._sock)
            self._sock.close()
        if not self._closing and listeners:
            log.warning(
                "the connection to Pulsar was lost, unconfirmed messages are resent. Action: check the broker if this "
                "repeats",
                broker=self.accepted.name,
                why=error.text,
            )
        for listener in listeners:
            listener.failed(error, closed=True)
        for request in requests:
            request.set_result(Answer(0, {}))
        self._poller.close()

"""The connections of HTTP clients: one h11 state machine each, on the service's event loop.

A connection decides when it reads, how long it waits and what it buffers; ``bridge.http.app`` decides the meaning of a
request. Before the app has accepted a request's head, a client can fill at most ``limits.head_size``. The body is read
afterwards, within one time limit for all of it. While an answer is awaited nothing is read, unless it may take long: then
the client's end is noticed.

Example of the phases: HEAD → BODY → WORKING → HEAD … → ENDED; every refusal leads to ENDED.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import h11

from bridge.http.access import Filters, certificate_filters, certificate_names
from bridge.http.app import Answer, Head, HttpApp, Request, busy
from bridge.settings import Settings

__all__ = ["REFUSAL", "Connections"]

_CHUNK: Final = 16 * 1024
"""Bytes that are read at once."""
_LINGER_S: Final = 1.0
"""How long a client may take to read the last answer, in seconds. An earlier close could discard it."""

REFUSAL: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer on a connection that is not accepted."""


class _Phase(Enum):
    HEAD = "waits for a request, or for the rest of its head"
    BODY = "reads the body of a request that is allowed"
    WORKING = "waits for the result, or until the client has read its answers"
    ENDED = "has had its last answer; further bytes are dropped"


class _Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, owner: Connections) -> None:
        self.context: ssl.SSLContext | None = None
        """The TLS context that authenticated the client, None without TLS."""
        self._owner = owner
        self._app = owner.app
        self._h11 = h11.Connection(h11.SERVER, owner.http.limits.head_size)
        self._phase = _Phase.HEAD
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._certificate: Filters | None = None
        self._head: Head | None = None
        self._request: Request | None = None
        self._at_once = False  # the request came in one piece
        self._body = bytearray()
        self._future: asyncio.Future[Any] | None = None
        self._unwritten = False  # answers wait because the client does not read them
        self._ended_reading = False

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.context = transport.get_extra_info("sslcontext")
        certificate = transport.get_extra_info("peercert")
        if certificate:
            names = certificate_names(certificate)
            self._certificate = certificate_filters(names, self._owner.http.certificates, self._owner.name_limit)
        self._owner.open.add(self)
        self._wait(self._owner.http.limits.first_request_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.ENDED
        self._drop_body()
        if self._future is not None:
            self._future.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._owner.open.discard(self)
        self._owner.closed.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase is not _Phase.ENDED:
            self._h11.receive_data(bytes(self._owner.buffer[:nbytes]))
            if self._phase is _Phase.WORKING:
                self._transport.pause_reading()  # it is the next request
            self._advance()

    def eof_received(self) -> bool:
        if self._phase is _Phase.ENDED:
            return False
        self._ended_reading = True
        if self._phase is not _Phase.WORKING:
            self._h11.receive_data(b"")
            self._advance()
        # A client that has sent its request may still read, unless it would wait for long; TLS cannot be half closed.
        waits = self._request is not None and self._request.waits
        return self._phase is _Phase.WORKING and self.context is None and not waits

    def pause_writing(self) -> None:
        self._unwritten = True

    def resume_writing(self) -> None:
        self._unwritten = False
        if self._phase is _Phase.WORKING and self._future is None:
            self._next()
            self._advance()

    # --- reading ---

    def _advance(self) -> None:
        self._at_once = False
        try:
            while self._phase in (_Phase.HEAD, _Phase.BODY):
                event = self._h11.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._grow(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._take()
                elif isinstance(event, h11.ConnectionClosed):
                    self._close()
        except h11.RemoteProtocolError as e:
            self._refuse(Answer(e.error_status_hint, {"message": f"not a valid HTTP request: {e}"}))

    def _begin(self, request: h11.Request) -> None:
        self._head = Head(request.method, request.target, tuple(iter(request.headers)), self._certificate)
        if not self._owner.is_current(self.context):
            self._close()  # its authority may have been removed
            return
        result = self._app.begin(self._head)
        if isinstance(result, Answer):
            self._refuse(result)
            return
        self._request = result
        self._at_once = True
        self._phase = _Phase.BODY
        self._wait(self._owner.http.limits.read_timeout)
        lengths = self._head.values(b"content-length")
        if lengths and int(lengths[0]) > result.max_body:  # h11 has made sure that it is a number
            self._too_large()
        elif self._h11.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self._transport.write(self._h11.send(go_on) or b"")

    def _grow(self, data: bytes) -> None:
        assert self._request is not None
        self._body += data
        self._owner.reading += len(data)
        if len(self._body) > self._request.max_body:
            self._too_large()
        elif self._owner.reading > self._owner.max_reading:
            self._refuse(busy("too many bodies are being read; the message was not accepted"))

    def _too_large(self) -> None:
        assert self._request is not None
        self._refuse(Answer(413, {"message": f"the body has more than {self._request.max_body} bytes"}))

    def _take(self) -> None:
        """Begin a complete request; a credential that was removed in the meantime does not count."""
        assert self._head is not None
        assert self._request is not None
        if not self._owner.is_current(self.context):
            self._close()
            return
        if not self._at_once:
            checked = self._app.begin(self._head)
            if isinstance(checked, Answer):
                self._refuse(checked)
                return
        request, body = self._request, bytes(self._body)
        self._drop_body()
        self._phase = _Phase.WORKING
        if not request.waits:
            self._transport.pause_reading()
        result = self._app.take(request, body)
        if isinstance(result, Answer):
            self._answer(result)
            return
        self._future = result
        self._wait(request.patience)
        result.add_done_callback(self._done)

    def _drop_body(self) -> None:
        self._owner.reading -= len(self._body)
        self._body = bytearray()

    # --- answering ---

    def _done(self, future: asyncio.Future[Any]) -> None:
        if future is self._future and self._phase is _Phase.WORKING and not future.cancelled():
            assert self._request is not None
            self._answer(self._request.answer(future.result()))
            self._advance()

    def _answer(self, answer: Answer) -> None:
        """Answer a complete request, and continue with the next one."""
        self._future = None
        self._write(answer, close=self._app.closing or self._ended_reading)
        if self._h11.our_state is h11.MUST_CLOSE or self._ended_reading:
            self._end()
        elif self._unwritten:
            self._wait(self._owner.http.limits.read_timeout)
        else:
            self._next()

    def _next(self) -> None:
        self._h11.start_next_cycle()
        self._head = self._request = None
        self._phase = _Phase.HEAD
        self._wait(self._owner.http.limits.read_timeout)
        self._transport.resume_reading()

    def _refuse(self, answer: Answer) -> None:
        """Answer a request that is not read to its end, and end the connection."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(answer, close=True)
        self._end()

    def _write(self, answer: Answer, *, close: bool) -> None:
        raw = isinstance(answer.body, bytes)
        body = (
            answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body, separators=(",", ":")).encode()
        )
        headers = [*answer.headers, *([("Connection", "close")] if close else [])]
        if answer.status == HTTPStatus.NO_CONTENT:
            body = b""
        else:
            kind = "application/octet-stream" if raw else "application/json"
            headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]
        events: list[h11.Event] = [
            h11.Response(status_code=answer.status, headers=headers, reason=HTTPStatus(answer.status).phrase.encode())
        ]
        if body and (self._head is None or self._head.method != b"HEAD"):
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        self._transport.write(b"".join(self._h11.send(event) or b"" for event in events))

    # --- closing ---

    def _end(self) -> None:
        """Let the client read its last answer and close; abort after a while."""
        if self._ended_reading or self._transport.is_closing():
            self._close()
            return
        self._phase = _Phase.ENDED
        self._drop_body()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._wait(_LINGER_S)

    def _close(self) -> None:
        self._phase = _Phase.ENDED
        self._drop_body()
        self._wait(_LINGER_S)  # TLS waits for the client's close
        self._transport.close()

    def finish(self) -> None:
        """Close if no request has begun; else close after its answer."""
        if self._phase is _Phase.HEAD:
            self._close()

    def abort(self) -> None:
        """Close without waiting for the client."""
        self._transport.abort()

    # --- time ---

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._owner.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self._phase is _Phase.HEAD:
            self._close()
        elif self._phase is _Phase.BODY:
            self._refuse(Answer(408, {"message": "the body did not arrive in time"}))
        elif self._future is not None and self._request is not None:
            self._future.cancel()
            self._answer(self._request.answer(None))
            self._advance()
        else:
            self._transport.abort()


class Connections:
    """Creates and closes connections. Everything runs on the event loop.

    ``max_reading`` bounds the bodies that are being read, in bytes of all connections. ``is_current`` returns whether a
    connection's TLS context is still in force; None means a connection without TLS.
    """

    def __init__(
        self,
        settings: Settings,
        app: HttpApp,
        loop: asyncio.AbstractEventLoop,
        *,
        is_current: Callable[[ssl.SSLContext | None], bool] = lambda _context: True,
    ) -> None:
        self.app = app
        self.http = settings.http
        self.loop = loop
        self.max_reading = settings.ingest.limits.in_flight_size
        self.reading = 0
        """Bytes of bodies that are not complete."""
        self.buffer = memoryview(bytearray(_CHUNK))
        """Shared by all connections, because its content is processed before the next read."""
        self.is_current = is_current
        self.open: set[_Connection] = set()
        self.name_limit = settings.max_name_bytes
        self.closed = asyncio.Event()
        """Set when a connection has closed."""

    def connect(self) -> asyncio.BaseProtocol:
        """Return the protocol object of a new connection."""
        return _Connection(self)

    def finish(self, *, outdated: bool = False) -> None:
        """Close idle connections; the others close after the answer that they wait for.

        With ``outdated`` only those with an old TLS context; the busy ones close before their next request.
        """
        for connection in list(self.open):
            if not outdated or not self.is_current(connection.context):
                connection.finish()

    async def finished(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until clients have their answers, then abort the others."""
        end = self.loop.time() + timeout
        while self.open and self.loop.time() < end:
            self.closed.clear()
            try:
                await asyncio.wait_for(self.closed.wait(), end - self.loop.time())
            except asyncio.TimeoutError:
                break
        for connection in list(self.open):
            connection.abort()

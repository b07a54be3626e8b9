"""The connections of the HTTP listeners: uvicorn's protocol objects, made for the service's event loop.

It decides what uvicorn is told and how connections are ended; requests are answered by ``bridge.http.app``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["Connections"]

_MAX_HEAD_BYTES: Final = 256 * 1024
"""Request line and headers: a topic of 65,535 bytes is three times as long when each byte is percent-encoded."""


class _Connection(H11Protocol):
    """uvicorn's connection, which also ends when a client opens it, or begins a request, and falls silent."""

    patience_s = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy:
            self._disarm()
        elif self._timer is None:
            self._arm()  # the head of a request has begun

    def eof_received(self) -> bool | None:  # type: ignore[override]
        if not self._busy or self.cycle.more_body or self.scheme != "http":
            return None
        self.cycle.keep_alive = False
        return True  # the client has said all that it had to say, and still listens

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._disarm()  # uvicorn's own timer ends an idle connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self.patience_s, self._give_up)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._busy:
            self.transport.close()


class Connections:
    """Makes connections for an ASGI application, and ends them. Everything runs on the event loop."""

    def __init__(self, asgi: Any, *, patience_s: float) -> None:
        self._state = ServerState()
        self._config = uvicorn.Config(
            asgi,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # a port scan is no news; our own log tells faults
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self._config.load()
        self._patience_s = patience_s

    def connect(self) -> asyncio.BaseProtocol:
        """Return the protocol object of a new connection."""
        made = _Connection(config=self._config, server_state=self._state, app_state={})
        made.patience_s = self._patience_s
        return made

    def __len__(self) -> int:
        """How many are open."""
        return len(self._state.connections)

    def finish(self) -> None:
        """Close idle connections; the others close after the answer that they wait for."""
        for connection in list(self._state.connections):
            with suppress(h11.LocalProtocolError):  # it is broken, and ends by itself
                connection.shutdown()

    async def finished(self, timeout: float) -> None:
        """Wait for the answers under way, at most ``timeout`` seconds, then close what is left."""
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()

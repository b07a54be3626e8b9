"""The event loop of the listeners in a separate thread, and the handlers' sockets.

It decides how sockets are bound, which connections are accepted and how they end. The handler's protocol object decides
their content. A connection beyond ``Acceptor.max_connections`` is closed before a byte of it is read. So is one that
would use the last free file descriptors, because MQTT and Pulsar need them to reconnect.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import structlog

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.protocols.handler import Acceptor, Address

__all__ = ["Listening"]


log = structlog.get_logger("protocols")

_BEAT_S: Final = 1.0
_UNAVAILABLE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_FREE_DESCRIPTORS: Final = 256
"""File descriptors left to the rest of the process, at most a quarter of all."""
_RETRY_S: Final = 0.5
"""How long a listener waits if the system lacks descriptors or memory, in seconds."""


class Listening:
    """An event loop in a thread, from ``start`` to ``end``. One other thread calls it.

    ``health`` gets a part that reports whether the loop runs. ``shares_ports`` lets other processes of this user listen
    on the same ports; each then gets its part of the connections.
    """

    def __init__(self, health: Health | None = None, *, shares_ports: bool = False) -> None:
        self._shares_ports = shares_ports
        self._part = (health or Health()).part("listeners", loop=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="listeners", daemon=True)
        self._sockets: dict[str, list[socket.socket]] = {}
        self._accepting: dict[str, list[asyncio.Task[None]]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._connections: dict[str, set[socket.socket]] = {}
        """Accepted sockets of each handler; closed ones are forgotten at the limit."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once started."""
        assert self._loop is not None
        return self._loop

    def start(self) -> None:
        """Run the loop."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._part.ready()
        self._beat()
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _beat(self) -> None:
        """Report that the loop runs: a handler that blocks it blocks the connections of all."""
        self._part.turned(time.monotonic())
        self.loop.call_later(_BEAT_S, self._beat)

    def connections(self) -> dict[str, int]:
        """Return the number of open connections of each handler. Any thread may call it."""
        found = {name: list(sockets) for name, sockets in list(self._connections.items())}
        return {name: sum(one.fileno() >= 0 for one in sockets) for name, sockets in found.items()}

    def open(self, name: str, listeners: Iterable[tuple[Address, Acceptor]]) -> list[Address]:
        """Listen for the handler ``name``. Returns the bound addresses. Raises TerminalError if one is in use."""
        return asyncio.run_coroutine_threadsafe(self._open(name, listeners), self.loop).result()

    async def _open(self, name: str, listeners: Iterable[tuple[Address, Acceptor]]) -> list[Address]:
        bound: list[Address] = []
        for address, acceptor in listeners:
            try:
                sockets = await self._bind(address)
            except OSError as e:
                raise TerminalError(
                    f"{name} cannot listen on {address.host}:{address.port}: {e.strerror or e}",
                    remedy="choose another address, or stop the process that uses it",
                ) from e
            for one in sockets:
                bound.append(Address(*one.getsockname()[:2]))
                self._sockets.setdefault(name, []).append(one)
                task = self.loop.create_task(self._accept(name, one, acceptor))
                self._accepting.setdefault(name, []).append(task)
        return bound

    async def _bind(self, address: Address) -> list[socket.socket]:
        """Return a listening socket for each address of the host that this machine supports.

        A name such as localhost has an IPv6 address even if the system lacks IPv6.
        """
        found = await self.loop.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        lacking: OSError | None = None
        try:
            for family, _kind, _protocol, _name, where in dict.fromkeys(found):
                try:
                    made = socket.create_server(where[:2], family=family, reuse_port=self._shares_ports)
                except OSError as e:
                    if e.errno not in _UNAVAILABLE:
                        raise
                    lacking = e
                    continue
                made.setblocking(False)
                sockets.append(made)
            if lacking is not None and not sockets:
                raise lacking
        except OSError:
            for one in sockets:
                one.close()
            raise
        return sockets

    # --- accepting ---

    async def _accept(self, name: str, listener: socket.socket, acceptor: Acceptor) -> None:
        while True:
            try:
                connection, _ = await self.loop.sock_accept(listener)
            except ConnectionError:
                continue  # the client has disconnected
            except OSError as e:
                log.warning(
                    "a listener cannot accept connections, it retries. Action: raise the limit of open files "
                    "(ulimit -n)",
                    protocol=name,
                    why=e.strerror or str(e),
                    shown=1,
                )
                await asyncio.sleep(_RETRY_S)
                continue
            advice = self._problem(name, connection, acceptor)
            if advice is None:
                task = self.loop.create_task(self._connect(name, connection, acceptor))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
            else:
                log.warning("a connection was refused. " + advice, protocol=name, shown=1)
                with connection, suppress(OSError):
                    if acceptor.tls is None:
                        connection.send(acceptor.refusal)
            await asyncio.sleep(0)  # accepting succeeds at once while clients wait: let other tasks run

    def _problem(self, name: str, connection: socket.socket, acceptor: Acceptor) -> str | None:
        """Return the action if a connection exceeds a limit; None if it was added."""
        found = self._connections.setdefault(name, set())
        if len(found) >= acceptor.max_connections:
            found.difference_update([one for one in found if one.fileno() < 0])
        if len(found) >= acceptor.max_connections:
            return f"Action: close idle clients, or raise {name}.max_connections, which is {acceptor.max_connections}"
        most = _descriptors()
        if connection.fileno() >= most:  # the system assigns the lowest free number, so all lower ones are in use
            return f"Action: raise the limit of open files (ulimit -n), of which {most} are in use"
        found.add(connection)
        return None

    async def _connect(self, name: str, connection: socket.socket, acceptor: Acceptor) -> None:
        """Create the connection's transport and protocol, after the TLS handshake if required."""
        try:
            protocol = acceptor.connect()
            tls = None if acceptor.tls is None else acceptor.tls()
        except Exception as e:  # noqa: BLE001 a third party's handler may fail in any way
            connection.close()
            _report(name, e)
            return
        try:
            await self.loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else acceptor.handshake_s,
            )
        except OSError as e:  # ssl.SSLError is one
            log.debug("a client did not complete its handshake", protocol=name, why=str(e))
        except Exception as e:  # noqa: BLE001
            _report(name, e)

    def close(self, name: str) -> None:
        """Stop listening for a handler; its connections stay open."""
        asyncio.run_coroutine_threadsafe(self._close(name), self.loop).result()

    async def _close(self, name: str) -> None:
        tasks = self._accepting.pop(name, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._sockets.pop(name, []):
            one.close()

    def end(self) -> None:
        """Cancel the remaining tasks of the loop and end its thread."""
        for name in list(self._sockets):
            self.close(name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


def _descriptors() -> int:
    """Return how many file descriptors may be in use when the loop accepts a connection."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 1 << 30
    return most - min(_FREE_DESCRIPTORS, most // 4)


def _report(name: str, error: Exception) -> None:
    log.error(
        "a protocol handler failed at a new connection. Action: report it to its authors",
        protocol=name,
        why=f"{type(error).__name__}: {error}",
        shown=1,
    )

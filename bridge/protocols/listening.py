"""The event loop of the listeners in a thread of its own, and the sockets that handlers ask for.

It decides how sockets are bound and closed; what is spoken on a connection is its handler's protocol object.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Final

from bridge.errors import TerminalError
from bridge.health import Health
from bridge.protocols.handler import Acceptor, Address

__all__ = ["Listening"]


_BEAT_S: Final = 1.0


class Listening:
    """An event loop in a thread, from ``start`` to ``end``. Called from one other thread.

    ``health`` gets a part that tells whether the loop turns. ``shares_ports`` lets other processes of this user listen on
    the same ports, each of which then gets its part of the connections.
    """

    def __init__(self, health: Health | None = None, *, shares_ports: bool = False) -> None:
        self._shares_ports = shares_ports
        self._part = (health or Health()).part("listeners", loop=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="listeners", daemon=True)
        self._servers: dict[str, list[asyncio.Server]] = {}

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
        """Show that the loop turns: one handler that blocks it holds the connections of all."""
        self._part.turned(time.monotonic())
        self.loop.call_later(_BEAT_S, self._beat)

    def open(self, name: str, listeners: Mapping[Address, Acceptor]) -> list[Address]:
        """Listen for the handler called ``name``. Returns the addresses bound. Raises TerminalError for one that is taken."""
        return asyncio.run_coroutine_threadsafe(self._open(name, listeners), self.loop).result()

    async def _open(self, name: str, listeners: Mapping[Address, Acceptor]) -> list[Address]:
        bound: list[Address] = []
        for address, acceptor in listeners.items():
            try:
                server = await self.loop.create_server(
                    acceptor.connect,
                    address.host,
                    address.port,
                    ssl=acceptor.tls,
                    reuse_address=True,
                    reuse_port=self._shares_ports,
                )
            except OSError as e:
                raise TerminalError(
                    f"{name} cannot listen on {address.host}:{address.port}: {e.strerror or e}",
                    remedy="choose another address, or end the process that has it",
                ) from e
            self._servers.setdefault(name, []).append(server)
            bound += [Address(*s.getsockname()[:2]) for s in server.sockets]
        return bound

    def close(self, name: str) -> None:
        """Stop listening for a handler; its connections live on."""
        asyncio.run_coroutine_threadsafe(self._close(name), self.loop).result()

    async def _close(self, name: str) -> None:
        for server in self._servers.pop(name, []):
            server.close()

    def end(self) -> None:
        """Cancel what is left on the loop and end its thread."""
        for name in list(self._servers):
            self.close(name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

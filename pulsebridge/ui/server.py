"""The server of the live view: its socket, its threads, and its end at a signal."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

import structlog
import uvicorn

from bridge.errors import TerminalError
from bridge.settings import Settings
from bridge.settings.http import is_loopback
from bridge.stopping import CLOSE_S, stopping_on_signals
from pulsebridge.ui.pages import application
from pulsebridge.ui.snapshot import Snapshots

__all__ = ["serve"]

log = structlog.get_logger("ui")

_CONNECTIONS: Final = 100
_DRAIN_S: Final = 3.0
"""Time for the requests under way at the end."""


def serve(settings: Settings, listening: Callable[[str], None]) -> None:
    """Serve the live view until SIGTERM or SIGINT. ``listening`` gets its URL, once a browser can open it.

    Raises TerminalError if the port is not available.
    """
    ui = settings.ui
    if not is_loopback(ui.host):
        log.warning(
            "the live view is reachable from other machines over plain HTTP. Action: put a proxy with TLS in front",
            host=ui.host,
            readers="with a token" if ui.read_token is not None else "everyone",
        )
    with closing(_listener(ui.host, ui.port)) as listener:
        host, port = listener.getsockname()[:2]
        snapshots = Snapshots(settings)
        config = uvicorn.Config(
            application(settings, snapshots),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=int(_DRAIN_S),
        )
        server = uvicorn.Server(config)

        def stop() -> None:
            server.should_exit = True
            snapshots.stop()

        # uvicorn leaves the signals alone on a thread of its own.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="ui-server")
        with stopping_on_signals("ui", stop, _DRAIN_S + CLOSE_S):
            snapshots.start()
            thread.start()
            listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            thread.join()
            snapshots.stop()
            snapshots.await_end(_DRAIN_S)
        if not server.started:
            raise TerminalError("the server of the live view failed at its start", remedy="see the lines above")


def _listener(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as e:
        raise TerminalError(f"ui.host {host} is not an address of this machine: {e.strerror}") from e
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_CONNECTIONS)
    except OSError as e:
        found.close()
        raise TerminalError(
            f"the live view cannot listen on {host}:{port}: {e.strerror}", remedy="give another --port"
        ) from e
    return found

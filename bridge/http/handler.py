"""The protocol handler ``http``: it listens, and passes each request's message to its intake.

INITIALIZE imports h11, so that it reports a missing extra, and other handlers do not need it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import ConfigError
from bridge.intake.awaited import AwaitedIntake
from bridge.protocols.handler import Acceptor, Address, ProtocolHandler, Service
from bridge.settings import Settings
from bridge.settings.http import HttpSettings
from bridge.tls import file_stamps

if TYPE_CHECKING:
    from bridge.http.connections import Connections
    from bridge.protocols.awaited_commands import AwaitedCommands

__all__ = ["HttpHandler", "server_context"]

log = structlog.get_logger("http")

_CHECK_S: Final = 1.0
"""Interval of the checks of readiness and of the certificate's files, in seconds."""
_ANSWER_S: Final = 2.0
"""How long the last answers may take after everything is stored, in seconds."""


def server_context(http: HttpSettings) -> ssl.SSLContext:
    """Return a new context from the files, because a context never forgets a trusted authority. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert http.tls_certificate is not None
    assert http.tls_private_key is not None
    try:
        # If the key has a passphrase, raise instead of a prompt on the terminal.
        context.load_cert_chain(str(http.tls_certificate), str(http.tls_private_key), password=b"")
        if http.tls_client_ca is not None:
            context.load_verify_locations(str(http.tls_client_ca))
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(
            f"http.tls_certificate {http.tls_certificate}, tls_private_key or tls_client_ca cannot be used: {e}",
            remedy="give readable PEM files that belong together, the key without a passphrase",
        ) from e
    return context


class HttpHandler(ProtocolHandler):
    """Messages by ``bridge.http.app``, and commands, if the settings serve some, by ``bridge.http.commands``."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._tls: ssl.SSLContext | None = None
        self._files: tuple[tuple[int, ...], ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._was_ready = True
        self._service: Service | None = None
        self._connections: Connections | None = None
        self._commands: AwaitedCommands | None = None

    @property
    def protocol_name(self) -> str:
        """``http``."""
        return "http"

    @property
    def _http(self) -> HttpSettings:
        return self._settings.http

    def initialize(self, settings: Settings) -> None:
        """Import the extra's packages, and read the certificate."""
        import bridge.http.app
        import bridge.http.connections  # noqa: F401

        self._settings = settings
        if self._http.tls_port is not None:
            self._files = self._stamps()
            self._tls = server_context(self._http)

    def _in_force(self) -> ssl.SSLContext:
        assert self._tls is not None
        return self._tls

    def _is_current(self, context: ssl.SSLContext | None) -> bool:
        """Return whether the context that authenticated a connection is still in force."""
        return context is None or self._http.tls_client_ca is None or context is self._tls

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        http = self._http
        return file_stamps(http.tls_certificate, http.tls_private_key, http.tls_client_ca)

    def protocol_data_to_advertise(self) -> str:
        """Return paths and schemes, as JSON."""
        schemes = [("http", self._http.port), ("https", self._http.tls_port)]
        paths = {"path": "/topics/{mqtt topic}"}
        if self._http.commands.topics:
            paths["commands"] = "/devices/{device}/commands"
        return json.dumps({**paths, "schemes": [s for s, p in schemes if p is not None]})

    def start(self, service: Service) -> None:
        """Create the intake and the application, on their event loop."""
        self._service = service
        asyncio.run_coroutine_threadsafe(self._start(service), service.loop).result()

    async def _start(self, service: Service) -> None:
        from bridge.http.app import HttpApp
        from bridge.http.connections import Connections

        fetched, requests = bool(self._http.commands.topics), None
        limit = self._http.limits.in_flight
        intake = AwaitedIntake(service, link="http", protocol="http", limit=limit, presence=not fetched)
        if fetched:  # else the MQTT client is not imported
            from bridge.http.commands import CommandRequests
            from bridge.protocols.awaited_commands import AwaitedCommands

            self._commands = AwaitedCommands(service, self._http.commands)
            requests = CommandRequests(self._settings, self._commands)
        app = HttpApp(self._settings, intake, requests)
        self._connections = Connections(self._settings, app, service.loop, is_current=self._is_current)
        self._timer = service.loop.call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        """Report changed readiness, and load a replaced certificate."""
        assert self._service is not None
        self._timer = self._service.loop.call_later(_CHECK_S, self._check)
        ready = self.readiness()["http"]
        if ready != self._was_ready:
            self._was_ready = ready
            self._service.changed()
        if self._tls is not None:
            self._check_files()

    def _check_files(self) -> None:
        """Load replaced files for new connections; with mTLS the old connections end."""
        files = self._stamps()
        if files == self._files:
            return
        try:
            self._tls = server_context(self._http)
        except ConfigError as e:
            log.warning(
                "the new certificate is not valid, the old one stays in use. Action: correct the files; the service "
                "rereads them",
                why=str(e),
                shown=1,
            )
            return
        self._files = files
        assert self._connections is not None
        self._connections.finish(outdated=True)
        log.info("the certificate was replaced", file=str(self._http.tls_certificate))

    def listeners(self) -> Iterable[tuple[Address, Acceptor]]:
        """Yield the plain address, the one with TLS, or both."""
        assert self._connections is not None
        from bridge.http.connections import REFUSAL

        http = self._http
        plain = Acceptor(self._connections.connect, max_connections=http.limits.connections, refusal=REFUSAL)
        if http.port is not None:
            yield Address(http.host, http.port), plain
        if http.tls_port is not None:
            secure = replace(plain, tls=self._in_force, handshake_s=http.limits.first_request_timeout)
            yield Address(http.host, http.tls_port), secure

    def readiness(self) -> Mapping[str, bool]:
        """Return whether requests are accepted and Pulsar confirms their messages."""
        if self._connections is None:
            return {"http": False}
        app = self._connections.app
        return {"http": app.intake.stalled_for < self._settings.ingest.stall_warning and not app.closing}

    def close(self) -> None:
        """Refuse new messages, answer waiting ones once they are stored, and end the connections."""
        if self._commands is not None and self._service is not None:
            self._commands.stop(self._service.drain_deadline)
        if self._service is not None and self._connections is not None:
            close = self._close(self._service, self._connections)
            asyncio.run_coroutine_threadsafe(close, self._service.loop).result()
        if self._commands is not None:
            self._commands.join()

    async def _close(self, service: Service, connections: Connections) -> None:
        if self._timer is not None:
            self._timer.cancel()
        connections.app.closing = True
        connections.finish()
        unstored = await connections.app.intake.drain(service.drain_deadline)
        await connections.finished(_ANSWER_S)
        log.info("http stops", unstored=unstored)

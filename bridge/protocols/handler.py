"""The interfaces of a protocol handler and of the process that runs it.

A handler is a class with a no-argument constructor, named by an entry point of the group
``pulsebridge.protocol_handlers``. Its phases come in this order, each once, on the service's main thread:

1. INITIALIZE ``initialize(settings)``: read the settings; open nothing that others can see.
2. ADVERTISE ``protocol_data_to_advertise()``: a text that other instances read.
3. START ``start(service)``, then ``listeners()``: accept messages from now on.
4. STOP ``close()``: drain until ``service.drain_deadline``, and free everything. It is also called after another phase
   failed, even after a failed ``initialize``, and never twice.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.health import Health
from bridge.intake.intake import Intake
from bridge.pulsar.admin import PulsarAdmin
from bridge.settings import Settings

__all__ = ["Acceptor", "Address", "ProtocolHandler", "Service"]


class Address(NamedTuple):
    """An address to listen on; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Acceptor:
    """Creates the asyncio protocol of each accepted connection, and bounds connections before the first read.

    The service's event loop calls all of it.
    """

    connect: Callable[[], asyncio.BaseProtocol]
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context of the next connection, so that it uses replaced files."""
    max_connections: int = 1000
    """Most open connections of the handler, TLS handshakes included. Further ones are closed at once."""
    handshake_s: float = 10.0
    """Time limit of a whole TLS handshake, in seconds."""
    refusal: bytes = b""
    """Answer to a connection without TLS beyond the limit, at most a few hundred bytes."""


class Service(Protocol):
    """The process that runs the handlers. Any thread may use all of it."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def health(self) -> Health:
        """The state that /healthz and /readyz report. For each of its ``readiness`` a handler may add a part
        ``protocol name``, which states why it is not ready. Without such a part no reason is shown.
        """

    @property
    def admin(self) -> PulsarAdmin:
        """Pulsar's admin REST. Its calls block."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the listeners' connections, in a separate thread. Never block it."""

    @property
    def stopping(self) -> threading.Event:
        """Set when a stop is requested, before ``close``: begin to drain."""

    @property
    def drain_deadline(self) -> float:
        """The end of draining, by the monotonic clock; valid once ``stopping`` is set."""

    def intake(
        self, *, link: str, protocol: str, limit: int, wake: Callable[[], None], presence: bool = True
    ) -> Intake:
        """Return a new intake for the handler, which may close it. Else the service does, after the last ``close``.

        Without ``presence`` a message of a device is not reported to push as a sign of life.
        """

    def advertised(self, protocol: str) -> Mapping[str, str]:
        """Return the data that other live instances advertise for a protocol, by instance. It blocks.

        Empty if Pulsar does not let the service read it.
        """

    def changed(self) -> None:
        """Report that ``readiness`` has changed."""

    def failed(self, error: BaseException) -> None:
        """Report that the handler cannot continue. The service stops all handlers and ends with this error."""


class ProtocolHandler(ABC):
    """The handler of one protocol. The module's docstring describes the calls and their order.

    If a phase raises, the start of the service fails and all handlers are closed.
    """

    @property
    @abstractmethod
    def protocol_name(self) -> str:
        """The name in ``messaging_protocols``, equal to that of its entry point."""

    def accept(self, protocol: str) -> bool:
        """Return whether this handler is for ``protocol``. Called once, before anything else."""
        return protocol == self.protocol_name

    @abstractmethod
    def initialize(self, settings: Settings) -> None:
        """INITIALIZE: take the settings. Raise ConfigError or MissingExtraError if the handler cannot work."""

    @abstractmethod
    def protocol_data_to_advertise(self) -> str:
        """ADVERTISE: return the data for other instances, as any text; no secrets."""

    @abstractmethod
    def start(self, service: Service) -> None:
        """START: Pulsar is provisioned. Keep ``service``; do not block longer than a start takes."""

    def listeners(self) -> Iterable[tuple[Address, Acceptor]]:
        """Return the addresses to listen on, called once after ``start``. The service binds and closes them."""
        return ()

    def readiness(self) -> Mapping[str, bool]:
        """Return for each part (a link, a listener) whether messages flow through it. Any thread may call it."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """STOP: the listeners are closed. Drain until ``service.drain_deadline``, then free everything."""

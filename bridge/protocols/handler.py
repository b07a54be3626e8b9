"""What a protocol handler is, and what the process that runs it offers to it.

A handler is a class with a no-argument constructor, named by an entry point of the group
``pulsebridge.protocol_handlers``. Its phases come in this order, each once, on the service's main thread:

1. INITIALIZE ``initialize(settings)``: read the settings, open nothing yet that others can see.
2. ADVERTISE ``protocol_data_to_advertise()``: a text that other instances read.
3. START ``start(service)``, then ``listeners()``: take messages in from now on.
4. STOP ``close()``: drain until ``service.drain_deadline``, and free everything. It is called after any of the other
   phases failed as well, even after a failed ``initialize``, and never twice.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.health import Health
from bridge.ingest.intake import Intake
from bridge.pulsar_admin import PulsarAdmin
from bridge.settings import Settings

__all__ = ["Acceptor", "Address", "ProtocolHandler", "Service"]


class Address(NamedTuple):
    """Where to listen; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Acceptor:
    """Makes the asyncio protocol of each accepted connection, and bounds what clients hold before it reads anything.

    All of it is called on the service's event loop.
    """

    connect: Callable[[], asyncio.BaseProtocol]
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context of the next connection, so that replaced files count from it on."""
    max_connections: int = 1000
    """Open connections of the handler, those in a TLS handshake included; further ones are closed at once."""
    handshake_s: float = 10.0
    """How long a TLS handshake may take in all, in seconds."""
    refusal: bytes = b""
    """What a connection without TLS beyond the limit gets before it is closed; at most a few hundred bytes."""


class Service(Protocol):
    """The process that runs the handlers. All of it may be used from any thread."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def health(self) -> Health:
        """What /healthz and /readyz say. A handler may add a part ``protocol name`` for each of its ``readiness``,
        to tell why it is not ready; its parts are shown without a reason otherwise.
        """

    @property
    def admin(self) -> PulsarAdmin:
        """Pulsar's admin REST. Its calls block."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the listeners' connections, in a thread of its own. Never block it."""

    @property
    def stopping(self) -> threading.Event:
        """Set when a stop was asked for, before ``close``: begin to drain."""

    @property
    def drain_deadline(self) -> float:
        """Until when draining may last, by the monotonic clock; meaningful once ``stopping`` is set."""

    def intake(self, *, link: str, protocol: str, limit: int, wake: Callable[[], None]) -> Intake:
        """Return a way into Pulsar of the handler's own. The service closes its producers after the last ``close``."""

    def advertised(self, protocol: str) -> Mapping[str, str]:
        """Return what the other instances that live advertise for a protocol, by instance. It blocks.

        Empty where Pulsar does not let us read it.
        """

    def changed(self) -> None:
        """Tell that what ``readiness`` returns has changed."""

    def failed(self, error: BaseException) -> None:
        """Tell that the handler cannot go on: the service stops all handlers and ends with this error."""


class ProtocolHandler(ABC):
    """One protocol's way of bringing messages in. See the module's docstring for who calls what, and when.

    Raising from a phase fails the start of the service; all handlers are then closed.
    """

    @property
    @abstractmethod
    def protocol_name(self) -> str:
        """The name by which ``messaging_protocols`` chooses it, equal to its entry point's."""

    def accept(self, protocol: str) -> bool:
        """Return whether this handler is for ``protocol``. Asked once, before anything else."""
        return protocol == self.protocol_name

    @abstractmethod
    def initialize(self, settings: Settings) -> None:
        """INITIALIZE: take the settings. Raise ConfigError or MissingExtraError for what will not work."""

    @abstractmethod
    def protocol_data_to_advertise(self) -> str:
        """ADVERTISE: return what other instances are to know, as any text; no secrets."""

    @abstractmethod
    def start(self, service: Service) -> None:
        """START: Pulsar is provisioned. Keep ``service``; do not block longer than a start takes."""

    def listeners(self) -> Mapping[Address, Acceptor]:
        """Return the addresses to listen on, asked once after ``start``. The service binds and closes them."""
        return {}

    def readiness(self) -> Mapping[str, bool]:
        """Return for each part (a link, a listener) whether messages flow through it. Any thread asks, at any time."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """STOP: the listeners are closed. Drain until ``service.drain_deadline``, then free everything."""

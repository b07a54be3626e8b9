"""The connections of one process to Pulsar's brokers, and the lookup of a partition's broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from bridge.errors import DeniedError, FencedError, PulsebridgeError, TransientError
from bridge.loggers import get_logger
from bridge.pulsar.dial import addresses, credentials, open_connection
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.wire import commands
from bridge.pulsar.wire.commands import Answer, Redirect, WireError
from bridge.pulsar.wire.connection import Accepted, BrokerConnection
from bridge.pulsar.wire.producer import BatchProducer, Identity
from bridge.settings.pulsar import PulsarSettings

__all__ = ["Brokers", "WireClient"]

log = get_logger("pulsar")

_CLOSED: Final = "the client was closed"
_REDIRECTS: Final = 20
_DEFAULT_MESSAGE_BYTES: Final = 5 * 1024 * 1024
"""The limit of a broker that does not report its own."""


class Link(Protocol):
    """A connection to a broker: ``BrokerConnection``, or the one of Spark's source."""

    def __init__(self, accepted: Accepted) -> None: ...

    @property
    def accepted(self) -> Accepted:
        """The socket and what the broker answered."""

    @property
    def ended(self) -> WireError | None:
        """The error that ended the connection, None while it is open."""

    def number(self) -> int:
        """Return a number for a request, a producer or a reader."""

    def request(self, number: int, frame: bytes, timeout_s: float) -> Answer | WireError:
        """Send ``frame``, the request ``number``, and return the answer, or the error instead of it."""

    def close(self) -> None:
        """Close the connection."""


L = TypeVar("L", bound=Link)


class Brokers(Generic[L]):
    """One connection of the type ``kind`` to each broker, dialled on demand, redialled after a loss.

    Every call blocks until Pulsar answers, up to ``pulsar.operation_timeout``. Any thread may call.
    """

    def __init__(
        self, settings: PulsarSettings, kind: type[L], *, seen: Callable[[str, str], None] = lambda name, what: None
    ) -> None:
        """``seen`` is called with each step to a broker: ``connect`` or ``lookup``, and what came of it."""
        self._seen = seen
        self._settings = settings
        self._kind = kind
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, int, str], L] = {}
        self._dialling: dict[tuple[str, int, str], threading.Lock] = {}
        self._authenticated = False
        self._closed = False
        self._answered: tuple[str, int] | None = None

    def owner(self, partition: str, operation: str, until: float) -> L:
        """Return a connection to the broker that serves the partition.

        Each named host is asked, the one that answered last first. Only the last may take all the time until ``until``.
        """
        hosts = sorted(addresses(self._settings.service_url), key=lambda place: place != self._answered)
        for left, place in zip(reversed(range(len(hosts))), hosts, strict=True):
            limit = until if not left else min(until, time.monotonic() + self._settings.connection_timeout)
            try:
                found = self._owner(place, partition, operation, limit)
            except TransientError as e:
                if not left:
                    raise
                log.debug("the next host of pulsar.service_url is asked", why=e.what)
                self._seen("connect", e.what)
            else:
                self._answered = place
                return found
        raise AssertionError("the last host returns or raises")

    def _owner(self, named: tuple[str, int], partition: str, operation: str, until: float) -> L:
        connection = self._connection(*named)
        authoritative = False
        for _ in range(_REDIRECTS):
            request = connection.number()
            asked = commands.lookup(partition, request, authoritative=authoritative)
            answer = connection.request(request, asked, _left(until))
            found: Redirect | WireError
            if isinstance(answer, WireError):
                found = answer
            elif answer.kind != commands.Kind.LOOKUP_RESPONSE:
                found = WireError("UnknownError", f"a command of type {answer.kind} as the answer to a lookup")
            else:
                found = commands.redirect_of(answer, tls=self._settings.service_url.startswith("pulsar+ssl:"))
            if isinstance(found, WireError):
                error = as_our_error(found, f"{operation}, lookup at {connection.accepted.name}")
                # A busy topic is an answer to a producer or a consumer; as the answer to a lookup it has no meaning.
                raise TransientError(error.what) if isinstance(error, FencedError) else error
            self._seen("lookup", f"{connection.accepted.name} answers: {_shown(found)}")
            (place,) = addresses(found.url)
            if found.proxied and place not in addresses(self._settings.service_url):
                connection = self._connection(*named, proxy_to=f"{place[0]}:{place[1]}")
            else:
                connection = self._connection(*place)
            if found.final:
                return connection
            authoritative = found.authoritative
        raise TransientError(f"{operation}: the brokers redirected us {_REDIRECTS} times")

    def _connection(self, host: str, port: int, proxy_to: str = "") -> L:
        key = (host, port, proxy_to)
        with self._lock:
            dialling = self._dialling.setdefault(key, threading.Lock())
        with dialling:  # one thread dials, the others wait for it
            found = self._connections.get(key)
            if found is None or found.ended is not None:
                found = self._dial(host, port, proxy_to)
                with self._lock:
                    closed = self._closed  # while this thread dialled
                    self._connections[key] = found
                if closed:
                    found.close()
                    raise TransientError(_CLOSED)
            return found

    def _dial(self, host: str, port: int, proxy_to: str) -> L:
        settings = self._settings
        if self._closed:
            raise TransientError(_CLOSED)
        try:
            sock, connected = open_connection(settings, host, port, settings.connection_timeout, proxy_to=proxy_to)
        except DeniedError as e:
            if self._authenticated:  # a rotation of the file can restore access
                raise TransientError(e.what, remedy=e.remedy) from e
            raise
        self._authenticated = True
        name = f"{host}:{port}" + (f" for {proxy_to}" if proxy_to else "")
        log.debug("connected to Pulsar", broker=name, version=connected.text(1))
        self._seen("connect", f"Pulsar {name}, {connected.text(1)}")
        return self._kind(
            Accepted(
                sock,
                name,
                max_message_bytes=connected.number(3) or _DEFAULT_MESSAGE_BYTES,
                credentials=lambda: commands.auth_response(*credentials(settings)),
                address=proxy_to or f"{host}:{port}",
            )
        )

    def connected(self) -> list[L]:
        """Return the connections made so far, including those that have ended."""
        return list(self._connections.values())

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()


class WireClient:
    """Makes producers; each connection has its own thread. Blocks, and may be called, as ``Brokers``."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._brokers = Brokers(settings, BrokerConnection)
        self._timeout_s = settings.operation_timeout

    def producer(self, partition: str, identity: Identity | None = None) -> BatchProducer:
        """Make a producer on one partition, or on a topic without partitions.

        ``identity`` is the result of its predecessor's ``successor``. Raises TransientError, RefusedError,
        DeniedError or FencedError.
        """
        operation = f"making a producer on {partition}"
        until = time.monotonic() + self._timeout_s
        connection = self._brokers.owner(partition, operation, until)
        number, request = connection.number(), connection.number()
        before = identity or Identity()
        made = BatchProducer(connection, number)
        asked = commands.producer(partition, number, request, name=before.name, epoch=before.epoch)
        answer = connection.request(request, asked, _left(until))
        if isinstance(answer, WireError):
            if answer.name == "Timeout":
                made.close()
            else:
                connection.ignore(number)
            if answer.name == "ProducerBusy" and before.name:
                raise TransientError(f"{operation}: the broker has not yet closed the lost connection")
            raise as_our_error(answer, f"{operation} at {connection.accepted.name}")
        last = answer.number(3, -1)
        last = last if last < 1 << 63 else -1  # an int64 below zero
        made.opened(Identity(answer.text(2), before.epoch, max(before.sequence, last + 1)))
        return made

    def owner_problem(self, partition: str) -> str:
        """Return why the owner of a partition does not answer, with the host that failed; empty if it answers. Blocks as
        ``Brokers.owner``, and raises nothing.
        """
        try:
            self._brokers.owner(partition, f"looking up {partition}", time.monotonic() + self._timeout_s)
        except PulsebridgeError as e:
            return e.what
        return ""

    def close(self) -> None:
        """Close every connection. Messages without a receipt fail."""
        self._brokers.close()


def _shown(found: Redirect) -> str:
    how = "the owner is" if found.final else "ask"
    return f"{how} {found.url}" + (", through this proxy" if found.proxied else "")


def _left(until: float) -> float:
    return max(0.1, until - time.monotonic())

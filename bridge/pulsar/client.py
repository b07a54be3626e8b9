"""The only module that imports Pulsar's client: connections, producers, readers and consumers, and its errors as ours.

It configures clients so that no message is refused without an error (H1). Its callers decide what to write and when
to acknowledge. Create a client in the process that uses it, never before a fork, because its C++ threads do not
survive one.
"""

# ruff: noqa: E402  load_late runs before the imports
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from bridge.pulsar.late_modules import load_late

# The client's schemas, which we do not use, import both: two thirds of its start-up time.
load_late("fastavro", "google.protobuf.descriptor_pb2")

import pulsar

from bridge.errors import DeniedError, ForbiddenError, PulsebridgeError, TerminalError, TransientError
from bridge.loggers import get_logger
from bridge.pulsar.dial import addresses, answering, credentials, dial, with_grant
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.wire.client import WireClient
from bridge.pulsar.wire.producer import BatchProducer, Identity
from bridge.settings.pulsar import PulsarSettings
from bridge.settings.secret_file import SecretFile

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_BATCH_BYTES",
    "NO_TEXT",
    "OK",
    "ChunkingProducer",
    "Consumer",
    "Message",
    "MessageId",
    "Producer",
    "PulsarClient",
    "Reader",
    "ReceiveTimeout",
    "key_of",
    "message_id",
    "our_errors",
    "properties_of",
    "received",
]

log = get_logger("pulsar")

T = TypeVar("T")

Consumer: TypeAlias = pulsar.Consumer
Message: TypeAlias = pulsar.Message
MessageId: TypeAlias = pulsar.MessageId
Producer: TypeAlias = pulsar.Producer
Reader: TypeAlias = pulsar.Reader
ReceiveTimeout: TypeAlias = pulsar.Timeout

EARLIEST: Final = pulsar.MessageId.earliest
LATEST: Final = pulsar.MessageId.latest

OK: Final = pulsar.Result.Ok

_PASSWORD_S: Final = 1.0
"""How often the file of a password is read, in seconds."""

NO_TEXT: Final = "its key or one of its properties is not valid UTF-8"

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Far below the broker's limit, because a larger batch is dropped without an error (H1 b)."""


def message_id(partition: int, ledger: int, entry: int, batch_index: int) -> MessageId:
    """Return the id of a message of one partition; ``batch_index`` is -1 if it was not batched."""
    return pulsar.MessageId(partition, ledger, entry, batch_index)


@contextmanager
def our_errors(operation: str) -> Iterator[None]:
    """Convert errors of Pulsar's client to this project's; ``operation`` names the operation and its object."""
    try:
        yield
    except (pulsar.PulsarException, RuntimeError) as e:
        raise _our_error(e, operation) from e


def _our_error(error: pulsar.PulsarException | RuntimeError, operation: str) -> PulsebridgeError:
    if isinstance(error, pulsar.PulsarException):
        return as_our_error(error, operation)
    # The C++ client throws it for a URL that it cannot parse.
    return TerminalError(f"{operation}: {error}")


def received(receive: Callable[[int], Message], wait_ms: int, operation: str) -> Message | None:
    """Return the next message of a consumer or reader, None if none arrives in ``wait_ms``. Raises as ``our_errors``."""
    try:  # not ``our_errors``, which costs as much as the call
        return receive(wait_ms)
    except ReceiveTimeout:
        return None
    except (pulsar.PulsarException, RuntimeError) as e:
        raise _our_error(e, operation) from e


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _authentication(settings: PulsarSettings) -> pulsar.Authentication | None:
    if settings.password is not None:
        return pulsar.AuthenticationBasic(settings.username, settings.password.get_secret_value())
    if settings.oauth2.enabled or settings.token is not None:
        # Called at each connect, and if the broker reports that the last token expires.
        return pulsar.AuthenticationToken(lambda: _token(settings))
    if settings.tls_certificate is not None:
        return pulsar.AuthenticationTLS(str(settings.tls_certificate), str(settings.tls_private_key))
    return None


def _token(settings: PulsarSettings) -> str:
    """Return the current token, an empty one if there is none. The C++ client would end the process at an exception."""
    try:
        return credentials(settings)[1].decode()
    except Exception as e:  # noqa: BLE001 see above
        log.warning(
            "Pulsar's client has no token, so brokers refuse it until it has one. Action: see that the OAuth2 issuer answers",
            why=str(e),
            shown=1,
        )
        return ""


def _client_log(shown: bool) -> object:
    # A Python logger would take the GIL on the C++ threads and fail while the interpreter shuts down.
    if shown:
        return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


class Whole(Protocol):
    """A message for ``ChunkingProducer``. An empty key and an event time of 0 are left out."""

    payload: bytes
    key: str
    properties: dict[str, str]
    event_ms: int


class _Answers:
    """Combines the client's answers to several messages into one receipt."""

    def __init__(self, count: int, receipt: Callable[[Any], None]) -> None:
        self._left = count
        self._receipt = receipt
        self._lock = threading.Lock()

    def answered(self, result: Any, _id: Any) -> None:
        with self._lock:
            left, self._left = self._left, 0 if result != OK else self._left - 1
        if left > 0 and (result != OK or left == 1):
            self._receipt(None if result == OK else result)


class ChunkingProducer:
    """Writes each message as one entry or in chunks, as its size needs: for rare large messages (H5)."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(self, messages: Sequence[Whole], receipt: Callable[[Any], None]) -> None:
        """Write messages, in order. Each has a callback, the only sign if the client refuses one in the middle (H1).

        ``receipt`` is called once, on any thread: with None if all are stored, with the client's Result if one is not.
        It must not raise.
        """
        answers = _Answers(len(messages), receipt)
        for message in messages:
            self._producer.send_async(
                message.payload,
                answers.answered,
                properties=message.properties,
                partition_key=message.key or None,
                event_timestamp=message.event_ms or None,
            )

    def successor(self) -> Identity | None:
        """None: the next producer needs no state of this one."""

    def close(self) -> None:
        """Close it. Raises as ``our_errors``."""
        with our_errors("closing a producer"):
            self._producer.close()


def _pulsar_client(settings: PulsarSettings, url: str) -> pulsar.Client:
    return pulsar.Client(
        url,
        authentication=_authentication(settings),
        operation_timeout_seconds=int(settings.operation_timeout),
        stats_interval_in_seconds=0,
        tls_trust_certs_file_path=_text(settings.tls_ca),
        tls_validate_hostname=settings.tls_validate_hostname,
        # The client reads these files at each connect. With a token or a user, the certificate is for TLS only.
        tls_certificate_file_path=_text(settings.tls_certificate),
        tls_private_key_file_path=_text(settings.tls_private_key),
        connection_timeout_ms=int(settings.connection_timeout * 1000),
        logger=_client_log(settings.client_log),
    )


class PulsarClient:
    """A connection to one Pulsar cluster. Close it, or use it as a context manager.

    Raises TransientError, RefusedError or FencedError from each call, never Pulsar's own exceptions.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        self.settings = settings
        self.renewals = 0
        """How often a new password replaced the client; that closes its producers, readers and consumers."""
        self._authenticated = False  # whether a call of this client has succeeded
        self._closing = threading.Event()
        self._wire = WireClient(settings)
        self._lock = threading.Lock()
        self._clients: dict[str, pulsar.Client] = {}
        """One for each set of hosts that answered, because Pulsar's client keeps those it was given."""
        follow = None
        if isinstance(settings.password, SecretFile):
            args = (credentials(settings),)
            follow = threading.Thread(target=self._follow_password, args=args, name="pulsar-password", daemon=True)
        self._client = self._connect()
        if follow is not None:
            follow.start()

    def _connect(self) -> pulsar.Client:
        settings = self.settings
        url = answering(settings)
        with self._lock, our_errors(f"connecting to {settings.service_url}"):
            if url not in self._clients:
                self._clients[url] = _pulsar_client(settings, url)
            return self._clients[url]

    def _call(self, operation: str, topic: str, action: str, call: Callable[[pulsar.Client], T]) -> T:
        """Return the result of ``call``; if it fails, that of another client if other hosts answer now.

        An error names the host that failed, which Pulsar's client does not.
        """
        several = len(addresses(self.settings.service_url)) > 1
        while True:
            client = self._client
            try:
                with self._errors(operation, topic, action):
                    return call(client)
            except TransientError as e:
                if several:
                    several, self._client = False, self._connect()
                if self._client is client:
                    problem = self._wire.owner_problem(topic)
                    raise TransientError(f"{e.what}; {problem}", remedy=e.remedy) if problem else e from None

    def _follow_password(self, used: tuple[str, bytes]) -> None:
        """Replace the client when the file has a new password that a broker accepts. Runs on its own thread.

        Pulsar's client never reads a password again, unlike a token. What is in flight fails, as at a lost connection.
        """
        while not self._closing.wait(_PASSWORD_S):
            found = credentials(self.settings)
            if found == used:
                continue
            try:
                dial(self.settings, self.settings.connection_timeout)
            except PulsebridgeError as e:
                log.debug("no broker accepts the new password yet", why=e.what)
                continue
            with self._lock:
                if self._closing.is_set():
                    return
                former, self._clients = list(self._clients.values()), {}
            self._client, used = self._connect(), found
            log.info("Pulsar's client uses the new password", user=self.settings.username)
            with suppress(PulsebridgeError):
                _close(former)
            self.renewals += 1

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _errors(self, operation: str, topic: str, action: str) -> Iterator[None]:
        """As ``our_errors``, with Pulsar's reason to refuse us, which its client does not report (see ``dial``).

        The error is Transient if the credentials were accepted before, because a rotation of their file can restore
        access. ``action`` is the right that the call needs on the topic's namespace.
        """
        try:
            if self.settings.oauth2.enabled:
                credentials(self.settings)  # here, because a thread of the client cannot report why it has no token
            with our_errors(operation):
                yield
        except TransientError:
            if not self._authenticated:
                self._explain()
            raise
        except DeniedError as e:
            if self._authenticated and not isinstance(e, ForbiddenError):
                raise TransientError(e.what, remedy=e.remedy) from e
            raise with_grant(e, self.settings, topic, action) from e
        self._authenticated = True

    def _explain(self) -> None:
        try:
            dial(self.settings, self.settings.connection_timeout)
        except TransientError as e:
            log.debug("the direct connection to Pulsar failed", why=e.what)

    def partitions(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions; the topic's own name if it is not partitioned.

        For a missing topic: no name, or its own name if Pulsar creates topics automatically.
        """

        def look_up(client: pulsar.Client) -> list[str]:
            try:
                return list(client.get_topic_partitions(topic))
            except pulsar.TopicNotFound:
                return []

        return self._call(f"looking up the partitions of {topic}", topic, "produce", look_up)

    def partitioned(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions; none if it is not partitioned or does not exist."""
        found = self.partitions(topic)
        return [] if found == [topic] else found

    def producer(
        self,
        topic: str,
        *,
        batching: bool = True,
        max_pending: int = 10_000,
        chunking: bool = False,
        exclusive: bool = False,
        fencing: bool = False,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Producer:
        """Make a producer that waits for Pulsar without a limit (send timeout 0).

        ``max_pending`` must exceed the number of messages that its caller has in flight. A full queue refuses
        messages that were sent without a callback, and the caller gets no error (H1 a). ``exclusive`` asks for
        exclusive access, the base of ownership (H23): FencedError if another producer has it. It does not queue for
        it, because Pulsar would also grant it to a frozen process. ``fencing`` takes it from the other producer. Raises
        TransientError, RefusedError or FencedError.
        """
        modes = pulsar.ProducerAccessMode
        access = modes.ExclusiveWithFencing if fencing else modes.Exclusive if exclusive else modes.Shared
        return self._call(
            f"making a producer on {topic}",
            topic,
            "produce",
            lambda client: client.create_producer(
                topic,
                producer_name=name,
                send_timeout_millis=0,
                max_pending_messages=max_pending,
                block_if_queue_full=False,
                batching_enabled=batching,
                batching_max_messages=1000,
                batching_max_allowed_size_in_bytes=MAX_BATCH_BYTES,
                batching_max_publish_delay_ms=2,
                chunking_enabled=chunking,
                access_mode=access,
                properties=dict(properties or {}),
            ),
        )

    def chunking_producer(self, topic: str, *, max_pending: int) -> ChunkingProducer:
        """Make a producer of large messages, with a queue of ``max_pending``. Raises as ``producer`` does."""
        return ChunkingProducer(self.producer(topic, batching=False, chunking=True, max_pending=max_pending))

    def batch_producer(self, partition: str, identity: Identity | None = None) -> BatchProducer:
        """Make a producer of ``bridge.pulsar.wire`` on one partition: many small messages at low cost.

        ``identity`` is the result of its predecessor's ``successor``. Raises TransientError, RefusedError or FencedError.
        """
        with self._errors(f"making a producer on {partition}", partition, "produce"):
            return self._wire.producer(partition, identity)

    def reader(
        self,
        topic: str,
        start: MessageId | Any,
        *,
        queue: int = 1000,
        inclusive: bool = True,
        compacted: bool = False,
        name: str | None = None,
    ) -> Reader:
        """Make a reader of one partition from ``start`` on. Raises TransientError or RefusedError.

        ``compacted`` skips messages that a later one of the same key has replaced, as far as compaction has run.
        """
        return self._call(
            f"reading {topic}",
            topic,
            "consume",
            lambda client: client.create_reader(
                topic,
                start,
                receiver_queue_size=queue,
                reader_name=name,
                start_message_id_inclusive=inclusive,
                is_read_compacted=compacted,
            ),
        )

    def consumer(self, topic: str, subscription: str, *, queue: int = 1000) -> Consumer:
        """Subscribe durably and exclusively to one topic or partition. A new subscription begins at the first message.

        Raises FencedError if the subscription already has a consumer, else TransientError or RefusedError.
        """
        return self._call(
            f"subscribing to {topic} as {subscription}",
            topic,
            "consume",
            lambda client: client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.Exclusive,
                receiver_queue_size=queue,
                initial_position=pulsar.InitialPosition.Earliest,
            ),
        )

    def has_owner(self, partition: str) -> bool:
        """Return whether the broker answers that owns the partition. Blocks for ``pulsar.operation_timeout`` at most."""
        return not self._wire.owner_problem(partition)

    def close(self) -> None:
        """Close the connection and all that was made from it. Queued messages that are not flushed are lost (H9)."""
        self._closing.set()
        self._wire.close()
        with self._lock:  # no other client follows
            clients = list(self._clients.values())
        _close(clients)


def _close(clients: Sequence[pulsar.Client]) -> None:
    with our_errors("closing the connection"), ExitStack() as closing:
        for client in clients:
            closing.callback(client.close)


def key_of(message: Message) -> str | None:
    """Return the key of a message, None if it is not valid UTF-8: Pulsar's client cannot return that."""
    try:
        return str(message.partition_key())
    except UnicodeDecodeError:
        return None


def properties_of(message: Message) -> dict[str, str] | None:
    """Return the properties of a message, None if one is not valid UTF-8."""
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        return None

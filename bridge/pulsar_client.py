"""The one module that imports Pulsar's client: connections, producers, readers and consumers, and its errors as ours.

It decides how a client is configured so that nothing is refused without a voice (H1); what is written and when
it is acknowledged is decided by its callers. A client is made inside the process that uses it, never before a
fork: its C++ threads do not survive one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import _pulsar
import pulsar
import structlog

from bridge.errors import (
    DeniedError,
    FencedError,
    PulsebridgeError,
    RefusedError,
    TerminalError,
    TerminatedError,
    TransientError,
)
from bridge.pulsar_dial import dial, grant_remedy, whom
from bridge.settings.pulsar import PulsarSettings

__all__ = [
    "EARLIEST",
    "MAX_BATCH_BYTES",
    "OK",
    "QUEUE_FULL",
    "Consumer",
    "Message",
    "MessageId",
    "Producer",
    "PulsarClient",
    "Reader",
    "ReceiveTimeout",
    "as_our_error",
    "names_a_message",
    "our_errors",
    "send_all",
]

log = structlog.get_logger("pulsar")

Consumer: TypeAlias = pulsar.Consumer
Message: TypeAlias = pulsar.Message
MessageId: TypeAlias = pulsar.MessageId
Producer: TypeAlias = pulsar.Producer
Reader: TypeAlias = pulsar.Reader
ReceiveTimeout: TypeAlias = pulsar.Timeout

EARLIEST: Final = pulsar.MessageId.earliest

OK: Final = pulsar.Result.Ok
QUEUE_FULL: Final = pulsar.Result.ProducerQueueIsFull

MAX_BATCH_BYTES: Final = 1024 * 1024
"""A batch above the broker's limit is dropped whole without an error (H1 b), so batches stay far below it."""

_REFUSED = (
    "InvalidTopicName",
    "MessageTooBig",
    "IncompatibleSchema",
    "NotAllowedError",
    "InvalidConfiguration",
    "InvalidUrl",
    "TopicNotFound",
)
_FENCED = ("ProducerFenced", "ProducerBusy", "ConsumerBusy")


_NOT_LET_IN: Final = "Pulsar does not accept our credentials"
_NOT_ALLOWED: Final = "Pulsar does not allow it"


def as_our_error(error: object, doing: str) -> PulsebridgeError:
    """Return the error of ours that an exception or a Result of Pulsar's client stands for."""
    name = getattr(error, "name", None) or type(error).__name__
    if name in _FENCED:
        return FencedError(f"{doing}: Pulsar answered {name}: another process holds it")
    if name == "AuthenticationError":
        return DeniedError(
            f"{doing}: {_NOT_LET_IN}",
            remedy="check pulsar.token (or token_file) or pulsar.tls_certificate: another cluster's, or expired?",
        )
    if name == "AuthorizationError":
        return DeniedError(
            f"{doing}: {_NOT_ALLOWED}",
            remedy="grant it to the role of pulsar.token or pulsar.tls_certificate (pulsar-admin namespaces "
            "grant-permission); `pulsebridge provision --dry-run` prints what each tier needs",
        )
    if name == "TopicTerminated":
        return TerminatedError(f"{doing}: the topic was terminated")
    if name == "ProducerBlockedQuotaExceededError":
        return TransientError(
            f"{doing}: its backlog quota is used up",
            remedy="let its subscriptions read on, or raise it (pulsar-admin namespaces set-backlog-quota)",
        )
    if name in _REFUSED:
        return RefusedError(f"{doing}: Pulsar answered {name}")
    return TransientError(f"{doing}: Pulsar answered {name}")


def names_a_message(error: object) -> bool:
    """Whether an error of Pulsar's client is about the message that was sent, and not about its topic or the server."""
    return (getattr(error, "name", None) or type(error).__name__) in ("MessageTooBig", "IncompatibleSchema")


@contextmanager
def our_errors(doing: str) -> Iterator[None]:
    """Turn what Pulsar's client raises into this project's errors; ``doing`` names the act and its object."""
    try:
        yield
    except pulsar.PulsarException as e:
        raise as_our_error(e, doing) from e
    except RuntimeError as e:  # what the C++ client throws for an URL that it cannot parse
        raise TerminalError(f"{doing}: {e}") from e


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _client_log(shown: bool) -> object:
    # A Python logger would take the GIL on the C++ threads and fail while the interpreter ends.
    if shown:
        return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


class Outgoing(Protocol):
    """A message for ``send_all``. An empty key and an event time of 0 are left out."""

    payload: bytes
    key: str
    properties: dict[str, str]
    event_ms: int


def send_all(
    producer: Producer, messages: Sequence[Outgoing], receipt: Callable[[Any, Any], None] | None
) -> None:
    """Give messages to a producer, in order; the last one asks for a receipt, which vouches for all of them (H1).

    ``receipt`` is called with result and message id on a thread of Pulsar's and must not raise. This does what
    ``Producer.send_async`` does for each message, without its type checks, and names all properties in one call:
    half the cost.
    """
    send, new = producer._producer.send_async, _pulsar.MessageBuilder
    left = len(messages)
    for message in messages:
        left -= 1
        builder = new()
        builder.content(message.payload)
        if message.properties:
            builder.properties(message.properties)
        if message.key:
            builder.partition_key(message.key)
        if message.event_ms:
            builder.event_timestamp(message.event_ms)
        send(builder.build(), None if left else receipt)


class PulsarClient:
    """A connection to one Pulsar cluster. Close it, or use it as a context manager.

    Raises TransientError, RefusedError or FencedError from each call, never Pulsar's own exceptions.
    """

    def __init__(self, settings: PulsarSettings, *, io_threads: int = 1) -> None:
        self.settings = settings
        self._let_in = False  # whether Pulsar has ever answered this client
        auth = None
        if settings.token is not None:
            # Asked for at each connect, and when the broker says that the last one expires.
            auth = pulsar.AuthenticationToken(settings.token.get_secret_value)
        elif settings.tls_certificate is not None:
            auth = pulsar.AuthenticationTLS(str(settings.tls_certificate), str(settings.tls_private_key))
        with our_errors(f"connecting to {settings.service_url}"):
            self._client = pulsar.Client(
                settings.service_url,
                authentication=auth,
                operation_timeout_seconds=int(settings.operation_timeout_s),
                io_threads=io_threads,
                stats_interval_in_seconds=0,
                tls_trust_certs_file_path=_text(settings.tls_ca),
                tls_validate_hostname=settings.tls_validate_hostname,
                # The client reads these files at each connect. Beside a token the certificate is the transport's.
                tls_certificate_file_path=_text(settings.tls_certificate),
                tls_private_key_file_path=_text(settings.tls_private_key),
                connection_timeout_ms=int(settings.connection_timeout_s * 1000),
                logger=_client_log(settings.client_log),
            )

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _errors(self, doing: str, topic: str, action: str) -> Iterator[None]:
        """As ``our_errors``, and say why Pulsar does not let us in, which its client does not (see ``pulsar_dial``).

        Credentials that were good once may be so again when their file is rotated: then the error is Transient.
        ``action`` is the right that the call needs on the topic's namespace.
        """
        try:
            with our_errors(doing):
                yield
        except TransientError:
            if not self._let_in:
                self._explain()
            raise
        except DeniedError as e:
            if self._let_in and e.what.endswith(_NOT_LET_IN):
                raise TransientError(e.what, remedy=e.remedy) from e
            if e.what.endswith(_NOT_ALLOWED):
                raise DeniedError(
                    f"{e.what} to {whom(self.settings)}", remedy=grant_remedy(self.settings, topic, action)
                ) from e
            raise
        self._let_in = True

    def _explain(self) -> None:
        try:
            dial(self.settings, self.settings.connection_timeout_s)
        except TransientError as e:
            log.debug("dialling Pulsar by hand", why=e.what)

    def partitions(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions; the topic's own name when it is not partitioned.

        A topic that is not there has none, or its own name where Pulsar makes topics by itself.
        """
        with self._errors(f"looking up the partitions of {topic}", topic, "produce"):
            try:
                return list(self._client.get_topic_partitions(topic))
            except pulsar.TopicNotFound:
                return []

    def producer(
        self,
        topic: str,
        *,
        batching: bool = True,
        max_pending: int = 10_000,
        max_delay_ms: int = 2,
        chunking: bool = False,
        exclusive: bool = False,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Producer:
        """Make a producer that waits for Pulsar as long as it takes (send timeout 0).

        ``max_pending`` must be above all that its caller has in flight: a full queue refuses messages that were
        sent without a callback, and nobody is told (H1 a). ``exclusive`` waits for exclusive access with
        fencing, on which ownership rests (H23). Raises TransientError, RefusedError or FencedError.
        """
        access = pulsar.ProducerAccessMode.WaitForExclusive if exclusive else pulsar.ProducerAccessMode.Shared
        with self._errors(f"making a producer on {topic}", topic, "produce"):
            return self._client.create_producer(
                topic,
                producer_name=name,
                send_timeout_millis=0,
                max_pending_messages=max_pending,
                block_if_queue_full=False,
                batching_enabled=batching,
                batching_max_messages=1000,
                batching_max_allowed_size_in_bytes=MAX_BATCH_BYTES,
                batching_max_publish_delay_ms=max_delay_ms,
                chunking_enabled=chunking,
                access_mode=access,
                properties=dict(properties or {}),
            )

    def reader(
        self,
        topic: str,
        start: MessageId | Any,
        *,
        queue: int = 1000,
        inclusive: bool = True,
        compacted: bool = False,
    ) -> Reader:
        """Make a reader of one partition from ``start`` on; ``compacted`` skips what a later message of the same
        key has replaced, as far as compaction has run. Raises TransientError or RefusedError.
        """
        with self._errors(f"reading {topic}", topic, "consume"):
            return self._client.create_reader(
                topic,
                start,
                receiver_queue_size=queue,
                start_message_id_inclusive=inclusive,
                is_read_compacted=compacted,
            )

    def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        kind: str = "Exclusive",
        queue: int = 1000,
        from_earliest: bool = True,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Consumer:
        """Subscribe durably to one topic or partition. ``kind`` is a name of Pulsar's ConsumerType.

        Raises FencedError when an exclusive subscription has a consumer already, else Transient or RefusedError.
        """
        start = pulsar.InitialPosition.Earliest if from_earliest else pulsar.InitialPosition.Latest
        with self._errors(f"subscribing to {topic} as {subscription}", topic, "consume"):
            return self._client.subscribe(
                topic,
                subscription,
                consumer_type=getattr(pulsar.ConsumerType, kind),
                consumer_name=name,
                receiver_queue_size=queue,
                initial_position=start,
                properties=dict(properties or {}),
            )

    def close(self) -> None:
        """Close the connection and all that was made from it. What is queued and not flushed is lost (H9)."""
        with our_errors("closing the connection"):
            self._client.close()

"""The commands of Pulsar's binary protocol that producers and readers send and receive.

Numbers and fields are those of PulsarApi.proto. A frame is its size, the size of the command, the command, and for
SEND the output of ``batches``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bridge.pulsar.wire.protobuf import fields, number, numbers_of, text

__all__ = [
    "MAX_FRAME",
    "PING",
    "PONG",
    "REQUEST_FIELD",
    "Answer",
    "Frames",
    "Kind",
    "Redirect",
    "WireError",
    "auth_response",
    "close",
    "connect",
    "flow",
    "frame",
    "lookup",
    "parse",
    "producer",
    "redirect_of",
    "subscribe_reader",
]

PROTOCOL_VERSION: Final = 19
"""Of Pulsar 2.10. Later brokers send nothing that needs a newer version here."""

MAX_FRAME: Final = 8 << 20
"""No answer to a producer comes near this size, in bytes. A larger frame is not Pulsar's protocol."""


class Kind(IntEnum):
    """The commands, by their number, which is also the number of their field."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    FLOW = 11
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37


REQUEST_FIELD: Final[dict[int, int]] = {
    Kind.PRODUCER_SUCCESS: 1,
    Kind.SUCCESS: 1,
    Kind.ERROR: 1,
    Kind.LOOKUP_RESPONSE: 4,
}
"""The answers to requests, and the field with the request's number."""

_MINUS_ONE: Final = (1 << 64) - 1
"""As protobuf writes it."""
# ServerError in PulsarApi.proto by the names of the C++ client, so that both clients report the same.
_ERRORS: Final = {
    1: "BrokerMetadataError",
    2: "BrokerPersistenceError",
    3: "AuthenticationError",
    4: "AuthorizationError",
    5: "ConsumerBusy",
    6: "ServiceUnitNotReady",
    7: "ProducerBlockedQuotaExceededError",
    8: "ProducerBlockedQuotaExceededException",
    9: "ChecksumError",
    10: "UnsupportedVersionError",
    11: "TopicNotFound",
    14: "TooManyLookupRequestException",
    15: "TopicTerminated",
    16: "ProducerBusy",
    17: "InvalidTopicName",
    18: "IncompatibleSchema",
    22: "NotAllowedError",
    25: "ProducerFenced",
}


@dataclass(frozen=True)
class WireError:
    """The error of a broker, or of a connection, instead of the expected answer."""

    name: str
    """As in Pulsar's own client; ``bridge.pulsar.errors`` interprets it."""
    text: str = ""


class Answer(NamedTuple):
    """A command of the broker: its kind and its fields."""

    kind: int
    fields: dict[int, int | bytes]
    entry: bytes = b""
    """The bytes after the command of a MESSAGE: the entry, as it was sent."""

    def number(self, field: int, default: int = 0) -> int:
        """Return a field that is a number."""
        value = self.fields.get(field)
        return value if isinstance(value, int) else default

    def text(self, field: int) -> str:
        """Return a text field on one line, cut to a length for messages to users."""
        value = self.fields.get(field)
        return " ".join(value.decode("utf-8", "replace").split())[:300] if isinstance(value, bytes) else ""

    def names_an_entry(self, field: int) -> bool:
        """Whether the message id in this field is valid; the broker sends -1:-1 for a dropped duplicate."""
        found = self.fields.get(field)
        return not isinstance(found, bytes) or numbers_of(found).get(1) != _MINUS_ONE

    def error(self, code: int, message: int) -> WireError:
        """Return the error whose code and message are in these fields."""
        return WireError(_ERRORS.get(self.number(code), "UnknownError"), self.text(message))


@dataclass(frozen=True)
class Redirect:
    """The broker that serves a topic, as far as the asked one knows."""

    url: str
    final: bool
    """Whether it owns the topic; otherwise repeat the lookup at it."""
    authoritative: bool
    proxied: bool
    """Whether the owner is reached through the asked address, which is a proxy."""


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """Return the frame of a command."""
    command = number(1, kind) + text(kind, body)
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


PING: Final = frame(Kind.PING)
PONG: Final = frame(Kind.PONG)


def connect(method: str, data: bytes, *, proxy_to: str = "") -> bytes:
    """Return CONNECT. ``method`` is that of the credentials ``data``: token, basic, tls, or empty for none."""
    body = text(1, b"pulsebridge")
    if data:
        body += text(3, data)
    body += number(4, PROTOCOL_VERSION)
    if method:
        body += text(5, method.encode())
    if proxy_to:
        body += text(6, proxy_to.encode())
    # supports_auth_refresh: the broker asks for a new token before it closes the connection.
    return frame(Kind.CONNECT, body + text(10, number(1, 1)))


def auth_response(method: str, data: bytes) -> bytes:
    """Return the answer to AUTH_CHALLENGE."""
    given = text(1, method.encode()) + text(2, data)
    body = text(1, b"pulsebridge") + text(2, given) + number(3, PROTOCOL_VERSION)
    return frame(Kind.AUTH_RESPONSE, body)


def lookup(topic: str, request: int, *, authoritative: bool) -> bytes:
    """Return the request for the broker that serves a topic."""
    return frame(Kind.LOOKUP, text(1, topic.encode()) + number(2, request) + number(3, authoritative))


def producer(topic: str, number_: int, request: int, *, name: str = "", epoch: int = 0) -> bytes:
    """Return the request for a producer; without a name the broker chooses a unique one.

    ``epoch`` counts the producers of one name.
    """
    body = text(1, topic.encode()) + number(2, number_) + number(3, request)
    if name:
        body += text(4, name.encode())
    return frame(Kind.PRODUCER, body + number(8, epoch) + number(9, 0))


def close(kind: Kind, number_: int, request: int) -> bytes:
    """Return the request to close a producer (``kind`` is CLOSE_PRODUCER) or a reader (CLOSE_CONSUMER)."""
    return frame(kind, number(1, number_) + number(2, request))


def subscribe_reader(topic: str, number_: int, request: int, *, name: str, ledger: int, entry: int) -> bytes:
    """Return the request to read a partition from an entry on, with a non-durable subscription.

    It does not create a missing topic.
    """
    start = text(9, number(1, ledger) + number(2, entry))
    body = text(1, topic.encode()) + text(2, name.encode()) + number(3, 0) + number(4, number_)
    return frame(Kind.SUBSCRIBE, body + number(5, request) + number(8, 0) + start + number(15, 0))


def flow(number_: int, messages: int) -> bytes:
    """Return the permission to send so many further messages."""
    return frame(Kind.FLOW, number(1, number_) + number(2, messages))


def parse(command: bytes, entry: bytes = b"") -> Answer:
    """Return the decoded command of a broker."""
    outer = dict(fields(command))
    kind = outer.get(1)
    if not isinstance(kind, int):
        return Answer(0, {})
    body = outer.get(kind)
    return Answer(kind, dict(fields(body)) if isinstance(body, bytes) else {}, entry)


def redirect_of(answer: Answer, *, tls: bool) -> Redirect | WireError:
    """Return the result in a LOOKUP_RESPONSE."""
    response = answer.number(3, 2)
    if response == 2:
        return answer.error(6, 7)
    url = answer.text(2 if tls else 1)
    if not _names_a_broker(url):
        return WireError("ServiceUnitNotReady", f"the lookup names no broker for {'TLS' if tls else 'plain'}")
    return Redirect(url, response == 1, bool(answer.number(5)), bool(answer.number(8)))


def _names_a_broker(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:  # not a valid IPv6 address or port
        return False
    return usable and parts.scheme in ("pulsar", "pulsar+ssl") and bool(parts.hostname) and "," not in parts.netloc


class Frames:
    """Splits the broker's bytes into commands; ``most`` bounds a frame, in bytes."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        self._data = bytearray()
        self._most = most

    def feed(self, data: bytes) -> list[Answer]:
        """Return the commands that are complete now. Raises ValueError for bytes that are not Pulsar's protocol."""
        buffer = self._data
        buffer += data
        found, at = [], 0
        # A slice of the buffer itself would be a copy, and bytes() of it another.
        with memoryview(buffer) as view:
            while len(buffer) - at >= 8:
                total = int.from_bytes(buffer[at : at + 4], "big")
                if not 4 <= total <= self._most:
                    raise ValueError(f"a frame of {total} bytes")
                if len(buffer) - at - 4 < total:
                    break
                size = int.from_bytes(buffer[at + 4 : at + 8], "big")
                if size > total - 4:
                    raise ValueError(f"a command of {size} bytes in a frame of {total}")
                command = at + 8 + size
                stop = at + 4 + total
                found.append(parse(bytes(view[at + 8 : command]), bytes(view[command:stop])))
                at = stop
        del buffer[:at]
        return found

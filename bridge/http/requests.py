"""Decodes an HTTP request: bytes in, a message out.

The model is AWS IoT's publish over HTTPS, with the same path and query parameters. Its ``x-amz-mqtt5-…`` headers are
accepted as well as Pulsebridge's own (``mqtt-…``), so that a device made for it needs only another address.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from bridge.mqtt.types import Message, PublishProperties

__all__ = ["DEVICES_PREFIX", "PREFIX", "InvalidRequestError", "message_of", "query_of", "text_of"]

PREFIX: Final = b"/topics/"
DEVICES_PREFIX: Final = b"/devices/"

_MAX_TEXT: Final = 65_535
"""Longest string and binary data of MQTT, in bytes (MQTT 5, 1.5.4 and 1.5.6)."""

_QUERY: Final = ("qos", "contentType", "responseTopic", "messageExpiry", "retain")
_FORMATS: Final = {"0": 0, "1": 1, "UNSPECIFIED_BYTES": 0, "UTF8_DATA": 1}


class InvalidRequestError(Exception):
    """Raised if a request publishes nothing; the client reads its text."""


def message_of(raw_path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Message:
    """Return the message that a ``POST`` to ``raw_path`` publishes, without its payload. Raises InvalidRequestError.

    ``raw_path`` is unchanged; this function percent-decodes its topic once. ``headers`` have lower-case names.
    """
    topic = text_of(unquote_to_bytes(raw_path.removeprefix(PREFIX)), "the topic")
    if not topic:
        raise InvalidRequestError("the topic is empty")
    if "+" in topic or "#" in topic:
        raise InvalidRequestError("the topic must have no wildcard, '+' or '#'")
    if topic.startswith("$"):
        raise InvalidRequestError("the topic must not begin with '$': such topics are the broker's own")
    asked = query_of(query, _QUERY)
    properties = _properties(asked, headers)
    if asked.get("retain", "false") != "false":
        raise InvalidRequestError("retain must be false: Pulsebridge keeps no retained messages, the MQTT broker does")
    qos = asked.get("qos", "1")
    if qos not in ("0", "1"):
        raise InvalidRequestError(f"qos must be 0 or 1, not {qos[:20]!r}")
    return Message(topic, b"", int(qos), False, False, 0, None if properties == PublishProperties() else properties)


def text_of(raw: bytes, what: str, limit: int = _MAX_TEXT) -> str:
    """Return a text of a request. Raises InvalidRequestError if MQTT could not carry it."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{what} is not UTF-8") from None
    if "\0" in text:
        raise InvalidRequestError(f"{what} contains U+0000")
    if len(raw) > limit:
        raise InvalidRequestError(f"{what} has {len(raw)} bytes, MQTT allows {_MAX_TEXT}")
    return text


def query_of(query: bytes, names: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a query. Raises InvalidRequestError for one that is not among ``names``, or comes twice."""
    found: dict[str, str] = {}
    for part in filter(None, query.split(b"&")):
        name, value = (
            text_of(unquote_to_bytes(p.replace(b"+", b" ")), "the query") for p in (part + b"=").split(b"=", 2)[:2]
        )
        if name not in names:
            near = difflib.get_close_matches(name[:50], names, n=1)
            raise InvalidRequestError(
                f"unknown query parameter {name[:50]!r}; " + (f"did you mean {near[0]}?" if near else ", ".join(names))
            )
        if name in found:
            raise InvalidRequestError(f"the query parameter {name} is given twice")
        found[name] = value
    return found


def _properties(asked: dict[str, str], headers: Iterable[tuple[bytes, bytes]]) -> PublishProperties:
    single: dict[str, str] = {}
    user: list[tuple[str, str]] = []
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1")
        if name == "mqtt-user-property":
            user.append(_pair(raw))
        elif name == "x-amz-mqtt5-user-properties":
            user += _aws_pairs(raw)
        elif name == "content-type" or name.startswith(("mqtt-", "x-amz-mqtt5-")):
            name = name.removeprefix("x-amz-mqtt5-").removeprefix("mqtt-")
            if name not in _FIELDS:
                raise InvalidRequestError(f"unknown header {raw_name.decode('latin-1')[:80]!r}")
            if name in single:
                raise InvalidRequestError(f"the header {raw_name.decode('latin-1')} is given twice")
            # Correlation data is bounded once it is decoded.
            single[name] = text_of(
                raw, f"the header {name}", 2 * _MAX_TEXT if name == "correlation-data" else _MAX_TEXT
            )
    single |= {_PARAMETERS[name]: text for name, text in asked.items() if name in _PARAMETERS}
    fields: dict[str, Any] = {field: read(single[name]) for name, (field, read) in _FIELDS.items() if name in single}
    return PublishProperties(user=tuple(user), **fields)


def _pair(raw: bytes) -> tuple[str, str]:
    name, equals, value = raw.partition(b"=")
    if not equals:
        raise InvalidRequestError("mqtt-user-property is name=value, both percent-encoded where they need to be")
    what = "mqtt-user-property"
    return text_of(unquote_to_bytes(name), what), text_of(unquote_to_bytes(value), what)


def _aws_pairs(raw: bytes) -> Iterator[tuple[str, str]]:
    what = "x-amz-mqtt5-user-properties"
    try:
        members = json.loads(base64.b64decode(raw, validate=True))
        pairs = [pair for member in members for pair in member.items()]
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise InvalidRequestError(f"{what} is base64 of a JSON array of objects") from None
    for pair in pairs:
        if not all(isinstance(text, str) for text in pair):
            raise InvalidRequestError(f"{what} has a value that is not a string")
        # JSON can contain lone surrogates, which are not UTF-8 then.
        name, value = (text_of(text.encode("utf-8", "surrogatepass"), what) for text in pair)
        yield name, value


def _response_topic(text: str) -> str:
    if not text or "+" in text or "#" in text:
        raise InvalidRequestError("the response topic is empty or has a wildcard")
    return text


def _correlation(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidRequestError("the correlation data is not base64") from None
    if len(data) > _MAX_TEXT:
        raise InvalidRequestError(f"the correlation data has {len(data)} bytes, MQTT allows {_MAX_TEXT}")
    return data


def _format(text: str) -> int:
    if text not in _FORMATS:
        raise InvalidRequestError(f"the payload format is one of {', '.join(_FORMATS)}")
    return _FORMATS[text]


def _expiry(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << 32):
        raise InvalidRequestError("the message expiry is a number of seconds below 2^32")
    return int(text)


_FIELDS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "content-type": ("content_type", str),
    "response-topic": ("response_topic", _response_topic),
    "correlation-data": ("correlation_data", _correlation),
    "payload-format-indicator": ("payload_format", _format),
    "payload-format": ("payload_format", _format),
    "message-expiry": ("expiry_s", _expiry),
}
"""Headers, without the prefix: the field of the message's properties, and its reader. The later of two applies."""

_PARAMETERS: Final = {
    "contentType": "content-type",
    "responseTopic": "response-topic",
    "messageExpiry": "message-expiry",
}
"""Parameters of the query that apply instead of a header."""

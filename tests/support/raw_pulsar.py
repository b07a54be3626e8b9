"""Messages that Pulsar's Python client cannot write, stored by the bare protocol: keys and properties as bytes, text that is no UTF-8."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from bridge.pulsar.admin import PulsarAdmin
from bridge.pulsar.wire.protobuf import fields as fields_of
from bridge.pulsar.wire.protobuf import number, text
from bridge.settings.pulsar import PulsarSettings

__all__ = ["store_raw"]

_CONNECT, _CONNECTED, _PRODUCER, _SEND, _RECEIPT, _PRODUCER_SUCCESS = 2, 3, 5, 6, 7, 17


def store_raw(
    settings: PulsarSettings,
    partition: str,
    payload: bytes,
    *,
    key: bytes,
    as_base64: bool = False,
    properties: Mapping[bytes, bytes] | None = None,
    metadata_fields: bytes = b"",
) -> None:
    """Store one entry, an unbatched message unless the further ``metadata_fields`` say otherwise.

    ``as_base64`` sets the flag with which Java marks keys that were given as bytes.
    """
    with PulsarAdmin(settings) as admin:
        admin.owner(partition)  # loads the topic
    parts = urlsplit(settings.service_url)
    with socket.create_connection((parts.hostname or "", parts.port or 6650), timeout=30) as link:
        _ask(link, _CONNECT, text(1, b"raw") + number(4, 19), _CONNECTED)
        _ask(link, _PRODUCER, text(1, partition.encode()) + number(2, 1) + number(3, 1), _PRODUCER_SUCCESS)
        metadata = text(1, b"raw") + number(2, 0) + number(3, int(time.time() * 1000)) + text(6, key)
        for name, value in (properties or {}).items():
            metadata += text(4, text(1, name) + text(2, value))
        if as_base64:
            metadata += number(17, 1)
        metadata += metadata_fields
        body = struct.pack("!I", len(metadata)) + metadata + payload
        _ask(link, _SEND, number(1, 1) + number(2, 0) + number(3, 1), _RECEIPT, body)


def _ask(link: socket.socket, kind: int, fields: bytes, wanted: int, body: bytes = b"") -> None:
    command = number(1, kind) + text(kind, fields)
    link.sendall(struct.pack("!II", len(command) + 4 + len(body), len(command)) + command + body)
    size = struct.unpack("!II", link.recv(8, socket.MSG_WAITALL))[1]
    answer = dict(fields_of(link.recv(size, socket.MSG_WAITALL)))
    assert answer.get(1) == wanted, answer

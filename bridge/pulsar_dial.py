"""Dials Pulsar's binary port once, by hand, to say what Pulsar's own client does not: why it is not let in.

The C++ client tries again until its time is over and then says Timeout, whatever the broker answered. Here one
connection does what the protocol begins with: TLS, CONNECT, and the broker's answer CONNECTED or ERROR with its
reason. It asks for no topic, so that it needs no right but to authenticate.
"""

from __future__ import annotations

import shlex
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from bridge.errors import ConfigError, DeniedError, RefusedError, TransientError
from bridge.settings.pulsar import PulsarSettings
from bridge.tls import client_context, handshake_problem
from bridge.tokens import expiry_of, role_of

__all__ = ["addresses", "credentials_remedy", "dial", "grant_remedy", "whom"]

_CONNECT: Final = 2
_CONNECTED: Final = 3
_ERROR: Final = 14
_AUTHENTICATION_ERROR: Final = 3
_PROTOCOL_VERSION: Final = 19
_MAX_ANSWER: Final = 1 << 20


def dial(settings: PulsarSettings, timeout_s: float) -> str:
    """Connect to the first address that answers and return what it calls itself.

    Raises DeniedError when TLS or the credentials are not accepted, RefusedError when something else listens there,
    TransientError when nothing does.
    """
    away: TransientError | None = None
    for host, port in addresses(settings.service_url):
        try:
            return _dial(settings, host, port, timeout_s)
        except TransientError as e:
            away = e
    assert away is not None
    raise away


def addresses(service_url: str) -> list[tuple[str, int]]:
    """Return host and port of each broker of ``pulsar://a:6650,b:6650``. Raises ConfigError for anything else."""
    parts = urlsplit(service_url)
    usual = {"pulsar": 6650, "pulsar+ssl": 6651}.get(parts.scheme)
    found = []
    for one in parts.netloc.split(","):
        try:
            address = urlsplit(f"//{one}")
            if address.hostname and usual is not None:
                found.append((address.hostname, address.port or usual))
        except ValueError:
            continue
    if not found:
        raise ConfigError(
            f"pulsar.service_url: {service_url!r} names no broker",
            remedy="give pulsar://host:6650 or pulsar+ssl://host:6651; several with commas",
        )
    return found


def credentials_remedy(settings: PulsarSettings) -> str:
    """Return what to look at when our credentials are not accepted."""
    if settings.token is None and settings.tls_certificate is None:
        return "it wants credentials: set pulsar.token (or token_file), or a client certificate"
    expiry = None if settings.token is None else expiry_of(settings.token.get_secret_value())
    if expiry is not None and expiry <= time.time():
        return f"pulsar.token (or token_file) expired {time.time() - expiry:.0f} s ago: give a new one"
    if settings.token is not None:
        return "check pulsar.token (or token_file): is it this cluster's, and signed with its present key?"
    return "check pulsar.tls_certificate: does the cluster take certificates, and trust who signed it?"


def whom(settings: PulsarSettings) -> str:
    """Return whom Pulsar knows us as, for the sentence that asks for rights. A token's subject is no secret."""
    role = None if settings.token is None else role_of(settings.token.get_secret_value())
    return "this role" if role is None else f"the role {role!r}"


def grant_remedy(settings: PulsarSettings, topic: str, *actions: str) -> str:
    """Return the command that grants us ``actions`` on the namespace of a topic, for an operator."""
    role = None if settings.token is None else role_of(settings.token.get_secret_value())
    namespace = "/".join(topic.partition("://")[2].split("/")[:2])
    command = ("namespaces", "grant-permission", namespace, "--role", role or "ROLE", "--actions")
    return (
        f"let an operator run: {shlex.join(('pulsar-admin', *command, ','.join(actions)))} (a grant replaces the one "
        "before: name what the role has already)"
    )


def _dial(settings: PulsarSettings, host: str, port: int, timeout_s: float) -> str:
    where = f"Pulsar at {host}:{port}"
    secure = settings.service_url.startswith("pulsar+ssl:")
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as raw:
            if not secure:
                return _talk(raw, settings, where)
            context = client_context(settings, "pulsar", check_hostname=settings.tls_validate_hostname)
            with context.wrap_socket(raw, server_hostname=host) as link:
                return _talk(link, settings, where)
    except ssl.SSLEOFError as e:
        raise TransientError(
            f"{where} closed the connection in the midst of TLS; is that its TLS port?"
        ) from e
    except OSError as e:
        problem = handshake_problem(e, settings, "pulsar", where)
        if problem is not None:
            raise problem from e
        if isinstance(e, ssl.SSLError):
            raise RefusedError(f"{where}: {e}", remedy="check pulsar.service_url and pulsar.tls_ca") from e
        raise TransientError(f"{where} cannot be reached: {e}") from e


def _talk(link: socket.socket, settings: PulsarSettings, where: str) -> str:
    link.sendall(_connect_frame(settings))
    head = _exactly(link, 8)
    if not head:
        hint = "" if isinstance(link, ssl.SSLSocket) else "; is that its TLS port, which wants pulsar+ssl://?"
        raise TransientError(f"{where} closed the connection without an answer{hint}")
    if len(head) < 8 or head[0] != 0 or struct.unpack("!I", head[4:])[0] > _MAX_ANSWER:
        raise RefusedError(
            f"{where} does not answer in Pulsar's protocol",
            remedy="check pulsar.service_url: the TLS port wants pulsar+ssl://, the other pulsar://",
        )
    command = _exactly(link, struct.unpack("!I", head[4:])[0])
    fields = dict(_fields(command))
    number = fields.get(1)
    kind = number if isinstance(number, int) else 0
    if kind == _CONNECTED:
        answer = dict(_fields(_bytes(fields.get(_CONNECTED))))
        return _line(answer.get(1))
    if kind == _ERROR:
        error = dict(_fields(_bytes(fields.get(_ERROR))))
        why = _line(error.get(3))
        if error.get(2) == _AUTHENTICATION_ERROR:
            raise DeniedError(
                f"{where} does not accept our credentials: {why}",
                remedy=credentials_remedy(settings),
            )
        raise RefusedError(f"{where} refused the connection: {why}")
    raise TransientError(f"{where} answered CONNECT with a command of type {kind}")


def _connect_frame(settings: PulsarSettings) -> bytes:
    method, data = b"", b""
    if settings.token is not None:
        method, data = b"token", settings.token.get_secret_value().encode()
    elif settings.tls_certificate is not None:
        method = b"tls"
    connect = _text(1, b"pulsebridge") + (_text(3, data) if data else b"") + _number(4, _PROTOCOL_VERSION)
    if method:
        connect += _text(5, method)
    command = _number(1, _CONNECT) + _text(_CONNECT, connect)
    return struct.pack("!II", len(command) + 4, len(command)) + command


def _exactly(link: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, fewer where the connection ends before."""
    found = b""
    while len(found) < count:
        more = link.recv(count - len(found))
        if not more:
            break
        found += more
    return found


# --- as much of protobuf as CONNECT and its answers need ------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _line(value: int | bytes | None) -> str:
    return " ".join(_bytes(value).decode("utf-8", "replace").split())[:300]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message, as far as it is whole; numbers as int, the rest as bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind, -1)
        if size < 0:
            size, at = _read_varint(data, at)
        if at + size > len(data):
            return
        yield key >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at

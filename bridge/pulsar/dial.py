"""Dials Pulsar's binary port: TLS, CONNECT, and the broker's answer, CONNECTED or ERROR with its reason.

Pulsar's own client retries until its timeout and then reports Timeout for any answer of the broker. This module
reports why the broker refuses us. It requests no topic, so it needs no right except to authenticate.
"""

from __future__ import annotations

import base64
import json
import shlex
import socket
import ssl
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final

from bridge.contract import namespace_of
from bridge.errors import DeniedError, ForbiddenError, PulsebridgeError, RefusedError, TransientError
from bridge.pulsar.errors import as_our_error
from bridge.pulsar.oauth2 import access_token
from bridge.pulsar.wire import commands
from bridge.settings.pulsar import PulsarSettings, hosts_of
from bridge.tls import client_context, handshake_problem

__all__ = [
    "addresses",
    "answering",
    "credentials",
    "credentials_remedy",
    "dial",
    "grant_remedy",
    "open_connection",
    "role_of",
    "whom",
    "with_grant",
]

_MAX_ANSWER: Final = 1 << 20
_LATER_S: Final = 1.0


def dial(settings: PulsarSettings, timeout_s: float) -> str:
    """Connect to the first address that answers and return the broker's version text.

    Raises DeniedError if TLS or the credentials are not accepted, TransientError if no server answers. Raises
    RefusedError if the server is not a Pulsar broker.
    """
    *others, last = addresses(settings.service_url)
    for host, port in others:
        with suppress(TransientError):
            return _version(settings, host, port, timeout_s)
    return _version(settings, *last, timeout_s)


def _version(settings: PulsarSettings, host: str, port: int, timeout_s: float) -> str:
    sock, answer = open_connection(settings, host, port, timeout_s)
    sock.close()
    return answer.text(1)


def addresses(service_url: str) -> list[tuple[str, int]]:
    """Return host and port of each broker of ``pulsar://a:6650,b:6650``. Raises RefusedError for anything else."""
    try:
        return hosts_of(service_url)
    except ValueError as e:
        raise RefusedError(f"Pulsar named an address of a broker that is none: {e}") from e


def answering(settings: PulsarSettings) -> str:
    """Return the service URL with the hosts that answer, all of them if none does.

    Pulsar's client asks its hosts in turn, and for one that hangs it waits until its operation has timed out (H52). A
    host that answers more than a second later than another one is left out as well.
    """
    scheme = settings.service_url.partition("://")[0]
    hosts = addresses(settings.service_url)
    if len(hosts) == 1:
        return settings.service_url
    pool = ThreadPoolExecutor(len(hosts), thread_name_prefix="pulsar-hosts")
    left = {pool.submit(_answers, settings, *place): place for place in hosts}
    pool.shutdown(wait=False)
    until = time.monotonic() + settings.connection_timeout
    answered: set[tuple[str, int]] = set()
    while left and (wait_s := until - time.monotonic()) > 0:
        done, _ = wait(left, min(wait_s, _LATER_S) if answered else wait_s, FIRST_COMPLETED)
        if not done:
            break
        answered |= {place for one in done if (place := left.pop(one)) and one.result()}
    found = [place for place in hosts if place in answered] or hosts
    return f"{scheme}://" + ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found)


def _answers(settings: PulsarSettings, host: str, port: int) -> bool:
    try:
        open_connection(settings, host, port, settings.connection_timeout)[0].close()
    except TransientError:
        return False
    except PulsebridgeError:  # it answers, with a refusal: Pulsar's client gets it too
        return True
    return True


def credentials_remedy(settings: PulsarSettings) -> str:
    """Return what to check if our credentials are not accepted."""
    if settings.username is not None:
        return "check pulsar.username and pulsar.password (or password_file); Pulsar accepts no colon in a password"
    if settings.oauth2.enabled:
        return "check pulsar.oauth2: do the brokers trust this issuer's key, and expect this audience?"
    if settings.token is None and settings.tls_certificate is None:
        return (
            "it requires credentials: set pulsar.token (or token_file), pulsar.username and pulsar.password, "
            "pulsar.oauth2, or a client certificate"
        )
    expiry = _claims(settings).get("exp")
    if isinstance(expiry, int | float) and expiry <= time.time():
        return f"pulsar.token (or token_file) expired {time.time() - expiry:.0f} s ago: give a new one"
    if settings.token is not None:
        return "check pulsar.token (or token_file): is it this cluster's, and signed with its current key?"
    return "check pulsar.tls_certificate: does the cluster accept certificates, and trust its signer?"


def role_of(settings: PulsarSettings) -> str | None:
    """Return Pulsar's name of our role: the user, or the token's subject, which is not secret; None if not known."""
    if settings.username is not None:
        return settings.username
    subject = _claims(settings).get("sub")
    return subject if isinstance(subject, str) else None


def _claims(settings: PulsarSettings) -> dict[str, object]:
    """Return the claims of our JSON Web Token, for messages to users. Servers verify the token, this does not."""
    with suppress(ValueError, PulsebridgeError):
        _, body, _ = credentials(settings)[1].split(b".")
        found = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
        return found if isinstance(found, dict) else {}
    return {}


def whom(settings: PulsarSettings) -> str:
    """Return our role for a request for rights."""
    role = role_of(settings)
    return "this role" if role is None else f"the role {role!r}"


def grant_remedy(settings: PulsarSettings, topic: str, *actions: str) -> str:
    """Return the operator's command that grants us ``actions`` on the namespace of a topic."""
    role = role_of(settings) or "ROLE"
    command = ("namespaces", "grant-permission", namespace_of(topic), "--role", role, "--actions")
    return (
        f"let an operator run: {shlex.join(('pulsar-admin', *command, ','.join(actions)))} (a grant replaces the earlier "
        "one: include the role's existing actions)"
    )


def with_grant(error: DeniedError, settings: PulsarSettings, topic: str, *actions: str) -> DeniedError:
    """Return a refusal with our role and the command that grants ``actions`` on the topic's namespace.

    A refusal for another reason than a missing right is returned unchanged.
    """
    if not isinstance(error, ForbiddenError):
        return error
    return ForbiddenError(f"{error.what} to {whom(settings)}", remedy=grant_remedy(settings, topic, *actions))


def credentials(settings: PulsarSettings) -> tuple[str, bytes]:
    """Return the method and the data of our current credentials. Raises as ``access_token``."""
    if settings.username is not None and settings.password is not None:
        return "basic", f"{settings.username}:{settings.password.get_secret_value()}".encode()
    if settings.oauth2.enabled:
        return "token", access_token(settings).encode()
    if settings.token is not None:
        return "token", settings.token.get_secret_value().encode()
    return ("tls", b"") if settings.tls_certificate is not None else ("", b"")


def open_connection(
    settings: PulsarSettings, host: str, port: int, timeout_s: float, *, proxy_to: str = ""
) -> tuple[socket.socket, commands.Answer]:
    """Return a connection that the broker has accepted, and its CONNECTED.

    ``proxy_to`` is the address of the broker to which a proxy at this address forwards. Raises as ``dial``.
    """
    where = f"Pulsar at {host}:{port}" + (f" for {proxy_to}" if proxy_to else "")
    secure = settings.service_url.startswith("pulsar+ssl:")
    offered = credentials(settings)
    link: socket.socket | None = None
    try:
        link = socket.create_connection((host, port), timeout=timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure:
            context = client_context(settings, "pulsar")
            link = context.wrap_socket(link, server_hostname=host)
        return link, _talk(link, commands.connect(*offered, proxy_to=proxy_to), settings, where)
    except BaseException as e:
        if link is not None:
            link.close()
        if isinstance(e, OSError | UnicodeError):  # UnicodeError: a host name that is not valid in DNS
            raise _problem(e, settings, where) from e
        raise


def _problem(error: OSError | UnicodeError, settings: PulsarSettings, where: str) -> Exception:
    if isinstance(error, ssl.SSLEOFError):
        return TransientError(f"{where} closed the connection during the TLS handshake; is that its TLS port?")
    problem = handshake_problem(error, settings, "pulsar", where)
    if problem is not None:
        return problem
    if isinstance(error, ssl.SSLError):
        return RefusedError(f"{where}: {error}", remedy="check pulsar.service_url and pulsar.tls_ca")
    return TransientError(f"{where} cannot be reached: {error}")


def _talk(link: socket.socket, connect: bytes, settings: PulsarSettings, where: str) -> commands.Answer:
    link.sendall(connect)
    head = _exactly(link, 8)
    if not head:
        hint = "" if isinstance(link, ssl.SSLSocket) else "; is that its TLS port, which needs pulsar+ssl://?"
        raise TransientError(f"{where} closed the connection without an answer{hint}")
    size = int.from_bytes(head[4:], "big")
    if len(head) < 8 or head[0] != 0 or size > _MAX_ANSWER:
        raise RefusedError(
            f"{where} does not answer in Pulsar's protocol",
            remedy="check pulsar.service_url: the TLS port needs pulsar+ssl://, the other pulsar://",
        )
    answer = commands.parse(_exactly(link, size))
    if answer.kind == commands.Kind.CONNECTED:
        return answer
    if answer.kind == commands.Kind.ERROR:
        error = answer.error(2, 3)
        if error.name == "AuthenticationError":
            raise DeniedError(
                f"{where} does not accept our credentials: {error.text}",
                remedy=credentials_remedy(settings),
            )
        raise as_our_error(error, f"{where} refused the connection")  # a proxy: the broker is down
    raise TransientError(f"{where} answered CONNECT with a command of type {answer.kind}")


def _exactly(link: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, fewer if the connection is closed before."""
    found = b""
    while len(found) < count:
        more = link.recv(count - len(found))
        if not more:
            break
        found += more
    return found

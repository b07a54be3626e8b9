"""Access control for topics: tokens, client certificates, and requests of web pages.

A token or a certificate allows the topics of its filters and no other. A listener without tokens and mTLS accepts every
client that reaches it. A browser on this machine sends requests of any web page. So a request must name this server in
the header Host (against DNS rebinding) and must not come from a page. Pages are refused with mTLS too, because browsers
present a client certificate unasked. They never send a token unasked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bridge.contract.names import name_problem
from bridge.routing.templates import Filter
from bridge.settings.http import NAME_IN_FILTER, CertificateTopics, HttpSettings, is_loopback

__all__ = [
    "Filters",
    "Tokens",
    "allows",
    "certificate_filters",
    "certificate_names",
    "host_problem",
    "names_server",
    "page_problem",
]

Filters = tuple[Filter, ...]
"""The topics that a credential allows."""

Headers = Iterable[tuple[bytes, bytes]]

_NAME_KINDS: Final = ("DNS", "email", "URI")
_NO_PAGE: Final = (b"none", b"same-origin")


class Tokens:
    """The tokens in force and their topics. They are compared by digest, so that timing reveals nothing."""

    def __init__(self, found: Mapping[str, Filters]) -> None:
        self._filters = {_digest(token.encode()): filters for token, filters in found.items()}

    def filters(self, authorization: Iterable[bytes]) -> Filters | None:
        """Return the topics of a request. None unless it has one Authorization header with a ``Bearer`` token."""
        values = list(authorization)
        if len(values) != 1:
            return None
        scheme, _, given = values[0].partition(b" ")
        return self._filters.get(_digest(given.strip())) if scheme.lower() == b"bearer" else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def certificate_names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return common, DNS, e-mail and URI names of a result of ``SSLObject.getpeercert``."""
    common = [value for rdn in certificate.get("subject", ()) for kind, value in rdn if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _NAME_KINDS]
    return tuple(dict.fromkeys([*common, *others]))


def certificate_filters(names: Iterable[str], entries: Iterable[CertificateTopics], limit: int) -> Filters:
    """Return the topics of a certificate with these names, from the first matching entry.

    A name that is not a whole topic level does not replace ``{name}``, because it could be a wildcard or another topic.
    ``limit`` is its maximum length in bytes.
    """
    names = tuple(names)
    for entry in entries:
        if entry.name is not None and entry.name not in names:
            continue
        levels = [n for n in names if name_problem(n, limit) is None and not set("/+#\0") & set(n)]
        fixed = [t for t in entry.topics if NAME_IN_FILTER not in t]
        named = [t.replace(NAME_IN_FILTER, n) for t in entry.topics if NAME_IN_FILTER in t for n in levels]
        return tuple(Filter.parse(t) for t in (*fixed, *named) if not t.startswith("$"))
    return ()


def allows(filters: Filters, topic: str) -> bool:
    """Return whether ``topic`` matches one of the filters."""
    levels = topic.split("/")
    return any(one.match(levels) is not None for one in filters)


def host_problem(headers: Headers, settings: HttpSettings) -> str | None:
    """Return why the header Host does not name this server, None if it does."""
    if names_server(headers, settings.host, settings.allowed_hosts):
        return None
    return "the header Host must name this server: localhost, 127.0.0.1, [::1] or a name in http.allowed_hosts"


def names_server(headers: Headers, host: str, allowed: Iterable[str]) -> bool:
    """Return whether the one header Host is loopback, the address ``host`` of the listener, or an allowed name."""
    hosts = [_host(value) for name, value in headers if name == b"host"]
    known = {host.lower(), *(one.lower() for one in allowed)}
    return len(hosts) == 1 and (is_loopback(hosts[0]) or hosts[0] in known)


def _host(value: bytes) -> str:
    text = value.decode("latin-1").strip().lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].rstrip(".")


def page_problem(headers: Headers, settings: HttpSettings) -> str | None:
    """Return why a page's request is refused, None if allowed or not from a page."""
    found = [(name, value) for name, value in headers if name in (b"origin", b"sec-fetch-site")]
    origins = [value.decode("latin-1") for name, value in found if name == b"origin"]
    allowed = all(origin in settings.allowed_origins for origin in origins)
    if allowed and (origins or all(value in _NO_PAGE for _name, value in found)):
        return None
    return "web pages may not publish here; name their origin in http.allowed_origins"

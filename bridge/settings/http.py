"""Settings of the protocol handler ``http``: its addresses, the rights of clients, and its limits."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from bridge.routing.templates import Filter
from bridge.settings.base import Section
from bridge.settings.fetch import FetchSettings
from bridge.settings.units import Duration, Size

__all__ = ["CertificateTopics", "HttpLimits", "HttpSettings", "is_loopback"]

NAME_IN_FILTER = "{name}"
"""The name of the certificate in ``CertificateTopics.topics``."""


class CertificateTopics(Section):
    """The topics to which a client with a certificate may publish."""

    name: str | None = Field(None, min_length=1)
    """Common name of the certificate, or a DNS, e-mail or URI name in it; null matches every certificate that no
    earlier entry names."""
    topics: tuple[str, ...] = Field(min_length=1)
    """MQTT topic filters; {name} is each name of the certificate, # matches all topics."""

    @field_validator("topics")
    @classmethod
    def _filters(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            Filter.parse(text.replace(NAME_IN_FILTER, "name"))
        return value


class HttpLimits(Section):
    """The limits of the handler and of its clients."""

    head_size: Size = Field(Size("16KiB"), ge=1024, le=1024 * 1024)
    """Maximum size of the request line with all headers; a larger one is refused with 431."""
    body_size: Size = Field(Size("4MiB"), ge=1)
    """Maximum size of a request body; a larger one is refused with 413. All bodies that are being read share
    ingest.limits.in_flight_size."""
    in_flight: int = Field(1000, ge=1)
    """Maximum number of received messages that are not yet stored in Pulsar; beyond it: 503 with Retry-After."""
    connections: int = Field(250, ge=1)
    """Maximum number of open connections, with those in a TLS handshake; further ones are closed at once. Before a
    client has authenticated, each uses up to 16 KB and head_size, with TLS up to 500 KB: 8 or 125 MB in all by default.
    The process always keeps some file descriptors free."""
    store_timeout: Duration = Field(Duration("10s"), gt=0)
    """Maximum time that a request waits for Pulsar before it is answered with 503."""
    first_request_timeout: Duration = Field(Duration("5s"), gt=0)
    """Maximum time of a new client for its TLS handshake, and then for the head of its first request."""
    read_timeout: Duration = Field(Duration("30s"), gt=0)
    """Maximum time of a client to send a body, or to begin and send the head of its next request."""


class HttpSettings(Section):
    """Publishing and commands over HTTP; used if ``messaging_protocols`` names ``http``."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback only with tokens or mTLS."""
    port: int | None = Field(8090, ge=0, le=65535)
    """TCP port without TLS; 0 any free one, null none."""
    tls_port: int | None = Field(None, ge=0, le=65535)
    """TCP port with TLS, likewise. Both may be open at the same time; limits.connections counts the clients of both."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate with its chain; a replaced file is used within seconds."""
    tls_private_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities whose client certificates are required (mTLS). If one of the three files is replaced,
    clients must reconnect and authenticate."""
    certificates: tuple[CertificateTopics, ...] = ()
    """The topics of each client certificate; required with tls_client_ca. The first matching entry counts."""
    tokens: SecretStr | None = None
    """Tokens, one of which each request must contain: on each line a token and the MQTT topic filters that it may
    publish to, separated by spaces; # alone is all topics, a line that begins with # a comment. A token whose filters
    match all commands.topics of a device may fetch its commands. Also as tokens_file, whose changes apply within
    seconds."""
    allow_anonymous: bool = False
    """Listen beyond loopback without tokens and without mTLS: any client may publish."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names of this server in the header Host of clients, except loopback and http.host. A listener without
    tokens and mTLS refuses other names, because a web page may have set them (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may publish without a token, for example https://panel.example; requests of a browser
    with another origin are refused."""
    allow_resume: bool = False
    """Whether clients may publish to ingest.resume_topic, so that push resends commands."""
    commands: FetchSettings = Field(default_factory=FetchSettings)
    limits: HttpLimits = Field(default_factory=HttpLimits)

    @model_validator(mode="after")
    def _consistent(self) -> HttpSettings:
        if self.port is None and self.tls_port is None:
            raise ValueError("port and tls_port are both null: give one, or both to listen with and without TLS")
        if self.port and self.port == self.tls_port:
            raise ValueError(
                f"port and tls_port are both {self.port}: give each its own, or null to the one not wanted"
            )
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key belong together: give both or neither")
        if self.tls_port is not None and self.tls_certificate is None:
            raise ValueError("tls_port needs tls_certificate and tls_private_key")
        if self.tls_client_ca is not None and self.tls_port is None:
            raise ValueError("tls_client_ca needs tls_port")
        if (self.tls_client_ca is not None) != bool(self.certificates):
            raise ValueError(
                "tls_client_ca and certificates belong together: give the topics of the clients, for example "
                'certificates: [{topics: ["devices/{name}/#"]}]'
            )
        mutual = self.tls_client_ca is not None and self.port is None
        if is_loopback(self.host) or self.tokens is not None or mutual:
            return self
        if not self.allow_anonymous:
            raise ValueError(
                f"host {self.host} is reachable from other machines, and any client could publish: give tokens, or "
                "only a tls_port with tls_client_ca, or set allow_anonymous"
            )
        if self.host in ("0.0.0.0", "::", "") and not self.allowed_hosts:
            raise ValueError(
                f"host {self.host or repr('')} with allow_anonymous needs allowed_hosts: give the addresses and names "
                "by which clients reach this server"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_scoped(self) -> HttpSettings:
        if self.tokens is not None:
            found, problems = self.token_topics()
            if problems:
                raise ValueError("; ".join(problems))
            if not found:
                raise ValueError("tokens contains no token: give at least one, or leave it out")
        return self

    def token_topics(self) -> tuple[dict[str, tuple[Filter, ...]], list[str]]:
        """Return the current topic filters of each token, and the problems with their lines.

        An invalid line gives no token. Problems never contain a token.
        """
        found: dict[str, tuple[Filter, ...]] = {}
        problems: list[str] = []
        text = "" if self.tokens is None else self.tokens.get_secret_value()
        for number, line in enumerate(text.splitlines(), 1):
            token, *filters = line.split() or ["#"]
            if token.startswith("#"):
                continue
            try:
                if not filters:
                    raise ValueError("it has no topic filter; write # after the token for all topics")
                if token in found:
                    raise ValueError("an earlier line has the same token")
                found[token] = tuple(Filter.parse(text) for text in filters)
            except ValueError as e:
                problems.append(f"tokens, line {number}: {e}")
        return found, problems


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

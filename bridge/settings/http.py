"""Settings of the protocol handler ``http``: where it listens, who may publish what, and what bounds it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from bridge.settings.base import Section
from bridge.topic_templates import Filter

__all__ = ["CertificateTopics", "HttpSettings", "is_loopback"]

NAME_IN_FILTER = "{name}"
"""Stands in ``CertificateTopics.topics`` for the name of the certificate."""


class CertificateTopics(Section):
    """Which topics the holder of a client certificate may publish to."""

    name: str | None = Field(
        None,
        min_length=1,
        description="Common name of the certificate, or a DNS, e-mail or URI name in it; null stands for every "
        "certificate that no earlier entry names.",
    )
    topics: tuple[str, ...] = Field(
        min_length=1,
        description="MQTT topic filters; {name} stands for each name of the certificate, # for all topics.",
    )

    @field_validator("topics")
    @classmethod
    def _filters(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            Filter.parse(text.replace(NAME_IN_FILTER, "name"))
        return value


class HttpSettings(Section):
    """Publishing over HTTP; used when ``messaging_protocols`` names ``http``."""

    host: str = Field("127.0.0.1", description="Address to listen on; beyond loopback only with tokens or mTLS.")
    port: int | None = Field(8090, ge=0, le=65535, description="TCP port without TLS; 0 any free one, null none.")
    tls_port: int | None = Field(None, ge=0, le=65535, description="TCP port with TLS, likewise.")
    tls_certificate: Path | None = Field(
        None,
        description="PEM file of the server's certificate with its chain; a replaced file is used within seconds.",
    )
    tls_private_key: Path | None = Field(None, description="PEM file of the certificate's private key.")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of the authorities whose client certificates are required (mTLS). If one of the three files "
        "is replaced, clients must connect and authenticate again.",
    )
    certificates: tuple[CertificateTopics, ...] = Field(
        (),
        description="The topics of each client certificate; required with tls_client_ca. The first entry that fits counts.",
    )
    tokens: SecretStr | None = Field(
        None,
        description="Tokens, one of which each request must carry: on each line a token and the MQTT topic filters that "
        "it may publish to, separated by spaces; # alone is all topics, a line that begins with # a comment. Also as "
        "tokens_file, where a changed line is in force within seconds.",
    )
    allow_anonymous: bool = Field(
        False, description="Listen beyond loopback without tokens and without mTLS: anybody may publish."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names of this server beside loopback and http.host, as clients write them in the header Host. A "
        "listener without tokens and mTLS refuses other names, which a web page may have made (DNS rebinding).",
    )
    allowed_origins: tuple[str, ...] = Field(
        (),
        description="Origins of web pages that may publish without a token, for example https://panel.example; a browser "
        "that names another one is refused.",
    )
    allow_resume: bool = Field(
        False,
        description="Whether clients may publish to ingest.resume_topic, so that push resends commands.",
    )
    max_head_bytes: int = Field(
        16 * 1024,
        ge=1024,
        le=1024 * 1024,
        description="Largest request line with all headers, in bytes; a larger one is refused with 431.",
    )
    max_body_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1,
        description="Largest request body, in bytes; a larger one is refused with 413. All bodies that are being read "
        "share ingest.max_in_flight_bytes.",
    )
    max_in_flight: int = Field(
        1000,
        ge=1,
        description="Messages taken and not yet stored in Pulsar; beyond it: 503 with Retry-After.",
    )
    max_connections: int = Field(
        250,
        ge=1,
        description="Open connections, with those in a TLS handshake; further ones are closed at once. Before a client has "
        "authenticated, each takes up to 16 KB and max_head_bytes, with TLS up to 500 KB: 8 or 125 MB in all by default. "
        "The process always keeps some file descriptors free.",
    )
    store_timeout_s: float = Field(
        10.0,
        gt=0,
        description="How long a request waits for Pulsar before it is answered with 503, in seconds.",
    )
    first_request_s: float = Field(
        5.0,
        gt=0,
        description="How long a new client may take for its TLS handshake, and then for the head of its first request, in "
        "seconds.",
    )
    read_timeout_s: float = Field(
        30.0,
        gt=0,
        description="How long a client may take to send a whole body, or to begin and send the head of its next request, "
        "in seconds.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> HttpSettings:
        if self.port is None and self.tls_port is None:
            raise ValueError("port and tls_port are both null: give one")
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key belong together: give both or neither")
        if self.tls_port is not None and self.tls_certificate is None:
            raise ValueError("tls_port needs tls_certificate and tls_private_key")
        if self.tls_client_ca is not None and self.tls_port is None:
            raise ValueError("tls_client_ca needs tls_port")
        if (self.tls_client_ca is not None) != bool(self.certificates):
            raise ValueError(
                "tls_client_ca and certificates belong together: name the topics of the clients, for example "
                'certificates: [{topics: ["devices/{name}/#"]}]'
            )
        mutual = self.tls_client_ca is not None and self.port is None
        if is_loopback(self.host) or self.tokens is not None or mutual:
            return self
        if not self.allow_anonymous:
            raise ValueError(
                f"host {self.host} can be reached from elsewhere, and anybody could publish: give tokens, or only a "
                "tls_port with tls_client_ca, or set allow_anonymous"
            )
        if self.host in ("0.0.0.0", "::", "") and not self.allowed_hosts:
            raise ValueError(
                f"host {self.host or repr('')} with allow_anonymous needs allowed_hosts: name the addresses and names by "
                "which clients reach this server"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_scoped(self) -> HttpSettings:
        if self.tokens is not None:
            found, problems = self.token_topics()
            if problems:
                raise ValueError("; ".join(problems))
            if not found:
                raise ValueError("tokens holds no token: give at least one, or leave it out")
        return self

    def token_topics(self) -> tuple[dict[str, tuple[Filter, ...]], list[str]]:
        """Return the topic filters of each token as they are now, and what is wrong with which line.

        A wrong line gives no token. Problems never contain a token.
        """
        found: dict[str, tuple[Filter, ...]] = {}
        problems: list[str] = []
        for number, (token, *filters) in _token_lines(self.tokens):
            try:
                if not filters:
                    raise ValueError("it names no topic filter; write # after the token for all topics")
                if token in found:
                    raise ValueError("an earlier line has the same token")
                found[token] = tuple(Filter.parse(text) for text in filters)
            except ValueError as e:
                problems.append(f"tokens, line {number}: {e}")
        return found, problems


def _token_lines(tokens: SecretStr | None) -> Iterator[tuple[int, list[str]]]:
    text = "" if tokens is None else tokens.get_secret_value()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

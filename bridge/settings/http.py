"""Settings of the protocol handler ``http``: where it listens, who may publish, and what bounds it."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from bridge.settings.base import Section

__all__ = ["HttpSettings"]


class HttpSettings(Section):
    """Publishing over HTTP; used when ``messaging_protocols`` names ``http``."""

    host: str = Field(
        "127.0.0.1", description="Address to listen on; beyond loopback only with tokens or mTLS."
    )
    port: int | None = Field(
        8090, ge=0, le=65535, description="TCP port without TLS; 0 any free one, null none."
    )
    tls_port: int | None = Field(None, ge=0, le=65535, description="TCP port with TLS, likewise.")
    tls_certificate: Path | None = Field(
        None, description="PEM file of the server's certificate with its chain; read anew when it changes."
    )
    tls_private_key: Path | None = Field(None, description="PEM file of the certificate's private key.")
    tls_client_ca: Path | None = Field(
        None, description="PEM file of the authorities whose client certificates are required (mTLS)."
    )
    tokens: SecretStr | None = Field(
        None,
        description="Tokens of which each request must bear one, separated by spaces, commas or line ends; "
        "also as tokens_file, read anew when it changes.",
    )
    allow_anonymous: bool = Field(
        False, description="Listen beyond loopback without tokens and without mTLS: anybody may publish."
    )
    max_body_bytes: int = Field(
        4 * 1024 * 1024, ge=1, description="Largest request body, in bytes; a larger one is refused with 413."
    )
    max_in_flight: int = Field(
        1000,
        ge=1,
        description="Messages taken and not yet stored in Pulsar; beyond it: 503 with Retry-After.",
    )
    max_connections: int = Field(1000, ge=1, description="Open connections; beyond it: 503.")
    store_timeout_s: float = Field(
        10.0,
        gt=0,
        description="How long a request waits for Pulsar before it is answered with 503, in seconds.",
    )
    read_timeout_s: float = Field(
        30.0, gt=0, description="How long a client may take to send its request, in seconds."
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
        if self.tokens is not None and not self.token_list():
            raise ValueError("tokens holds no token: give at least one, or leave it out")
        mutual = self.tls_client_ca is not None and self.port is None
        if not (_is_loopback(self.host) or self.tokens is not None or mutual or self.allow_anonymous):
            raise ValueError(
                f"host {self.host} can be reached from elsewhere, and anybody could publish: give tokens, or only a "
                "tls_port with tls_client_ca, or set allow_anonymous"
            )
        return self

    def token_list(self) -> list[str]:
        """Return the tokens as they are now."""
        return [] if self.tokens is None else self.tokens.get_secret_value().replace(",", " ").split()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

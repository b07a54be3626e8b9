"""Settings of the connection to Pulsar and of the provisioning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from bridge.contract import GENERATION_TOPICS, NAMESPACE, TENANT, topic_name
from bridge.settings.base import COMMON, Section
from bridge.settings.units import Duration, Size

__all__ = ["OAuth2Settings", "PulsarSettings", "hosts_of"]

# Pulsar's NamedEntity: the valid characters in the name of a tenant or a namespace.
_NAME: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_NAMESPACE: Final = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)


_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}


def hosts_of(url: str) -> list[tuple[str, int]]:
    """Return host and port of each server of a URL such as ``pulsar://a:6650,b:6650`` or ``http://a:8080,b:8080``.

    Raises ValueError for an unknown scheme, no host or an invalid port.
    """
    scheme, _, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}"  # a password is not for logs
    if scheme not in _PORTS:
        raise ValueError(f"{shown!r} does not begin with {'://, '.join(_PORTS)}://")
    found = []
    for one in rest.rstrip("/").split(","):
        try:
            address = urlsplit(f"//{one}")
            port = address.port or _PORTS[scheme]
        except ValueError:
            raise ValueError(f"{shown!r} has an invalid port") from None
        if not address.hostname or address.path:
            raise ValueError(f"{shown!r} is not of the form {scheme}://host:port,host:port")
        found.append((address.hostname, port))
    return found


class OAuth2Settings(Section):
    """OAuth2 client credentials: an issuer gives the tokens. Off without an issuer_url or a key."""

    issuer_url: str | None = None
    """URL of the issuer; its /.well-known/openid-configuration names the token endpoint."""
    client_id: str | None = None
    """Client id at the issuer."""
    client_secret: SecretStr | None = None
    """Client secret at the issuer; also as client_secret_file, which is read at each request for a token."""
    key: SecretStr | None = None
    """Instead of both: Pulsar's key file, JSON with type, client_id, client_secret and issuer_url; usually as key_file,
    which is read at each request for a token. Its issuer_url applies if pulsar.oauth2.issuer_url is not set."""
    audience: str | None = None
    """Audience of the tokens, as some issuers require it."""
    scope: str | None = None
    """Scopes of the tokens, separated by spaces."""
    tls_ca: Path | None = None
    """PEM file of the authorities that sign the issuer's certificate; null for the system's."""

    @property
    def enabled(self) -> bool:
        """Whether tokens come from an issuer."""
        return self.issuer_url is not None or self.key is not None

    @model_validator(mode="after")
    def _complete(self) -> OAuth2Settings:
        if self.enabled and {self.client_id is None, self.client_secret is None} != {self.key is not None}:
            raise ValueError("give client_id and client_secret (or client_secret_file), or key_file instead of both")
        if not self.enabled and any(value is not None for _, value in self):
            raise ValueError("issuer_url is required")
        if self.issuer_url is not None and not self.issuer_url.startswith(("https://", "http://")):
            raise ValueError("issuer_url does not begin with https:// or http://")
        return self


class PulsarSettings(Section):
    """The addresses of Pulsar, our identity, and the namespaces of Pulsebridge's topics."""

    service_url: str = Field("pulsar://127.0.0.1:6650", json_schema_extra=COMMON)
    """Pulsar's binary service URL. It may name several brokers or proxies, as pulsar://a:6650,b:6650: one that answers
    is enough."""
    admin_url: str = Field("http://127.0.0.1:8080", json_schema_extra=COMMON)
    """Pulsar's admin REST URL. It may name several brokers or proxies, as http://a:8080,b:8080."""
    token: SecretStr | None = Field(None, json_schema_extra=COMMON)
    """Token for both; also as token_file, which is read at each use."""
    username: str | None = None
    """User name for both (basic authentication), instead of a token."""
    password: SecretStr | None = None
    """Password for both; also as password_file, which is read at each use."""
    oauth2: OAuth2Settings = Field(default_factory=OAuth2Settings)
    tls_ca: Path | None = None
    """PEM file of the authorities that sign the brokers' certificates."""
    tls_certificate: Path | None = None
    """PEM file of this client's certificate (mTLS)."""
    tls_private_key: Path | None = None
    """PEM file of this client's private key (mTLS)."""
    tls_validate_hostname: bool = True
    """Whether a broker's certificate must name its host."""
    operation_timeout: Duration = Field(Duration("30s"), gt=0)
    """Maximum time of a lookup or a subscribe."""
    connection_timeout: Duration = Field(Duration("5s"), gt=0)
    """Maximum time of a TCP connect."""
    client_log: bool = False
    """Whether the C++ client's own log is shown (errors only)."""
    tenant: str = TENANT
    """Tenant of all topics."""
    namespace: str = NAMESPACE
    """Namespace of the readings; no MQTT topic can name another."""
    system_namespace: str = "pulsebridge-system"
    """Namespace of commands, cursors, receipts and dead letters."""
    namespaces: tuple[str, ...] = ()
    """Further namespaces of readings, as tenant/namespace, that rules may name."""
    partitions: int = Field(4, ge=1, le=1024, json_schema_extra=COMMON)
    """Partitions of a new readings topic."""
    command_partitions: int = Field(4, ge=1, le=1024)
    """Partitions of new topics of commands; those of existing topics are fixed (H28): see pulsar.command_generation."""
    command_generation: int = Field(0, ge=0, le=999_999_999)
    """Which commands topic is in force, with its cursors: commands, or commands-1, commands-2, …. Positions of commands
    begin with it. To change the cluster or the number of partitions, raise it, and run `pulsebridge commands move`: see the
    page "Move to another cluster"."""
    provision: Literal["create", "verify", "off"] = "create"
    """At the start of ingest and push: create namespaces, topics and subscriptions; verify that they exist, and fail
    with the missing commands; or off, without a request to Pulsar's admin."""
    auto_topics: Literal["refuse", "leave"] = "refuse"
    """Whether Pulsar may create topics in the namespaces by itself. refuse: provisioning forbids it, because otherwise
    messages after the deletion of a topic go to partitions without a topic. leave: if other programs in the namespaces
    need it."""
    retention: Duration | None = Field(Duration("3d"), json_schema_extra=COMMON)
    """Retention of acknowledged messages in Pulsar, in whole minutes; null for ever."""
    retention_size: Size | None = None
    """Maximum size of retained acknowledged messages of a partition; null without limit."""

    @field_validator("service_url", "admin_url")
    @classmethod
    def _valid_url(cls, url: str, info: ValidationInfo) -> str:
        hosts_of(url)
        schemes = ("pulsar", "pulsar+ssl") if info.field_name == "service_url" else ("http", "https")
        if url.partition("://")[0] not in schemes:
            raise ValueError(f"should begin with {schemes[0]}:// or {schemes[1]}://")
        return url

    @property
    def admin_urls(self) -> list[str]:
        """The admin REST URL of each host."""
        scheme, _, rest = self.admin_url.partition("://")
        return [f"{scheme}://{host}" for host in rest.rstrip("/").split(",")]

    @model_validator(mode="after")
    def _distinct(self) -> PulsarSettings:
        if self.namespace == self.system_namespace:
            raise ValueError("namespace and system_namespace must differ, or a device could write to commands")
        for name in (self.tenant, self.namespace, self.system_namespace):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid name of a tenant or namespace: use letters, digits and -=:._ only"
                )
        for name in self.namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise ValueError(f"namespaces: {name!r} is not of the form tenant/namespace")
            if name == f"{self.tenant}/{self.system_namespace}":
                raise ValueError("namespaces must not list the system namespace, or a device could write to commands")
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key belong together: give both or neither")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together: give both or neither")
        if ":" in (self.username or ""):
            raise ValueError("username must not contain a colon: it separates name and password")
        if (self.token is not None) + (self.username is not None) + self.oauth2.enabled > 1:
            raise ValueError("token, username and oauth2 are different credentials: give one of them")
        return self

    @property
    def readings_namespaces(self) -> tuple[str, ...]:
        """The namespaces of readings, as tenant/namespace: the default one, then the listed ones."""
        return tuple(dict.fromkeys((f"{self.tenant}/{self.namespace}", *self.namespaces)))

    @property
    def all_namespaces(self) -> tuple[str, ...]:
        """All namespaces that Pulsebridge writes to, as tenant/namespace."""
        return (*self.readings_namespaces, f"{self.tenant}/{self.system_namespace}")

    def readings_topic(self, local: str, namespace: str | None = None) -> str:
        """Return the full name of a readings topic; ``namespace`` is one of ``namespaces``, None the default one."""
        tenant, _, name = (namespace or f"{self.tenant}/{self.namespace}").partition("/")
        return topic_name(tenant, name, local)

    def system_topic(self, local: str) -> str:
        """Return the full name of a topic in the system namespace, of the generation in force."""
        if self.command_generation and local in GENERATION_TOPICS:
            local = f"{local}-{self.command_generation}"
        return topic_name(self.tenant, self.system_namespace, local)

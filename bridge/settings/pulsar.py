"""Settings of the connection to Pulsar and of what Pulsebridge provisions there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, model_validator

from bridge.contract import topic_name
from bridge.settings.base import Section

__all__ = ["PulsarSettings"]

# Pulsar's NamedEntity: what it takes in the name of a tenant or a namespace.
_NAME: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_NAMESPACE: Final = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)


class PulsarSettings(Section):
    """Where Pulsar is, who we are there, and the namespaces that Pulsebridge keeps its topics in."""

    service_url: str = Field("pulsar://127.0.0.1:6650", description="Pulsar's binary service URL.")
    admin_url: str = Field("http://127.0.0.1:8080", description="Pulsar's admin REST URL.")
    token: SecretStr | None = Field(
        None, description="Token for both; also as token_file, read anew whenever it is asked for."
    )
    tls_ca: Path | None = Field(None, description="PEM file of the authorities that sign the brokers' certificates.")
    tls_certificate: Path | None = Field(None, description="PEM file of this client's certificate (mTLS).")
    tls_private_key: Path | None = Field(None, description="PEM file of this client's private key (mTLS).")
    tls_validate_hostname: bool = Field(True, description="Whether a broker's certificate must name its host.")
    operation_timeout_s: float = Field(30.0, gt=0, description="How long a lookup or a subscribe may take, in seconds.")
    connection_timeout_s: float = Field(5.0, gt=0, description="How long a TCP connection may take, in seconds.")
    client_log: bool = Field(False, description="Whether the C++ client's own log is shown (errors only).")
    tenant: str = Field("public", description="Tenant of all topics.")
    namespace: str = Field("pulsebridge", description="Namespace of the readings; no MQTT topic reaches another.")
    system_namespace: str = Field(
        "pulsebridge-system", description="Namespace of commands, cursors, receipts and dead letters."
    )
    namespaces: tuple[str, ...] = Field(
        (),
        description="Further namespaces of readings, as tenant/namespace, that rules may name; no others are reached.",
    )
    partitions: int = Field(4, ge=1, le=1024, description="Partitions of a new readings topic.")
    command_partitions: int = Field(
        4,
        ge=1,
        le=1024,
        description="Partitions of the commands and cursors topics; fixed once they exist (H28).",
    )
    provision: Literal["create", "verify", "off"] = Field(
        "create",
        description="At the start of ingest and push: create namespaces, topics and subscriptions; verify that they "
        "are there and fail with the commands that are missing; or off, which asks Pulsar's admin for nothing.",
    )
    auto_topics: Literal["refuse", "leave"] = Field(
        "refuse",
        description="Whether the namespaces are provisioned so that Pulsar makes no topic in them by itself (refuse): "
        "else what is written after a topic was deleted lands in partitions that belong to no topic. leave, where "
        "other programs in them count on it.",
    )
    retention_minutes: int = Field(
        4320, ge=-1, description="How long acknowledged messages stay in Pulsar, in minutes; -1 for ever."
    )
    retention_mb: int = Field(-1, ge=-1, description="How many MB of acknowledged messages stay; -1 without limit.")

    @model_validator(mode="after")
    def _distinct(self) -> PulsarSettings:
        if self.namespace == self.system_namespace:
            raise ValueError("namespace and system_namespace must differ, or a device could write to commands")
        for name in (self.tenant, self.namespace, self.system_namespace):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a tenant or namespace: letters, digits and -=:._ only")
        for name in self.namespaces:
            if not _NAMESPACE.fullmatch(name):
                raise ValueError(f"namespaces: {name!r} is not of the form tenant/namespace")
            if name == f"{self.tenant}/{self.system_namespace}":
                raise ValueError("namespaces must not list the system namespace, or a device could write to commands")
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key belong together: give both or neither")
        return self

    @property
    def readings_namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold readings, as tenant/namespace: that of all without another, then the listed ones."""
        return tuple(dict.fromkeys((f"{self.tenant}/{self.namespace}", *self.namespaces)))

    @property
    def all_namespaces(self) -> tuple[str, ...]:
        """Every namespace that Pulsebridge writes to, as tenant/namespace."""
        return (*self.readings_namespaces, f"{self.tenant}/{self.system_namespace}")

    def readings_topic(self, local: str, namespace: str | None = None) -> str:
        """Return the full name of a readings topic; ``namespace`` is one of ``namespaces``, None the usual one."""
        tenant, _, name = (namespace or f"{self.tenant}/{self.namespace}").partition("/")
        return topic_name(tenant, name, local)

    def system_topic(self, local: str) -> str:
        """Return the full name of a topic in the system namespace, one of ``contract.SYSTEM_TOPICS``."""
        return topic_name(self.tenant, self.system_namespace, local)

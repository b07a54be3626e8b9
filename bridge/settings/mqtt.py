"""Settings of the connection to the MQTT broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from bridge.settings.base import COMMON, Section, checked_by
from bridge.settings.units import Duration

__all__ = ["Host", "MqttSettings"]


def _check_host(text: str) -> None:
    if "://" in text or text.count(":") == 1:
        raise ValueError("should be the host alone (port and tls are settings of their own)")
    if not text or any(c.isspace() or c in "/@#?" for c in text):
        raise ValueError("should be a host name or an address")


Host = Annotated[str, checked_by(_check_host)]
"""Host name or address of a server."""


class MqttSettings(Section):
    """The address of the MQTT broker, and the bridge's own sessions at it."""

    host: Host = Field("127.0.0.1", json_schema_extra=COMMON)
    """Host name or address of the MQTT broker."""
    port: int = Field(1883, ge=1, le=65535, json_schema_extra=COMMON)
    """TCP port of the MQTT broker."""
    client_id: str = Field("pulsebridge", min_length=1, json_schema_extra=COMMON)
    """Client id of the persistent session: it never changes. All ingest processes of one `--shard auto` have the same; others
    need different ones."""
    former_client_ids: tuple[str, ...] = ()
    """Former client ids of ingest at this broker: before it reads, ingest drains their sessions into Pulsar and deletes
    them."""
    protocol: Literal["3.1", "3.1.1", "5"] = "5"
    """MQTT version of the link."""
    username: str | None = Field(None, json_schema_extra=COMMON)
    """User name at the MQTT broker."""
    password: SecretStr | None = Field(None, json_schema_extra=COMMON)
    """Password at the MQTT broker, or a JWT; also as password_file, which is read at each connect."""
    tls: bool = Field(False, json_schema_extra=COMMON)
    """Whether the link uses TLS."""
    tls_ca: Path | None = Field(None, json_schema_extra=COMMON)
    """PEM file of the authorities that sign the broker's certificate."""
    tls_certificate: Path | None = None
    """PEM file of this client's certificate (mTLS)."""
    tls_private_key: Path | None = None
    """PEM file of this client's private key (mTLS)."""
    tls_validate_hostname: bool = True
    """Whether the broker's certificate must name mqtt.host."""
    keep_alive: Duration = Field(Duration("30s"), ge=5, le=65535)
    """MQTT keep-alive, in whole seconds."""
    session_expiry: Duration = Field(Duration("7d"), ge=1, le=4_294_967_295)
    """How long the broker keeps the session of a disconnected process (MQTT 5)."""
    connect_timeout: Duration = Field(Duration("5s"), gt=0)
    """Maximum time of TCP connect and CONNACK."""
    reconnect_min: Duration = Field(Duration("200ms"), gt=0)
    """First wait before a reconnect."""
    reconnect_max: Duration = Field(Duration("15s"), gt=0)
    """Longest wait before a reconnect."""
    connections_from: SecretStr | None = None
    """Where the broker reports its number of connections, for metrics.mop_names: a topic, or a URL with the name of the
    number, as http://broker:8222/varz#connections; null for the topic $SYS/broker/clients/connected."""

    @model_validator(mode="after")
    def _pairs(self) -> MqttSettings:
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key belong together: give both or neither")
        given = next((n for n in ("tls_ca", "tls_certificate") if getattr(self, n) is not None), None)
        if given is not None and not self.tls:
            raise ValueError(f"{given} is given, but tls is false, so nothing would be encrypted: set tls to true")
        if self.password is not None and self.username is None:
            raise ValueError("password needs a username")
        if self.client_id in self.former_client_ids:
            raise ValueError("former_client_ids contains the present client_id: remove it")
        return self

    @property
    def address(self) -> str:
        """The broker's address, as a URL."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    def credentials(self) -> tuple[str | None, str | None]:
        """Return user name and password; a password in a file is read at each call."""
        return self.username, None if self.password is None else self.password.get_secret_value()

"""Settings of the live view: its address, its tokens, and what it reads."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from bridge.settings.base import Section
from bridge.settings.http import is_loopback
from bridge.settings.units import Duration

__all__ = ["UiSettings"]

_TOKEN: Final = re.compile(r"[!-~]{16,256}")
_EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")


class UiSettings(Section):
    """The live view of ``pulsebridge ui``."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback only with read_token or allow_anonymous."""
    port: int = Field(8095, ge=0, le=65535)
    """TCP port; 0: any free one."""
    token: SecretStr | None = None
    """Token that allows to send commands and to replay dead letters: 16 to 256 printable ASCII characters without
    spaces. None: the live view only reads. Also as token_file, whose changes apply at once."""
    read_token: SecretStr | None = None
    """Token, of the same form, that every page requires; ``token`` opens them as well. None: who reaches the port may
    read."""
    allow_anonymous: bool = False
    """Listen beyond loopback without read_token: every client may read all data."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names of this server in the header Host of browsers, except loopback and ui.host. Other names are
    refused, because a web page may have set them (DNS rebinding)."""
    endpoints: tuple[str, ...] = ()
    """URLs of the metrics endpoints of ingest, push and stream, for example http://127.0.0.1:9464. Default: that of
    ``metrics`` if its port is set."""
    refresh: Duration = Field(Duration("10s"), ge=1)
    """Time between two reads of Pulsar, tables and endpoints; longer if a read takes long."""
    max_devices: int = Field(100_000, ge=1)
    """Maximum number of devices in memory, about 1 KB each; those with the most pending commands first."""

    @field_validator("token", "read_token")
    @classmethod
    def _strong(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _TOKEN.fullmatch(value.get_secret_value()):
            raise ValueError("must have 16 to 256 printable ASCII characters without spaces: `openssl rand -hex 24`")
        return value

    @field_validator("endpoints")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            known = (
                parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            )  # a wrong port raises ValueError
            if not known or parts.path not in ("", "/") or parts.query or parts.username:
                raise ValueError(f"{url!r} is not the URL of a metrics endpoint: write http://HOST:PORT")
        return tuple(url.rstrip("/") for url in value)

    @model_validator(mode="after")
    def _reachable(self) -> UiSettings:
        if is_loopback(self.host):
            return self
        if self.read_token is None and not self.allow_anonymous:
            raise ValueError(
                f"host {self.host} is reachable from other machines, and every client could read all data: give "
                "read_token, or set allow_anonymous"
            )
        if self.host in _EVERY_ADDRESS and not self.allowed_hosts:
            raise ValueError(
                f"host {self.host or repr('')} needs allowed_hosts: give the names and addresses by which browsers reach "
                "this server"
            )
        return self

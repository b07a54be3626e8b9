"""The servers of a run: its own local stack, or servers that run already."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from bridge.errors import ConfigError

__all__ = ["Addresses", "given_addresses"]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the MQTT broker and Pulsar are."""

    mqtt_host: str
    mqtt_port: int
    pulsar_url: str
    admin_url: str

    def as_settings(self) -> dict[str, object]:
        """Return the addresses by their paths in the settings."""
        return {
            "mqtt.host": self.mqtt_host,
            "mqtt.port": self.mqtt_port,
            "pulsar.service_url": self.pulsar_url,
            "pulsar.admin_url": self.admin_url,
        }


def given_addresses(mqtt: str | None, pulsar: str | None, admin: str | None) -> Addresses | None:
    """Return the addresses of servers that run already, None when none is given.

    Raises ConfigError when only some are given or one is not a URL with host and port.
    """
    if mqtt is None and pulsar is None and admin is None:
        return None
    if mqtt is None or pulsar is None or admin is None:
        raise ConfigError(
            "--mqtt, --pulsar and --admin belong together",
            remedy="give all three, or none for a stack of the demo's own",
        )
    try:
        parts = urlsplit(mqtt)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise ConfigError(
            f"--mqtt {mqtt}: no host and port", remedy="for example --mqtt mqtt://127.0.0.1:1883"
        )
    return Addresses(host, port, pulsar, admin)

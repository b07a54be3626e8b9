"""The MQTT brokers of push: the links of ingest, one for each address.

Several links to one address are one broker to push, because a device that is at one of them is at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.settings import Settings
from bridge.settings.mqtt import MqttSettings

__all__ = ["Brokers", "brokers_of"]


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers by name, which is that of their first link; a single one is "" to push."""

    settings: Mapping[str, MqttSettings]
    names: Mapping[str, str]  # by link of ingest the name of its broker

    def named(self, link: str) -> str:
        """Return the broker of a link of ingest, "" for an unknown one."""
        return self.names.get(link, "")

    def shown(self, name: str) -> str:
        """Return the name of a broker in logs and metrics."""
        return name or next(iter(self.names))


def brokers_of(settings: Settings) -> Brokers:
    """Return the brokers that the settings name."""
    first: dict[tuple[str, int], str] = {}
    links = settings.links()
    names = {link: first.setdefault((mqtt.host.lower(), mqtt.port), link) for link, mqtt in links.items()}
    if len(first) == 1:
        return Brokers({"": next(iter(links.values()))}, dict.fromkeys(links, ""))
    return Brokers({name: links[name] for name in first.values()}, names)

"""Settings of devices that fetch their commands over another protocol than MQTT, and how push learns that they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from bridge.routing.patterns import Star
from bridge.routing.templates import Filter
from bridge.settings.base import COMMON, Section, checked_by
from bridge.settings.push import PresenceRule
from bridge.settings.units import Duration

__all__ = ["FetchSettings", "Status", "fetched_topics", "status_of"]

DEVICE_IN_TOPIC: Final = "{device}"
_ONLINE: Final = ("online", "alive", "1")


def _names_device(text: str) -> None:
    rest = text.replace(DEVICE_IN_TOPIC, "d")
    if DEVICE_IN_TOPIC not in text or "{" in rest or "}" in rest:
        raise ValueError(f"topic {text!r} must contain {DEVICE_IN_TOPIC}, for example devices/{{device}}/commands")
    if any(name is not None for name in Filter.parse(rest).names):
        raise ValueError(f"topic {text!r}: write {DEVICE_IN_TOPIC} for the device, and no other name")


class FetchSettings(Section):
    """Commands that devices fetch over HTTP, instead of a subscription at the MQTT broker."""

    topics: tuple[Annotated[str, checked_by(_names_device)], ...] = Field((), json_schema_extra=COMMON)
    """MQTT topics of the commands that a device fetches, with {device} for its name; /# at the end stands for all
    topics below. None: commands are not served. It needs a rule in push.presence.rules."""
    link: str | None = None
    """Name of the link (ingest.links) at whose MQTT broker these devices are; null: the first one."""
    client_id: str = Field("pulsebridge-device", min_length=1)
    """Prefix of the client id of a device's MQTT session; the same in all processes, because a device has one session.
    """
    devices: int = Field(1000, ge=1, le=20_000)
    """Maximum number of devices that fetch at the same time, or have done so within absent_after; further ones get 503.
    Each open request also is one of http.limits.connections."""
    absent_after: Duration = Field(Duration("30s"), ge=1)
    """Time without a request after which a device counts as offline: its commands wait in Pulsar. In whole seconds."""


def fetched_topics(device: str, fetch: FetchSettings) -> list[str]:
    """Return the filters of the commands that a device fetches."""
    return [topic.replace(DEVICE_IN_TOPIC, device) for topic in fetch.topics]


class Status(NamedTuple):
    """The messages by which push learns whether a device is online."""

    topic: str
    online: bytes
    offline: bytes


def status_of(rules: Iterable[PresenceRule], device: str) -> Status | None:
    """Return the status messages of a device, by the first rule that can name it; None without one."""
    rules = tuple(rules)
    filters = [Filter.parse(rule.filter) for rule in rules]
    for rule, found in zip(rules, filters, strict=True):
        parts = list(zip(found.levels, found.names, strict=True))
        if not rule.absent or any(isinstance(level, Star) and name != "device" for level, name in parts):
            continue
        topic = "/".join(level if isinstance(level, str) else device for level, _ in parts)
        matches = [(one, captures) for one in filters if (captures := one.match(topic.split("/"))) is not None]
        if matches and matches[0][0] is found and matches[0][1]["device"] == device:
            online = next(text for text in (*_ONLINE, "".join(rule.absent) + "1") if text not in rule.absent)
            offline = next((text for text in rule.absent if text), "")
            return Status(topic, online.encode(), offline.encode())
    return None

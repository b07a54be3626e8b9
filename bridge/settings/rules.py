"""One route of MQTT topics to Pulsar topics, in the settings and in the files of ``conf/presets/``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridge.routing.templates import Filter
from bridge.settings.base import Section, checked_by

__all__ = ["DeviceFilter", "TopicRule"]


def _captures_device(text: str) -> None:
    if "device" not in Filter.of_settings(text).names:
        raise ValueError(f"filter {text!r} captures no device: write +device for its level")


DeviceFilter = Annotated[str, checked_by(_captures_device)]
"""An MQTT filter that captures the device."""


class TopicRule(Section):
    """A route of MQTT topics to Pulsar topics; the first route with a matching filter applies."""

    name: str = Field(min_length=1)
    """Name of the route in the envelope and in logs."""
    filter: str = Field(min_length=1)
    """MQTT filter with named captures: ``plant/+line/+device/#rest``; plain ``+`` and ``#`` match unnamed."""
    topic: str = "{level1}"
    """Template of the Pulsar topic's local name; captures in braces."""
    key: str | None = None
    """Template of the key; default: the device, else the full MQTT topic."""
    device: str | None = None
    """Template of the device: a capture, or a field of each message, as {user:device-id} (user property) or
    {json:$.device.id} (payload); a message without it is a dead letter."""
    command_topic: str | None = None
    """Template of the MQTT topic for commands to the device."""
    namespace: str | None = None
    """Template of the Pulsar namespace as tenant/namespace, one of pulsar.namespaces; default: pulsar.namespace."""
    reading_id: str | None = None
    """Field of a message with its own id, as {json:$.id} or {user:id}. Tables with keys recognize repeats by it; ingest
    does not read it (`topics explain` shows it)."""
    reading_time: str | None = None
    """Field of a message with its time, as {json:$.time}; like reading_id."""
    sequence: str | None = None
    """Field of a message with the device's own number, which grows by one with each message of the route, as
    {json:$.n}; `pulsebridge audit` reports gaps and repeats."""
    shared: bool = False
    """Whether messages of other routes may have the same Pulsar topic and key, for example if several routes name the
    same devices."""

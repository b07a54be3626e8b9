"""The Pulsar topic, key and shared properties of each MQTT topic's messages, cached after the first message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bridge.bounded_map import BoundedMap
from bridge.contract import RESUME_TOPIC
from bridge.intake.sightings import Sighting, Sightings
from bridge.mqtt.envelope import Envelope, size_of
from bridge.mqtt.types import Message
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.settings import Settings

__all__ = ["Target", "Targets"]

_CACHE_BYTES: Final = 128 * 1024 * 1024
_LONGEST_CACHED: Final = 256
"""Longer MQTT topics are not cached, so that the cache stays small (H10)."""


class Target:
    """The Pulsar topic of one MQTT topic's messages, and the data that they share."""

    __slots__ = ("flow", "head", "key", "properties", "seen", "text", "topic")

    def __init__(self, topic: str, key: str, properties: dict[str, str], seen: Sighting | None) -> None:
        self.topic = topic
        """Full name of the Pulsar topic."""
        self.key = key
        self.properties = properties
        self.text = size_of(b"", key, properties)
        self.head = head_of(key, properties)
        self.flow: Any = None
        """The result of ``PartitionProducers.put`` for the last message."""
        self.seen = seen
        """The presence of their device, None without a device or presence records."""


class Targets:
    """The targets of one link. ``alive`` is called with a device whose message requires a presence record."""

    def __init__(
        self, settings: Settings, mapper: Mapper, envelope: Envelope, alive: Callable[[str], None] | None
    ) -> None:
        self.mapper = mapper
        self.envelope = envelope
        self.cache: BoundedMap[Target] = BoundedMap(_CACHE_BYTES, each=768, copies=5)
        """The targets by MQTT topic, without those that depend on the message."""
        self.resume_topic = settings.pulsar.system_topic(RESUME_TOPIC)
        self._readings_topic = settings.pulsar.readings_topic
        every_s = settings.ingest.presence_interval
        self._sightings = Sightings(every_s) if every_s and alive is not None else None
        self._alive = alive

    def sighted(self, seen: Sighting, arrived: float) -> None:
        """Report a device if its message requires a presence record; call it before ``last_message`` is set."""
        assert self._sightings is not None
        assert self._alive is not None
        if self._sightings.record_due(seen, arrived):
            self._alive(seen.device)

    def of(self, message: Message) -> Target | NoRoute | LeftOut:
        """Return the target of an uncached topic, or of a message with its own route."""
        topic = message.topic
        route = self.mapper.route(topic)
        if isinstance(route, ResumeAsked):
            envelope = self.envelope.of_topic(topic, Route("resume", RESUME_TOPIC, route.device, route.device, None))
            return Target(self.resume_topic, route.device, envelope, None)
        fixed = isinstance(route, Route)
        if isinstance(route, PerMessage):
            route = route.of(message.payload, () if message.properties is None else message.properties.user)
        if not isinstance(route, Route):
            return route
        known = self._sightings is not None and route.device is not None
        seen = self._sightings.of(route.device) if known else None  # type: ignore[union-attr, arg-type]
        full = self._readings_topic(route.local, route.namespace)
        target = Target(full, route.key, self.envelope.of_topic(topic, route), seen)
        if fixed and len(topic) <= _LONGEST_CACHED:
            self.cache.put(topic, target)
        return target

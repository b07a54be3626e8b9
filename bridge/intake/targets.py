"""The shared data of an MQTT topic's messages, cached after the first one: Pulsar topic, key, properties, device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from bridge.bounded_map import BoundedMap
from bridge.contract import RESUME_TOPIC
from bridge.mqtt.envelope import Envelope
from bridge.mqtt.presence import PresenceRules, Sign
from bridge.mqtt.types import Message
from bridge.pulsar.wire.batches import head_of
from bridge.routing.mapper import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.settings import Settings

__all__ = ["Sighting", "Sightings", "Target", "Targets"]

_CACHE_BYTES: Final = 128 * 1024 * 1024
_LONGEST_CACHED: Final = 256
"""Longer MQTT topics are not cached, so that the cache stays small (H10)."""

_KNOWN_BYTES: Final = 32 * 1024 * 1024
"""About 65,000 devices with usual names."""
_QUIET_S: Final = 1.0
_EXTRA: Final = 4


class Sighting:
    """The state of one device.

    A record may be due if ``last_message`` is more than ``quiet`` ago or ``due`` has come. The owner checks this at
    each message, then sets ``last_message``.
    """

    __slots__ = ("device", "due", "extra", "last_message", "last_record", "quiet")

    def __init__(self, device: str) -> None:
        self.device = device
        self.last_message = -math.inf
        """The time of its last message."""
        self.quiet = _QUIET_S
        """A longer gap is a silence."""
        self.due = -math.inf
        """The time of its next record if it keeps publishing."""
        self.last_record = -math.inf
        """The time of the last message with a record."""
        self.extra = 0
        """Records before ``due``."""


class Sightings:
    """The devices of one link. Decides when a device's message requires a presence record.

    Push waits for the first message of a device after a silence; further messages require none for a while. A silence
    is a gap of more than a second. For a device that publishes rarely it is more than twice its usual gap. A gap is
    usual if the device published nothing else since its last record. So a record is due at once and then every
    ``every_s``. A device that publishes in bursts costs at most four more in that time.

    The times are seconds of the monotonic clock. Devices choose their names, so their states are bounded in bytes (H10,
    H35). A forgotten device starts with a record.
    """

    def __init__(self, every_s: float, most_bytes: int = _KNOWN_BYTES) -> None:
        self._every_s = every_s
        self._known: BoundedMap[Sighting] = BoundedMap(most_bytes, each=224)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, device: str) -> Sighting:
        """Return the state of a device; a new device may evict the oldest one."""
        found = self._known.get(device)
        if found is None:
            found = Sighting(device)
            self._known.put(device, found)
        return found

    def seen_elsewhere(self, device: str) -> None:
        """Another link has reported the device: its next message here requires a record, at most one a second. From any thread."""
        found = self._known.get(device)
        if found is not None:
            found.due = min(found.due, found.last_record + _QUIET_S)

    def record_due(self, seen: Sighting, now: float) -> bool:
        """Return whether a message requires a record; call it before ``last_message`` is set."""
        if now >= seen.due:
            if seen.due > -math.inf:
                seen.quiet = max(_QUIET_S, seen.quiet / 2)
            seen.due = now + self._every_s
            seen.extra = 0
        elif now - seen.last_message > seen.quiet and seen.extra < _EXTRA:
            seen.extra += 1
            if seen.last_message == seen.last_record:
                seen.quiet = min(self._every_s, 2 * (now - seen.last_message))
            elif seen.extra == _EXTRA:
                seen.quiet = self._every_s
        else:
            return False
        seen.last_record = now
        return True


class Target:
    """The Pulsar topic of one MQTT topic's messages, and the data that they share."""

    __slots__ = ("flow", "head", "key", "properties", "seen", "topic")

    def __init__(self, topic: str, key: str, properties: dict[str, str], seen: Sighting | None) -> None:
        self.topic = topic
        """Full name of the Pulsar topic."""
        self.key = key
        self.properties = properties
        self.head = head_of(key, properties)
        self.flow: Any = None
        """The result of ``PartitionProducers.put`` for the last message."""
        self.seen = seen
        """The presence of their device, None without a device or presence records."""


Known: TypeAlias = Target | NoRoute | LeftOut | PerMessage | ResumeAsked
"""What the first message of an MQTT topic shows: the target of all, or how to find that of each."""


class Targets:
    """The targets of one link. ``alive`` is called with a device whose message requires a presence record."""

    def __init__(
        self,
        settings: Settings,
        mapper: Mapper,
        envelope: Envelope,
        alive: Callable[[str], None] | None,
        *,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self.mapper = mapper
        self.envelope = envelope
        self.cache: BoundedMap[Known] = BoundedMap(cache_bytes, each=768, copies=5)
        """What is known of the messages of an MQTT topic."""
        self.misses = 0
        """Messages whose topic was not in the cache, since the owner set it to 0."""
        self.resume_topic = settings.pulsar.system_topic(RESUME_TOPIC)
        self._rules = PresenceRules(settings.push.presence.rules)
        every_s = settings.ingest.presence_interval
        self._sightings = Sightings(every_s) if every_s and alive is not None else None
        self._alive = alive

    def sighted(self, seen: Sighting, arrived: float) -> None:
        """Report a device if its message requires a presence record; call it before ``last_message`` is set."""
        assert self._sightings is not None
        assert self._alive is not None
        if self._sightings.record_due(seen, arrived):
            self._alive(seen.device)

    def seen_elsewhere(self, device: str) -> None:
        """Another link has reported the device. From any thread."""
        if self._sightings is not None:
            self._sightings.seen_elsewhere(device)

    def of(self, message: Message) -> Target | NoRoute | LeftOut:
        """Return the target of a message. The first message of a topic decides those of the others."""
        topic = message.topic
        known = self.cache.get(topic)
        if known is None:
            self.misses += 1
            outcome = self.mapper.route(topic)
            if isinstance(outcome, Route) and self._rules.sign(message) is not None:
                outcome = PerMessage(outcome.topic, partial(_same, outcome))  # the payload says whether it is a will
            known = self._target(topic, outcome) if isinstance(outcome, Route) else outcome
            if len(topic) <= _LONGEST_CACHED:
                self.cache.put(topic, known)
        if isinstance(known, PerMessage):
            user = () if message.properties is None else message.properties.user
            route = known.of(message.payload, user)
            return self._target(topic, route, self._rules.sign(message)) if isinstance(route, Route) else route
        if isinstance(known, ResumeAsked):
            envelope = self.envelope.of_topic(
                topic, Route("resume", self.resume_topic, known.device, known.device, None)
            )
            return Target(self.resume_topic, known.device, envelope, None)
        return known

    def _target(self, topic: str, route: Route, sign: Sign | None = None) -> Target:
        seen = None
        absent = sign is not None and not sign.alive
        if self._sightings is not None and route.device is not None and not absent:
            seen = self._sightings.of(route.device)
        return Target(route.topic, route.key, self.envelope.of_topic(topic, route), seen)


def _same(route: Route, _payload: bytes, _user: Sequence[tuple[str, str]]) -> Route:
    return route

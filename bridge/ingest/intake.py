"""From a message to its place in Pulsar, whatever protocol brought it: mapping, envelope, dead letters, in flight.

An intake belongs to one loop thread, which hands it messages and takes turns. It decides where a message goes and
says what became stored; who is told of that, and on which connection, is decided by its owner. Only ``wake`` is
called from other threads.

The way of a message:

1. ``take`` leaves out what is no reading: commands, ``$`` topics, skipped retained messages. What a device asks push
   for is none either, and goes its way to push.
2. The mapping names topic and key, the envelope its properties; what has no route or is too large is a dead letter.
3. Its lane gives it to the producer of its partition at the end of the turn, which asks for one receipt.
4. ``turn`` returns everything that the receipts have marked as stored since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from bridge.bounded_map import BoundedMap
from bridge.contract import (
    DEAD_LETTERS_TOPIC,
    DEAD_MALFORMED,
    P_DEVICE,
    P_TOPIC,
    RESUME_TOPIC,
    full_envelope,
)
from bridge.dead_letters import dead_letter, letter_key
from bridge.envelope import Envelope, from_push, size_of
from bridge.health import Health
from bridge.ingest.blocking import BlockingPolicy
from bridge.ingest.idle import IdlePolicy
from bridge.ingest.lanes import Lanes, Reading
from bridge.ingest.metrics import LinkMetrics
from bridge.ingest.sightings import Sighting, Sightings
from bridge.mapping import LeftOut, Mapper, NoRoute, PerMessage, ResumeAsked, Route
from bridge.mqtt.types import Message
from bridge.pulsar_admin import PulsarAdmin
from bridge.pulsar_client import PulsarClient
from bridge.pulsar_wire.batches import head_of
from bridge.settings import Settings

__all__ = ["PULSAR_RESERVE", "Intake"]

log = structlog.get_logger("ingest")

PULSAR_RESERVE: Final = 64 * 1024
"""What a message stays below Pulsar's limit, in bytes, for headers that are not counted (H1)."""

_READING_OVERHEAD: Final = 1024
"""What one message in flight costs beside its payload and properties, in bytes, roughly."""

_REQUEST: Final = 2048
"""Most bytes that are kept of what a device asks push for; a position is shorter."""

_PIECE: Final = 500
"""Most messages that are taken at once: between two pieces acknowledgements go out and a stop is seen."""

_WAYS_BYTES: Final = 128 * 1024 * 1024
_LONG: Final = 256
"""Longer MQTT topics are looked up each time, so that the cache stays small (H10)."""


class _Way:
    """Where the messages of one MQTT topic go, and what is the same for all of them."""

    __slots__ = ("head", "key", "lane", "properties", "seen", "text", "topic")

    def __init__(self, topic: str, key: str, properties: dict[str, str], seen: Sighting | None) -> None:
        self.topic = topic
        """Full name of the Pulsar topic."""
        self.key = key
        self.properties = properties
        self.text = size_of(b"", key, properties)
        self.head = head_of(key, properties)
        self.lane: Any = None
        """What ``Lanes.put`` returned for the last of them."""
        self.seen = seen
        """When their device was heard of, where they have one and that is told."""


class Intake:
    """Takes messages of one link into Pulsar.

    ``link`` and ``protocol`` are told in each envelope. ``limit`` is the number of messages in flight at which
    ``full`` becomes true: the owner stops reading then, since nothing is refused here. ``wake`` makes the owner take
    its next turn; it is called from Pulsar's threads and must neither block nor raise. ``alive`` is called with a device that
    was silent, or has not been told of for a while, and must neither block nor raise.
    """

    def __init__(
        self,
        settings: Settings,
        client: PulsarClient,
        admin: PulsarAdmin,
        *,
        mapper: Mapper,
        link: str,
        protocol: str,
        limit: int,
        wake: Callable[[], None],
        health: Health | None = None,
        alive: Callable[[str], None] | None = None,
    ) -> None:
        self.in_flight = 0
        """Messages that are not known to be stored, of all connections."""
        self.in_flight_bytes = 0
        self.limit = limit
        self.metrics = LinkMetrics(link)
        self._part = (health or Health()).part(f"writes of {link}")
        self._part.ready()
        self._settings = settings
        self._link = link
        self._mapper = mapper
        self._envelope = Envelope(link=link, protocol=protocol, mark=settings.ingest.retained == "mark")
        self._ways: BoundedMap[_Way] = BoundedMap(_WAYS_BYTES, each=768, copies=5)
        self._skip_retained = settings.ingest.retained == "skip"
        self._max_size = settings.ingest.max_message_bytes - PULSAR_RESERVE
        self._limit_bytes = settings.ingest.max_in_flight_bytes
        self._dead_topic = settings.pulsar.system_topic(DEAD_LETTERS_TOPIC)
        self._resume_topic = settings.pulsar.system_topic(RESUME_TOPIC)
        self._lanes = Lanes(
            client,
            admin,
            max_pending=limit + 1000,
            dead_letter_topic=self._dead_topic,
            metrics=self.metrics,
            wake=wake,
            on_refused=self._refused,
            policy=BlockingPolicy(settings.ingest.on_blocked == "deadletter", settings.ingest.blocked_s, owner=link),
            idle=IdlePolicy(settings.ingest.idle_producer_s, settings.ingest.max_producers),
        )
        every_s = settings.ingest.presence_every_s
        self._sightings = Sightings(every_s) if every_s and alive is not None else None
        self._alive = alive or (lambda _device: None)
        self._turn_count = 0
        self._turn_bytes = 0
        self._stalled = 0.0  # since when, 0 while all flows
        self.metrics.in_flight_limit.set(limit)
        self.metrics.in_flight_limit_bytes.set(self._limit_bytes)
        self._next_say = self._say_every = 0.0

    @property
    def full(self) -> bool:
        """Whether the window is full, in messages or in bytes: take nothing more that can wait."""
        return self.in_flight >= self.limit or self.in_flight_bytes >= self._limit_bytes

    @property
    def room(self) -> int:
        """How many messages to take at once: what the window still holds, at least 1 and at most 500."""
        return max(1, min(_PIECE, self.limit - self.in_flight))

    @property
    def has_room(self) -> bool:
        """Whether to read again: below three quarters, so that a full window does not stop and start at each receipt."""
        return self.in_flight * 4 <= self.limit * 3 and self.in_flight_bytes * 4 <= self._limit_bytes * 3

    def take_all(self, messages: Sequence[Message], epoch: int, arrived: float) -> list[Reading]:
        """Take messages in the order of their arrival at ``arrived``, as ``take`` does. Returns their readings."""
        found: list[Reading] = []
        add, put, known, limit = found.append, self._lanes.put, self._ways.get, self._max_size
        event_ms, extra_of = time.time_ns() // 1_000_000, self._envelope.extra
        taken = taken_bytes = payloads = 0
        for message in messages:
            topic, payload, qos, retain, dup, mid, properties, malformed = message
            way = known(topic)
            if way is not None and not malformed:
                told, head, length = way.properties, way.head, len(payload)
                size = length + way.text
                if qos != 1 or retain or dup or properties is not None:
                    extra = extra_of(qos, retain, dup, properties)
                    told, head = {**told, **extra.properties}, head + extra.head
                    size += extra.text
                    if extra.from_push or (retain and self._skip_retained):
                        way = None
                if size <= limit and way is not None:
                    reading = Reading(epoch, mid, arrived, payload, way.topic, way.key, told, size, event_ms, head)
                    taken += 1
                    taken_bytes += size
                    payloads += length
                    way.lane = put(reading, way.lane)
                    add(reading)
                    seen = way.seen
                    if seen is not None and not retain:
                        if arrived - seen.heard > seen.quiet or arrived >= seen.due:
                            self._heard(seen, arrived)
                        seen.heard = arrived
                    continue
            reading = Reading(epoch, mid, arrived)
            self.take(reading, message)
            add(reading)
        self.in_flight += taken
        self.in_flight_bytes += taken_bytes + taken * _READING_OVERHEAD
        self._turn_count += taken
        self._turn_bytes += payloads
        return found

    def take(self, reading: Reading, message: Message) -> str | None:
        """Take one message; ``reading`` is what the owner knows it by, and is returned by ``turn`` once it is stored.

        Returns None, or the reason why the message is left out: then nothing is to be stored, and ``stored`` is set.
        """
        self._turn_count += 1
        self._turn_bytes += len(message.payload)
        way: _Way | NoRoute | LeftOut | None = self._ways.get(message.topic)
        if message.malformed:
            self.metrics.malformed.inc()
            way = NoRoute(f"{DEAD_MALFORMED}{message.malformed}", "")
        elif way is None:
            way = self._way(message)
        asks = isinstance(way, _Way) and way.topic == self._resume_topic
        skip = message.retain and (self._skip_retained or asks)  # a device asks now, or does not
        if skip or isinstance(way, LeftOut) or from_push(message):
            reading.stored = True
            reason = way.reason if isinstance(way, LeftOut) else "retained" if skip else "command"
            self.metrics.left_out[reason].inc()
            return reason
        reading.payload = message.payload[:_REQUEST] if asks else message.payload
        reading.event_ms = time.time_ns() // 1_000_000
        if isinstance(way, NoRoute):
            reading.properties = self._envelope.of(message, self._envelope.of_topic(message.topic, None))
            topic = self._settings.pulsar.readings_topic(way.local, way.namespace) if way.local else ""
            self._dead_letter(reading, topic, way.reason)
            self._lanes.put(reading)
        else:
            reading.properties = self._envelope.of(message, way.properties)
            if way.seen is not None and not message.retain:
                self._heard(way.seen, reading.arrived)
                way.seen.heard = reading.arrived
            if self._written(reading, way):
                told = reading.properties
                reading.head = way.head if told is way.properties else head_of(way.key, told)
                way.lane = self._lanes.put(reading, way.lane)
            else:
                self._lanes.put(reading)
        self.in_flight += 1
        self.in_flight_bytes += reading.size + _READING_OVERHEAD
        return None

    def _heard(self, seen: Sighting, arrived: float) -> None:
        assert self._sightings is not None
        if self._sightings.news(seen, arrived):
            self._alive(seen.device)

    def _way(self, message: Message) -> _Way | NoRoute | LeftOut:
        """Find the way of a topic that is not known yet, or of a message that has its own."""
        topic = message.topic
        route = self._mapper.route(topic)
        if isinstance(route, ResumeAsked):
            told = self._envelope.of_topic(topic, Route("resume", RESUME_TOPIC, route.device, route.device, None))
            return _Way(self._resume_topic, route.device, told, None)
        fixed = isinstance(route, Route)
        if isinstance(route, PerMessage):
            route = route.of(message.payload, () if message.properties is None else message.properties.user)
        if not isinstance(route, Route):
            return route
        properties = self._envelope.of_topic(topic, route)
        full = self._settings.pulsar.readings_topic(route.local, route.namespace)
        known = self._sightings is not None and route.device is not None
        seen = self._sightings.of(route.device) if known else None  # type: ignore[union-attr, arg-type]
        way = _Way(full, route.key, properties, seen)
        if fixed and len(topic) <= _LONG:
            self._ways.put(topic, way)
        return way

    @property
    def topics(self) -> list[str]:
        """The full names of the Pulsar topics that were written to. From any thread."""
        return self._lanes.topics

    @property
    def partitions(self) -> dict[str, int]:
        """The readings topics that are written to, with their numbers of partitions. From any thread."""
        return self._lanes.partitions

    def is_dead_letter(self, reading: Reading) -> bool:
        """Whether a message taken went to the dead letters; ``pb.dead.reason`` among its properties says why."""
        return reading.topic == self._dead_topic

    def _written(self, reading: Reading, way: _Way) -> bool:
        """Whether the reading goes its way; it is a dead letter when it is too large."""
        size = size_of(reading.payload, way.key, reading.properties)
        reading.key = way.key
        if size > self._max_size:
            why = f"payload, key and properties have {size} bytes, Pulsar takes {self._max_size}"
            self._dead_letter(reading, way.topic, why)
            return False
        reading.topic = way.topic
        reading.size = size
        return True

    def _dead_letter(self, reading: Reading, topic: str, reason: str) -> None:
        """Turn the reading into a dead letter; it counts as stored once that is stored (H5)."""
        device = full_envelope(reading.properties).get(P_DEVICE, "")
        mqtt_topic = reading.properties[P_TOPIC]
        log.warning(
            "message goes to the dead letters; see pulsebridge dead-letters list",
            link=self._link,
            mqtt_topic=mqtt_topic[:200],
            why=reason,
            shown=1,
        )
        size = len(reading.payload)
        reading.payload, reading.properties = dead_letter(
            reading.payload,
            topic=topic,
            device=device,
            reason=reason,
            at_us=time.time_ns() // 1000,
            properties=reading.properties,
            key=reading.key or None,
            whole_bytes=self._settings.ingest.max_dead_letter_bytes,
            properties_bytes=self._settings.ingest.max_message_bytes // 4,
        )
        if len(reading.payload) < size:
            self.metrics.cut.inc()
            log.error(
                "a payload was too large for the dead letters too, only its head is kept; limit what devices may publish",
                link=self._link,
                mqtt_topic=mqtt_topic[:200],
                bytes=size,
                shown=1,
            )
        reading.topic = self._dead_topic
        reading.key = letter_key(device or mqtt_topic)
        reading.size = size_of(reading.payload, reading.key, reading.properties)

    def _refused(self, reading: Reading, reason: str) -> None:
        """Pulsar refused this one message for good: it goes to the dead letters, the rest of its lane goes on."""
        self.in_flight_bytes -= reading.size
        self._dead_letter(reading, reading.topic, reason)
        self.in_flight_bytes += reading.size
        self._lanes.put(reading)

    def turn(self, now: float) -> list[Reading]:
        """Send what was taken and take the receipts. Returns what became stored; ``now`` is the monotonic clock."""
        stored = self._lanes.turn(now)
        if stored:
            self.in_flight -= len(stored)
            for reading in stored:
                self.in_flight_bytes -= reading.size + _READING_OVERHEAD
                if reading.topic == self._dead_topic:
                    self.metrics.dead_letters.inc()
            self.metrics.stored.inc(len(stored))
            self.metrics.store.observe(now - stored[0].arrived)
        if self._turn_count:
            self.metrics.received.inc(self._turn_count)
            self.metrics.received_bytes.inc(self._turn_bytes)
            self._turn_count = self._turn_bytes = 0
        return stored

    def next_in(self, now: float) -> float:
        """How long the owner may wait before its next turn, in seconds, if nothing wakes it."""
        return min(1.0, self._lanes.next_in(now))

    def watch(self, now: float, oldest: float | None) -> None:
        """Show the gauges and say what stalls. ``oldest`` is when that arrived which waits longest; call it each second."""
        age = 0.0 if oldest is None else now - oldest
        self.metrics.oldest_unacked.set(age)
        self.metrics.in_flight.set(self.in_flight)
        self.metrics.in_flight_bytes.set(self.in_flight_bytes)
        self.metrics.producers.set(self._lanes.producers)
        self.metrics.blocked.set(self._lanes.diverting)
        self.metrics.topics.set(self._mapper.topics)
        self.metrics.cache(self._mapper.misses, self._mapper.remembered)
        if self._mapper.forgets(now):
            self._ways.clear()
            self._lanes.forget_resting()
        if age < self._settings.ingest.stall_s:
            if self._stalled:
                self._part.ready()
                log.warning("flowing again, no action needed", after_s=round(now - self._stalled))
                self._stalled = 0.0
            return
        self._part.waits(f"Pulsar has not confirmed for {age:.0f} s")
        if not self._stalled:
            self._stalled = self._next_say = now - age
            self._say_every = 30.0
        if now >= self._next_say:
            self._next_say = now + self._say_every
            self._say_every = min(2 * self._say_every, 600.0)
            self._say_what_stalls(now, age)

    def _say_what_stalls(self, now: float, age: float) -> None:
        """Name what stalls, oldest first: acknowledgements leave in order, so one topic holds all behind it."""
        stalled = sorted(self._lanes.blocked(), key=lambda one: one.oldest)
        for one in stalled[:3]:
            log.warning(
                "Pulsar does not confirm; nothing is lost, but every acknowledgement waits for it: "
                + (one.why or "check that Pulsar runs, and the quota of the topic"),
                topic=one.name,
                waiting=one.waiting,
                oldest_s=round(now - one.oldest),
            )
        advice = "until these flow no more is acknowledged"
        if self._settings.ingest.on_blocked == "wait":
            advice += "; with ingest.on_blocked: deadletter one blocked topic does not hold the rest"
        log.warning(f"ingest stalls: {advice}", topics=len(stalled), oldest_s=round(age), in_flight=self.in_flight)

    def close(self) -> None:
        """Close the producers. It blocks; call it in a thread. What is not stored is dropped unacknowledged."""
        self._lanes.close()
